// What the program looks up in the loaded module by name (exec/cuda_module.cpp).
#include "exec/cuda/bench.hpp"
#include "exec/cuda/cuda_device.hpp"
#include "exec/cuda_module.hpp"

extern "C" {

// Which build the module belongs to: both sides pass C++ objects.
const char* spillway_cuda_version() { return SPILLWAY_VERSION; }

std::uint64_t spillway_cuda_reserved_bytes(const spillway::Problem* problem) {
  return spillway::cuda::CudaDevice::reserved_bytes(*problem);
}

// Throws what the constructor throws. The caller owns the device.
spillway::Device* spillway_cuda_make_device(const spillway::Problem* problem,
                                            std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                                            const spillway::CudaOptions* options) {
  return new spillway::cuda::CudaDevice(*problem, gpu_bytes, host_bytes,
                                        {options->device, options->threads});
}

spillway::GpuBench* spillway_cuda_make_bench(const spillway::GpuBenchOptions* options) {
  return spillway::cuda::make_bench(*options).release();
}
}
