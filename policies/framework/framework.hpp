// A framework: what a program that runs a schedule adds to it in memory, bytes, time and ordering.
// Spillway adds nothing. Each number has its source in the file it is from (frameworks/).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "policies/schedule/program.hpp"

namespace spillway {

// The host thread waits at a point of the program: what was started before on the lanes `waits_for`
// ends before anything that comes after starts on the lanes `holds`.
struct WaitRule {
  HostPoint at = HostPoint::visit;
  LaneSet waits_for, holds;
};

struct Framework {
  std::string name, description;

  // -- memory that no task of ours touches
  // Activations inside a layer, and logits, are there for the whole micro-batch at once (else for
  // as many sequences as a task works on).
  bool whole_micro_batch = false;
  // With it: a layer is recomputed in so many parts, one after the other; and a logit with all that
  // the loss makes of it has so many bytes. 0: there is no head with logits.
  std::int64_t checkpoints_per_layer = 1, logit_bytes = 8;
  // A layer's parameters and gradients move in so many pieces, of which the GPU holds so many at
  // once. 0: as the schedule, which moves layers.
  std::int64_t layer_pieces = 0, parameter_pieces = 0, gradient_pieces = 0;
  // GPU memory is PyTorch's caching allocator's (caching_allocator.hpp): what it cannot use of it
  // is needed, too.
  bool caching_allocator = false;
  std::uint64_t gpu_bytes = 0, host_bytes = 0;  // whatever is trained
  double host_bytes_per_parameter = 0;
  // The same, of the check for overflow, which only fp16 needs.
  double overflow_bytes_per_parameter = 0;
  bool fp16 = false;  // its 16 bits are fp16, with a scaled loss; else bf16
  // GPU memory for so many elements of gradients that are sent together.
  std::int64_t gpu_bucket = 0;
  // Optimizer state that comes from the SSD, and gradients on their way, have these slots of host
  // memory, each of one update's elements in fp32: so many for each update that is in host memory
  // at once as its state and gradient need, and so many at least.
  bool optimizer_slots = false;
  std::int64_t least_optimizer_slots = 0;
  // Pinned fp32 buffers for the optimizer on the SSD, so many, of the largest of its groups:
  // tensors in the order of the model up to so many elements or more. 0: slots as above, or the
  // schedule's.
  std::int64_t optimizer_buffers = 0, optimizer_group = 0;
  // Slots of host memory for parameters read from the SSD, each of the largest tensor. 0: what the
  // schedule takes.
  std::int64_t parameter_slots = 0;
  // Pinned buffers, one allocation each, for parameters and for activations that come from and go
  // to the SSD, whatever is trained. The schedule's take their place up to that size.
  std::uint64_t parameter_buffer = 0, activation_buffer = 0;
  // Checkpoints that wait in host memory have a pinned allocation each.
  bool pinned_checkpoints = false;
  // Slots and accumulators take a power of two of host memory each.
  bool pinned_rounding = false;

  // -- gradients on their way
  // Bytes an element in which complete gradients leave the GPU, rest, and come back; 0: as ours.
  std::int64_t gradient_bytes = 0;
  // Micro-batches are summed in accumulators in host memory, one for every layer, which are there
  // throughout; where complete gradients leave is apart, and they cross PCIe to both.
  bool accumulators = false;
  // The first micro-batch's come back to the GPU at once.
  bool gradients_return = false;

  // -- collectives of several ranks
  // Bytes an element in which gradients are summed on the GPU and over the ranks; 0: as ours.
  std::int64_t summed_gradient_bytes = 0;
  // A layer's parameters are gathered, and its gradient is reduced after every micro-batch, in so
  // many calls; 0: one.
  std::int64_t layer_calls = 0;
  // Complete gradients are reduced together, and updated parameters spread, until they would be
  // more than so many elements; 0: those of each layer by themselves.
  std::int64_t reduce_bucket = 0, spread_bucket = 0;

  // -- copies over PCIe
  // Their host side is not pinned, and the host thread waits for all compute before and for the
  // copy.
  bool pageable_checkpoints = false, pageable_gradients = false;
  // With pageable checkpoints that leave: that of the last layer does, too, though it is used at
  // once.
  bool last_checkpoint_leaves = false;
  bool one_copy_lane = false;  // both ways on one CUDA stream

  // DRAM bytes an element that passes over the gradient and the result cost beside AdamW on the
  // CPU, in 16 bit; at most 255. Where the CPU stands in for a GPU, and in fp32, there are none.
  // With fp16 those of the overflow check come to them.
  std::int64_t cpu_pass_bytes = 0, cpu_overflow_pass_bytes = 0;
  // Time of such a byte over that of one of AdamW's: passes allocate what they write, and pages of
  // it are touched for the first time.
  double cpu_pass_time = 1;

  // Time of a read, and of a write, before its first byte moves: opening a file, filling the queue
  // of asynchronous I/O and draining it. Its lane waits; the drives may serve the other lane.
  std::int64_t read_operation_ns = 0, write_operation_ns = 0;

  // -- compute on the GPU: over what the machine's gpu.flops says
  double compute_time = 1;

  // -- the host thread, which starts the GPU's kernels (policies/cost/launch_times.hpp)
  std::int64_t host_operators = 0;  // of a layer's forward; backward has twice as many
  std::int64_t operator_ns = 0;     // to start one
  std::int64_t hook_ns = 0;         // of a module with parameters, before and after it runs
  std::int64_t sync_ns = 0;         // of every wait, beside the machine's host.sync
  // Between backward and the updates, once a step, while the GPU waits: the norm is read, gradients
  // are scaled, the optimizer is started. Where the updates are a phase of their own.
  std::int64_t step_ns = 0;

  std::vector<WaitRule> waits;
  std::map<std::string, std::string> sources;  // by key
};

const std::vector<Framework>& builtin_frameworks();

// "deepspeed-0.9", "path.toml", or either with overrides: "deepspeed-0.9:gradient.bytes=2". Throws
// InputError with near names, or file:line.
Framework load_framework(const std::string& text);
Framework parse_framework(const std::string& toml_text, const std::string& origin,
                          const std::vector<std::string>& overrides = {});

// Bytes an element of the passes beside an update on the CPU: none where the CPU stands in for a
// GPU, and in fp32.
std::int64_t pass_bytes(const Framework& framework, const Problem& problem);

// What the file of such a text holds, as 16 hexadecimal digits (XXH3), without the overrides:
// recorded beside the text, so that a later reader knows whether the file is still the same.
std::string framework_hash(const std::string& text);

inline constexpr const char* own_framework = "spillway";

// Throws InputError for any framework but our own: what another program adds is priced by the
// simulator, and no executor runs it.
void require_own_framework(const std::string& framework);

}  // namespace spillway
