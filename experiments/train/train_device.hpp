// Which device trains: the CPU, or one of the CUDA GPUs of this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "exec/run/cuda_module.hpp"
#include "policies/workload/backend.hpp"

namespace spillway {

// What the user asks for, and what speaks for one or the other.
struct DeviceRequest {
  std::string device = "auto";     // auto, cpu or cuda
  std::optional<int> gpu;          // --gpu: as nvidia-smi numbers them
  bool throttled = false;          // only the CPU backend can be as slow as another machine
  std::optional<Backend> machine;  // of the machine file; empty: there is none
  bool began_on_gpu = false;       // a training that is resumed: it stays there
  // Of several ranks on this computer: each takes a GPU of its own, in their order.
  int rank_on_host = 0, ranks_on_host = 1;
};

struct DeviceChoice {
  std::optional<CudaGpu> gpu;  // empty: the CPU
  std::string why;             // not a GPU, where `auto` looked for one and found none: one line
};

// `auto` is a GPU where there is one that can be used and nothing speaks for the CPU; else the CPU.
// `find` (find_cuda_devices) is called only where a GPU may be wanted; `driver_present`
// (cuda_driver_present) before it, where none is demanded. Throws InputError, with CUDA's reason,
// when a GPU is demanded and is not there or cannot be used, or with what only the CPU can do.
DeviceChoice choose_device(const DeviceRequest& request,
                           const std::function<CudaDevices()>& find = find_cuda_devices,
                           const std::function<bool()>& driver_present = cuda_driver_present);

// Of `free` bytes of a GPU's memory, those the gpu tier may take when the backend itself reserves
// `reserved`: a margin is left for what CUDA's libraries load later.
std::uint64_t gpu_tier_bytes(std::uint64_t free, std::uint64_t reserved);

}  // namespace spillway
