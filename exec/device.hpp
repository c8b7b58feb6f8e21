// What a backend provides: compute tasks and copies between the gpu and host tiers.
//
// The executor owns the order; a device only does what it is told, with memory planned by the
// schedule. Calls come from one thread per lane and block until the work is done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "exec/adam.hpp"
#include "policies/schedule.hpp"

namespace spillway {

// The operands of a compute task, by role; null where the task has none.
struct Operands {
  std::byte* parameters = nullptr;
  std::byte* gradient = nullptr;
  std::byte* head_gradient = nullptr;
  std::byte* optimizer_state = nullptr;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::byte* saved = nullptr;
  std::byte* activation_gradient = nullptr;
  std::byte* scratch = nullptr;
  const std::int32_t* tokens = nullptr;   // (b, T), for embed_forward, embed_backward
  const std::int32_t* targets = nullptr;  // (b, T), for head
  double* losses = nullptr;               // (b), head: sum of the token losses of each sequence
  AdamStep adam;                          // optimizer
  // gradient_norm: the unit's sum of squares, to be written. optimizer: of the unit alone, or of
  // all units, as gradient_use() takes them; empty where none are taken.
  std::span<double> norms;
  // optimizer, gradient_norm: sum of squares of the gradient, before clipping
  double* gradient_square_sum = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Start of the gpu tier's arena (at least the bytes asked for at construction) and of the host
  // tier's.
  virtual std::span<std::byte> gpu_memory() = 0;
  virtual std::span<std::byte> host_memory() = 0;
  // Runs a task of lane gpu.compute or cpu.optimizer.
  virtual void compute(const Task& task, const Operands& operands) = 0;
  // Host to GPU (lane pcie.h2d) or back (pcie.d2h).
  virtual void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
};

}  // namespace spillway
