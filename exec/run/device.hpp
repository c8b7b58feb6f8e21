// What a backend provides: compute tasks and copies between the gpu and host tiers.
//
// The executor owns the order; a device only does what it is told, with memory planned by the
// schedule. Calls come from one thread per lane. On lanes that are streams (exec/run/streams.hpp)
// they return once the work is issued; on all others they block until it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "exec/cpu/adam.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

class Streams;

// The operands of a compute task, by role; null where the task has none. Those of tasks on streams
// lie in the arenas or in memory that the device has registered.
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
  std::byte* weight_operands = nullptr;   // of a backward in two passes
  const std::int32_t* tokens = nullptr;   // (b, T), for embed_forward, embed_backward
  const std::int32_t* targets = nullptr;  // (b, T), for head
  const std::int32_t* starts = nullptr;   // (b, T), for all but head; null: no borders
  std::int64_t counted_tokens = 0;        // head: targets that count in the step; 0: all
  // On streams, instead of these four: from Streams::stage_text(). Layers have it where there are
  // borders.
  const std::byte* text = nullptr;
  bool has_borders = false;  // of the text
  double* losses = nullptr;  // (b), head: sum of the token losses of each sequence
  AdamStep adam;             // optimizer
  const AdamConstants* adam_constants = nullptr;  // on streams: of `adam`
  const NoiseKey* step_noise = nullptr;           // of the step, for dropout: forward, backward
  // gradient_norm: the unit's sum of squares, to be written. optimizer: of the unit alone, or of
  // all units, as gradient_use() takes them; empty where none are taken.
  std::span<double> norms;
  // optimizer, gradient_norm: sum of squares of the gradient, before clipping
  double* gradient_square_sum = nullptr;
};

// How long it took to take the host tier's memory and to page-lock it.
struct HostMemorySetup {
  std::uint64_t bytes = 0;
  double take_seconds = 0, pin_seconds = 0;
  std::size_t pinned_pieces = 0;  // each by a call of its own, several at a time
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // Start of the gpu tier's arena (at least the bytes asked for at construction) and of the host
  // tier's. Who does not ask host_reaches_gpu_memory() touches the bytes of the gpu tier through
  // upload() and download() only.
  virtual std::span<std::byte> gpu_memory() = 0;
  virtual std::span<std::byte> host_memory() = 0;
  // Whether the host may touch the bytes of the gpu tier where they are.
  virtual bool host_reaches_gpu_memory() const { return true; }
  // Copies to and from the gpu tier at `offset`, from any host memory; blocks. From any threads,
  // also while tasks run.
  virtual void upload(std::uint64_t offset, std::span<const std::byte> from);
  virtual void download(std::uint64_t offset, std::span<std::byte> to);
  // Runs a task of lane gpu.compute or cpu.optimizer.
  virtual void compute(const Task& task, const Operands& operands) = 0;
  // Host to GPU (lane pcie.h2d) or back (pcie.d2h).
  virtual void copy(Lane lane, std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;

  // By which algorithms it computes, where a device made at another time may choose others:
  // recorded with a training, and given to the device of the one that goes on. Empty: it has no
  // choice.
  virtual std::string algorithms() const { return ""; }

  // The lanes that are streams; null: none are.
  virtual Streams* streams() { return nullptr; }
  // Nothing where the host tier's memory is not page-locked.
  virtual std::optional<HostMemorySetup> host_memory_setup() const { return {}; }
  // One past the highest byte ever written in the arena of a tier, where the device can tell: for
  // tests of the memory plan.
  virtual std::uint64_t highest_written(Tier) const { return 0; }
};

}  // namespace spillway
