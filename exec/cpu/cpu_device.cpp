#include "exec/cpu/cpu_device.hpp"

#include <cstring>

namespace spillway {

CpuDevice::CpuDevice(const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes,
                     int threads)
    : tasks_(problem, threads),
      gpu_(gpu_bytes, "the arena that stands in for GPU memory"),
      host_(host_bytes, "host memory") {}

std::string CpuDevice::name() const { return std::string("cpu (") + tasks_.kernels().name + ")"; }

void CpuDevice::compute(const Task& task, const Operands& operands) {
  tasks_.compute(task, operands);
}

void CpuDevice::copy(Lane, std::byte* to, const std::byte* from, std::uint64_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace spillway
