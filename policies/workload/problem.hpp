// What is to be trained: model + machine + workload. Policies read it, nothing here is a policy's
// choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/machine/machine.hpp"
#include "policies/model/model.hpp"
#include "policies/workload/gradient_clip.hpp"
#include "policies/workload/moments.hpp"
#include "policies/workload/precision.hpp"

namespace spillway {

enum class GradientWidth : std::uint8_t {
  automatic,  // 16 bit where one micro-batch makes the gradient (nothing is summed), else 32 bit
  bits16,
  bits32
};

struct Workload {
  std::int64_t batch = 1;        // sequences per step
  std::int64_t micro_batch = 1;  // sequences per micro-batch; divides batch
  std::int64_t sequence = 1024;  // T, tokens per sequence
  Precision precision = Precision::bf16;
  GradientWidth gradient = GradientWidth::automatic;
  MomentWidth moments = MomentWidth::fp32;
  GradientClip clip = {};
  OnNonFinite on_nonfinite = OnNonFinite::stop;
  // Sequences of a micro-batch that a compute task of the GPU works on at once: its scratch holds
  // this many. Divides micro_batch.
  std::int64_t sequences_at_once = 1;

  std::int64_t micro_batches() const { return batch / micro_batch; }
  std::int64_t tokens_per_step() const { return batch * sequence; }
  // Whether the norm of each unit's gradient is taken before it is applied.
  bool needs_norms() const {
    return clip.scope != ClipScope::off || on_nonfinite == OnNonFinite::skip;
  }
  // Whether no update may start before the norms of all units are known.
  bool updates_wait() const {
    return clip.scope == ClipScope::global || on_nonfinite == OnNonFinite::skip;
  }
};

struct Problem {
  ModelSpec model;
  Machine machine;
  Workload workload;
  // What was set by hand in place of what the model's and the machine's files say, KEY=VALUE: shown
  // beside every result.
  std::vector<std::string> overrides = {};
  // The backend that trains, where that need not be the one of the machine: a machine file may
  // describe another computer.
  std::optional<Backend> trains_on = {};
  // The program whose habits are laid over the schedule, in simulation only: a name or file of
  // policies/framework/, with overrides. Ours has none.
  std::string framework = "spillway";

  // The backend that schedules are planned for.
  Backend backend() const { return trains_on.value_or(machine.backend()); }

  // Bytes per element.
  std::uint64_t parameter_bytes() const { return workload.precision == Precision::bf16 ? 2 : 4; }
  std::uint64_t activation_bytes() const { return parameter_bytes(); }
  std::uint64_t gradient_bytes()
      const;  // of the gradient handed to the optimizer and of its accumulator
  std::uint64_t state_bytes() const { return spillway::state_bytes(workload.moments); }
  // What AdamW reads and writes: the state both ways, the gradient, the parameter.
  std::uint64_t adam_bytes() const {
    return 2 * state_bytes() + gradient_bytes() + parameter_bytes();
  }
  // The same over what it is with fp32 moments, by which the rates of machine files are: the time
  // of an update goes with it.
  double adam_share_of_fp32() const;

  // Throws InputError: batch not divisible, sequence longer than the model's positions, ...
  void validate() const;

  // Sets workload.sequences_at_once as training on a GPU has it unless told otherwise: the largest
  // divisor of the micro-batch for which a tensor of the width of the residual stream has at most
  // 2^25 elements (64 MB in bf16): enough rows to fill a GPU, and scratch of at most about 2 GB
  // whatever the model. By the shape alone: numbers depend on it, so memory must not decide. Where
  // several such groups add up what would be 16-bit gradients, they become 32-bit ones. `given`:
  // this many instead; 0: none are.
  void use_gpu_sequences_at_once(std::int64_t given = 0);
};

}  // namespace spillway
