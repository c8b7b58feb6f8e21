// What the program looks up in the loaded module by name (exec/run/cuda_module.cpp).
#include <fmt/format.h>

#include "exec/cuda/bench/bench.hpp"
#include "exec/cuda/device/cuda_device.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/ranks/nccl_links.hpp"
#include "exec/run/cuda_module.hpp"

extern "C" {

// Which build the module belongs to: both sides pass C++ objects.
const char* spillway_cuda_version() {
  static const std::string version = spillway::cuda_module_version();
  return version.c_str();
}

void spillway_cuda_list(std::vector<spillway::CudaGpu>* gpus) {
  int count = 0;
  SPILLWAY_CUDA(cudaGetDeviceCount(&count));
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    SPILLWAY_CUDA(cudaGetDeviceProperties(&properties, device));
    gpus->push_back({device, properties.name, properties.totalGlobalMem, properties.major,
                     properties.minor,
                     fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                 properties.pciBusID, properties.pciDeviceID)});
  }
}

// Makes `device` the calling thread's.
std::uint64_t spillway_cuda_free_bytes(int device) {
  std::size_t free = 0, total = 0;
  SPILLWAY_CUDA(cudaSetDevice(device));
  SPILLWAY_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

std::uint64_t spillway_cuda_reserved_bytes(const spillway::Problem* problem) {
  return spillway::cuda::CudaDevice::reserved_bytes(*problem);
}

// Throws what the constructor throws. The caller owns the device.
spillway::Device* spillway_cuda_make_device(const spillway::Problem* problem,
                                            std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                                            const spillway::CudaOptions* options) {
  return new spillway::cuda::CudaDevice(
      *problem, gpu_bytes, host_bytes,
      {options->device, options->threads, options->attention, options->gelu_backward,
       options->tunes_products, options->recorded_algorithms, options->say});
}

// Throws MachineError where NCCL cannot be loaded. The caller owns them.
spillway::GpuLinks* spillway_cuda_make_links(int device, const std::string* library) {
  return new spillway::cuda::NcclLinks(device, *library);
}

spillway::GpuBench* spillway_cuda_make_bench(const spillway::GpuBenchOptions* options) {
  return spillway::cuda::make_bench(*options).release();
}
}
