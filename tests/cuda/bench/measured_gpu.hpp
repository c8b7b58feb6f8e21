// The GPU that calibration and the bench measure, for tests: a GPU where there is one, else
// emulated. Figures of an emulated one mean nothing; that all are taken does.
#pragma once

#include "exec/cuda/bench/bench.hpp"
#include "exec/cuda/device/cuda_device.hpp"
#include "experiments/calibrate/gpu_under_test.hpp"

namespace spillway::test {

inline GpuUnderTest gpu_under_test(int threads = 1) {
  GpuUnderTest gpu;
  gpu.info = cuda::make_bench({})->info();
  gpu.reserved_bytes = cuda::CudaDevice::reserved_bytes;
  gpu.make_device = [threads](const Problem& problem, std::uint64_t gpu_bytes,
                              std::uint64_t host_bytes) {
    return std::make_unique<cuda::CudaDevice>(
        problem, gpu_bytes, host_bytes,
        cuda::CudaDeviceOptions{0, threads, "mma", problem.machine.gpu.gelu_backward});
  };
  gpu.make_bench = [](const GpuBenchOptions& options) { return cuda::make_bench(options); };
  return gpu;
}

}  // namespace spillway::test
