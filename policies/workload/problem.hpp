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
#include "policies/workload/ranks.hpp"

namespace spillway {

enum class GradientWidth : std::uint8_t {
  automatic,  // 16 bit with one micro-batch, where nothing is summed; else 32 bit
  bits16,
  bits32
};

// How ranks share out the sum of a gradient, for the bits of which one rank asks: among how many of
// them optimizer state is cut into shards (0: all), gradients, which are then summed over the ranks
// after every micro-batch (1: they are not), and what is cut first, so that it decides which
// elements a shard has, and with that norms: parameters. Complete sums are added up among the
// first, then over those that have the same shard, or at once.
struct GradientMeshes {
  int state = 0, gradients = 1, parameters = 1;
  bool at_once = false;
  bool operator==(const GradientMeshes&) const = default;
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
  // Kernel batch: sequences of a micro-batch that the kernels of a compute task work on at once;
  // the task's scratch holds this many. Divides micro_batch.
  std::int64_t sequences_at_once = 1;
  // Ranks that train together, each on so many sequences of the batch; divides batch / micro_batch.
  std::int64_t ranks = 1;
  // Stages of a pipeline that train together, each with some of the layers, on all of the batch.
  std::int64_t pipeline = 1;
  // Groups of consecutive micro-batches of the batch whose gradients are summed by themselves; the
  // sums are added up in order of the groups, and norms are taken by as many shards of a unit. It
  // decides the last bits of a gradient alone. One rank in as many groups as there are ranks has
  // the bits that those ranks have.
  std::int64_t gradient_groups = 1;
  // Of one rank that has the bits of so many; of several, which have what their plan says: open.
  GradientMeshes group_meshes = {};

  // Of `gradient_groups` those that have a shard of optimizer state each.
  int state_shards() const {
    return group_meshes.state > 0 ? group_meshes.state : static_cast<int>(gradient_groups);
  }
  // GPUs, each with a schedule of its own.
  std::int64_t processes() const { return ranks * pipeline; }
  std::int64_t rank_batch() const { return batch / ranks; }
  // Of a rank.
  std::int64_t micro_batches() const { return batch / micro_batch / ranks; }
  std::int64_t tokens_per_step() const { return batch * sequence; }
  // Whether the norm of each unit's gradient is taken before it is applied.
  bool needs_norms() const {
    return clip.scope != ClipScope::off || on_nonfinite == OnNonFinite::skip;
  }
  // Whether no update may start before the norms of all units are known.
  bool updates_wait() const {
    return clip.scope == ClipScope::global || on_nonfinite == OnNonFinite::skip;
  }

  bool operator==(const Workload&) const = default;
};

// The same sums and shards of `ranks` ranks, with `micro_batches` each, in the one way in which
// they are compared: `state` is given, and what changes nothing is not.
GradientMeshes canonical(GradientMeshes meshes, std::int64_t ranks, std::int64_t micro_batches);
// Those of one rank's groups, or of several ranks that have done what it says.
inline GradientMeshes canonical_meshes(const Workload& workload) {
  const std::int64_t groups = workload.gradient_groups;
  return canonical(
      workload.group_meshes, groups,
      workload.ranks > 1 ? workload.micro_batches() : workload.micro_batches() / groups);
}

struct Problem {
  ModelSpec model;
  Machine machine;  // what one rank has of it
  Workload workload;
  // Values set by hand in place of those in the model's and the machine's files, KEY=VALUE; they
  // are shown beside every result.
  std::vector<std::string> overrides = {};
  // The backend that trains, if that is not the machine's: a machine file may describe another
  // computer.
  std::optional<Backend> trains_on = {};
  // The framework that is laid over the schedule, in simulation only: a built-in name or a file,
  // with overrides (policies/framework/framework.hpp).
  std::string framework = "spillway";
  // Frozen parameters that rest on the SSD are read from the checkpoint's own files, which have
  // them as they are computed with: they take no space of the ssd tier
  // (policies/machine/memory_beside.hpp).
  bool frozen_in_place = false;
  // Bytes of host memory for the model that writes samples while it trains.
  std::uint64_t sample_memory = 0;
  // Whose schedule is asked for: which of ranks() of them, or which stage of the pipeline.
  int rank = 0;

  // The backend that schedules are planned for.
  Backend backend() const { return trains_on.value_or(machine.backend()); }

  // The ranks by node: Workload::ranks of them, on as many GPUs of a node as machine.cluster has.
  Ranks ranks() const;
  // The stages of a pipeline, by node alike.
  Ranks stages() const;
  // The first sequence of a step's batch that is computed here: each rank has a run of them.
  std::int64_t first_sequence() const {
    return workload.ranks > 1 ? rank * workload.rank_batch() : 0;
  }
  // GPUs of a node that train, which share what it has.
  std::int64_t gpus_of_node() const;
  // The model of this stage, where it is one of a pipeline.
  Problem of_stage(int chunks) const;

  // Bytes per element.
  std::uint64_t parameter_bytes() const { return workload.precision == Precision::bf16 ? 2 : 4; }
  std::uint64_t activation_bytes() const { return parameter_bytes(); }
  std::uint64_t gradient_bytes()
      const;  // of the gradient handed to the optimizer and of its accumulator
  std::uint64_t state_bytes() const { return spillway::state_bytes(workload.moments); }
  // Bytes that AdamW moves per parameter: it reads and writes the state, reads the gradient and
  // writes the parameter.
  std::uint64_t adam_bytes() const {
    return 2 * state_bytes() + gradient_bytes() + parameter_bytes();
  }
  // adam_bytes() over its value with fp32 moments. Rates in machine files are those of fp32
  // moments; the time of an update is proportional to this share.
  double adam_share_of_fp32() const;

  // Throws InputError: batch not divisible, sequence longer than the model's positions, ...
  void validate() const;

  // Sets the kernel batch, workload.sequences_at_once, to `given` or, if that is 0, to the default
  // of training on a GPU: the largest divisor of the micro-batch for which a tensor of the width of
  // the residual stream has at most 2^25 elements (64 MB in bf16). That is enough rows to fill a
  // GPU, and scratch of at most about 2 GB whatever the model. The default follows from shapes
  // alone, not from memory, because numbers depend on it. Where several kernel batches would be
  // summed in 16-bit gradients, gradients become 32-bit ones.
  void use_gpu_sequences_at_once(std::int64_t given = 0);
};

}  // namespace spillway
