#include "experiments/calibrate/gpu_under_test.hpp"

#include "exec/run/cuda_module.hpp"
#include "experiments/train/train_device.hpp"

namespace spillway {

GpuUnderTest open_gpu(std::optional<int> number, int threads) {
  DeviceRequest request;
  request.device = "cuda";
  request.gpu = number;
  const CudaGpu chosen = *choose_device(request).gpu;
  const int device = chosen.id;
  GpuUnderTest gpu;
  gpu.place = place_beside(numa_node_of_pci(chosen.pci_bus), numa_nodes(), threads);
  gpu.info = make_gpu_bench(GpuBenchOptions{.device = device})->info();
  gpu.reserved_bytes = cuda_reserved_bytes;
  gpu.make_device = [device, threads](const Problem& problem, std::uint64_t gpu_bytes,
                                      std::uint64_t host_bytes) {
    CudaOptions options;
    options.device = device;
    options.threads = threads;
    options.gelu_backward = problem.machine.gpu.gelu_backward;
    return make_cuda_device(problem, gpu_bytes, host_bytes, options);
  };
  gpu.make_bench = [device](GpuBenchOptions options) {
    options.device = device;
    return make_gpu_bench(options);
  };
  return gpu;
}

}  // namespace spillway
