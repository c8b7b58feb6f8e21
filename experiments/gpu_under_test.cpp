#include "experiments/gpu_under_test.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "exec/cuda_module.hpp"

namespace spillway {

GpuUnderTest open_gpu(int device, int threads) {
  const CudaDevices devices = find_cuda_devices();
  if (devices.count == 0)
    throw MachineError("there is no CUDA GPU here: " + devices.text, "use --device cpu");
  if (device < 0 || device >= devices.count) {
    throw InputError(
        fmt::format("--gpu {}: there are {} CUDA devices, numbered from 0", device, devices.count),
        "choose one of those that nvidia-smi lists");
  }
  GpuUnderTest gpu;
  gpu.info = make_gpu_bench({device})->info();
  gpu.reserved_bytes = cuda_reserved_bytes;
  gpu.make_device = [device, threads](const Problem& problem, std::uint64_t gpu_bytes,
                                      std::uint64_t host_bytes) {
    return make_cuda_device(problem, gpu_bytes, host_bytes, {device, threads});
  };
  gpu.make_bench = [device](GpuBenchOptions options) {
    options.device = device;
    return make_gpu_bench(options);
  };
  return gpu;
}

}  // namespace spillway
