#include "policies/zero/zero_pass.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

namespace {

// What PyTorch's autograd holds at once beyond the scratch of this program's kernels, which take
// a few sequences, or a few rows of logits, at a time: one recomputed block with its gradients, or
// logits and their gradient in fp32, for the whole micro-batch.
std::uint64_t autograd_bytes(const Problem& problem) {
  const auto sequences = static_cast<std::uint64_t>(problem.workload.micro_batch);
  const auto tokens = sequences * static_cast<std::uint64_t>(problem.workload.sequence);
  Problem one = problem;
  one.workload.sequences_at_once = 1;
  const std::uint64_t block = backward_scratch_bytes(one, saved_none);
  const std::uint64_t logits = 8 * tokens * static_cast<std::uint64_t>(problem.model.vocabulary);
  return std::max(sequences * block, logits) -
         std::min(backward_scratch_bytes(problem, saved_none), logits);
}

}  // namespace

ZeroPass::ZeroPass(Program& program, ModelState& state, const ZeroPassOptions& options,
                   std::vector<Slice> slots, bool whole_micro_batch)
    : program_(program),
      state_(state),
      options_(options),
      fetch_(program, state, options.fetch, std::move(slots)),
      blocks_(static_cast<int>(program.problem().model.layers)) {
  const Problem& problem = program.problem();
  if (options.cpu_passes) state.count_passes(deepspeed_pass_bytes(problem));
  const std::uint64_t beyond = whole_micro_batch ? autograd_bytes(problem) : 0;
  if (beyond > 0) program.persistent(Tier::gpu, beyond, BufferKind::scratch);
  constexpr std::uint64_t most_pieces = 1'000'000;
  const auto grid = static_cast<std::uint64_t>(element_alignment);
  const std::uint64_t bucket = std::max(options.reduce_bucket / grid * grid, grid);
  const std::uint64_t pieces =
      (state.elements(0) + bucket - 1) / bucket * static_cast<std::uint64_t>(blocks_);
  if (pieces > most_pieces) {
    throw InputError(
        fmt::format("reduce_bucket_size={}: gradients in pieces of {} elements are too "
                    "many: {} for the blocks of model {}, more than {}",
                    options.reduce_bucket, bucket, pieces, problem.model.name, most_pieces),
        "make the bucket larger, or leave the option out");
  }
  const std::uint64_t bytes = std::min(bucket, state.elements(0)) * problem.gradient_bytes();
  bucket_ = program.persistent(Tier::gpu, bytes, BufferKind::gradient).part(0, bytes);
  for (int block = 0; block < blocks_; ++block) {
    const std::uint64_t size = state.elements(block) * problem.gradient_bytes();
    accumulators_.push_back(
        program.persistent(Tier::host, size, BufferKind::gradient, block).part(0, size));
  }
}

void ZeroPass::emit(int step, const ZeroBoundary& boundary) {
  const int micro_batches = static_cast<int>(program_.problem().workload.micro_batches());
  for (int m = 0; m < micro_batches; ++m) {
    fetch_.begin_micro_step();
    program_.at(step, Phase::forward);
    forward(m);
    program_.at(step, Phase::backward);
    backward(m, boundary);
  }
}

void ZeroPass::forward(int m) {
  const std::uint64_t bytes = checkpoint_bytes(program_.problem());
  inputs_.assign(static_cast<std::size_t>(blocks_), {});
  hidden_ = program_.buffer(Tier::gpu, bytes, BufferKind::checkpoint, 0, m);
  program_.embed_forward(m, state_.resident_parameters(state_.embedding()), hidden_);
  for (int block = 0; block < blocks_; ++block) {
    inputs_[static_cast<std::size_t>(block)] = put_away(block, m, hidden_);
    const Slice weights = fetch_.forward(block);
    const Slice output = program_.buffer(Tier::gpu, bytes, BufferKind::checkpoint, block + 1, m);
    program_.forward(block, m, weights, hidden_, output);
    hidden_ = output;
  }
}

Slice ZeroPass::put_away(int block, int m, Slice gpu) {
  const bool waits = options_.checkpoints == ZeroCheckpoints::pageable;
  if (options_.checkpoints == ZeroCheckpoints::gpu || (!waits && block == blocks_ - 1)) return gpu;
  const Slice host = program_.buffer(Tier::host, gpu.bytes, BufferKind::checkpoint, block, m);
  program_.copy(gpu, host, block, m, waits ? HostMemory::pageable : HostMemory::pinned);
  if (waits) program_.barrier({Lane::pcie_d2h});
  return host;
}

Slice ZeroPass::bring_back(int block, int m, Slice from) {
  if (program_.tier(from) == Tier::gpu) return from;
  const bool waits = options_.checkpoints == ZeroCheckpoints::pageable;
  const Slice gpu = program_.buffer(Tier::gpu, from.bytes, BufferKind::checkpoint, block, m);
  // On the compute stream: after what was launched before it.
  if (waits) program_.barrier({Lane::gpu_compute}, {Lane::pcie_h2d});
  program_.copy(from, gpu, block, m, waits ? HostMemory::pageable : HostMemory::pinned);
  if (waits) program_.barrier({Lane::pcie_h2d});
  return gpu;
}

void ZeroPass::backward(int m, const ZeroBoundary& boundary) {
  const bool first = m == 0;
  const bool last = m + 1 == static_cast<int>(program_.problem().workload.micro_batches());
  const int embedding = state_.embedding();
  if (first) {
    head_gradient_ = state_.gradient_buffer(Tier::gpu, embedding, BufferKind::head_gradient);
  }
  program_.head(m, state_.resident_parameters(embedding), hidden_, head_gradient_, first);

  std::vector<Pending> bucket;
  std::uint64_t in_bucket = 0;
  for (int block = blocks_ - 1; block >= 0; --block) {
    const Slice input = bring_back(block, m, inputs_[static_cast<std::size_t>(block)]);
    const Slice weights = fetch_.backward(block);
    const Slice gradient = gradient_of(block, m);
    program_.backward(block, m, weights, input, {}, saved_none, hidden_, gradient, first,
                      options_.recomputes_output);
    if (last) program_.gradient_complete(block, gradient);
    if (in_bucket > 0 && in_bucket + state_.elements(block) > options_.reduce_bucket) {
      hand_over(bucket, m, boundary);
      in_bucket = 0;
    }
    bucket.push_back({block, gradient});
    in_bucket += state_.elements(block);
  }
  if (first) embed_gradient_ = state_.gradient_buffer(Tier::gpu, embedding);
  program_.embed_backward(m, hidden_, embed_gradient_, first);
  if (last) program_.gradient_complete(embedding, embed_gradient_, head_gradient_);
  hand_over(bucket, m, boundary);
  if (!last) return;
  boundary.leave(embedding, embed_gradient_, head_gradient_);
  boundary.left();
}

// GPU memory for a block's gradient: empty, or with the sum of the micro-batches before.
Slice ZeroPass::gradient_of(int block, int m) {
  const Slice gpu = state_.gradient_buffer(Tier::gpu, block);
  if (m > 0) program_.copy(host_accumulator(block), gpu, block, m);
  return gpu;
}

void ZeroPass::hand_over(std::vector<Pending>& bucket, int m, const ZeroBoundary& boundary) {
  const bool last = m + 1 == static_cast<int>(program_.problem().workload.micro_batches());
  // At the boundary the host thread waits for copies behind all compute launched so far, and
  // launches nothing meanwhile.
  if (last) program_.barrier({Lane::gpu_compute}, {Lane::pcie_d2h});
  for (const Pending& one : bucket) {
    const Slice host = host_accumulator(one.block);
    program_.copy(one.gradient, host, one.block, m);
    if (m == 0) {
      for (std::uint64_t at = 0; at < host.bytes; at += bucket_.bytes) {
        const std::uint64_t bytes = std::min(bucket_.bytes, host.bytes - at);
        program_.copy(host.part(at, bytes), bucket_.part(0, bytes), one.block, m);
      }
    }
    if (last) boundary.leave(one.block, one.gradient, {});
  }
  if (last && !bucket.empty()) boundary.left();
  bucket.clear();
}

std::uint8_t deepspeed_pass_bytes(const Problem& problem) {
  if (problem.backend() == Backend::cpu || problem.parameter_bytes() != 2) return 0;
  return 8 + 6 + 3 + 1 + 6;
}

std::vector<PolicyOption> zero_pass_options(const char* checkpoints_default) {
  return {
      {"checkpoints",
       checkpoints_default,
       "where activations between blocks wait for backward: gpu | host: pinned, copied in the "
       "background | pageable: copied through the driver's buffer while the host thread waits, as "
       "DeepSpeed did until 2026",
       {"host"}},
      {"recompute",
       "full",
       "full: recompute whole blocks | needed: only what backward needs",
       {"needed", "full"}},
      {"prefetch_bucket_size",
       "5e7",
       "elements of parameters copied to the GPU ahead of use; 0 turns off reading ahead, too",
       {"1e6", "0"}},
      {"max_live_parameters",
       "1e9",
       "elements on the GPU beyond which nothing is prefetched",
       {"1e7", "0"}},
      {"max_reuse_distance",
       "auto",
       "a tensor that is used again within so many elements stays on the GPU; auto: 1e9, or 0 "
       "where that does not fit",
       {"0"}},
      {"reduce_bucket_size", "5e8", "elements of gradients that leave the GPU together", {"1e7"}},
      {"working_memory",
       "micro-batch",
       "GPU memory for activations inside a block: micro-batch: of the whole micro-batch, as "
       "PyTorch needs | sequence: of one sequence, as Spillway's kernels need",
       {"sequence"}},
      {"cpu_passes", "on",
       "on: the CPU also unscales, clips and checks gradients and casts parameters, in passes of "
       "their own, as DeepSpeed does | off: AdamW does it all, as in Spillway"}};
}

ZeroPassOptions read_zero_pass(const OptionReader& read) {
  ZeroPassOptions options;
  constexpr ZeroCheckpoints places[] = {ZeroCheckpoints::gpu, ZeroCheckpoints::host,
                                        ZeroCheckpoints::pageable};
  options.checkpoints = places[read.choice("checkpoints", {"gpu", "host", "pageable"})];
  options.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
  options.fetch.prefetch_bucket = read.elements("prefetch_bucket_size");
  options.fetch.max_live = read.elements("max_live_parameters");
  if (!read.is_auto("max_reuse_distance")) {
    options.fetch.max_reuse_distance = read.elements("max_reuse_distance");
  }
  options.reduce_bucket = read.elements("reduce_bucket_size", 1);
  options.cpu_passes = read.on_off("cpu_passes");
  return options;
}

bool read_working_memory(const OptionReader& read) {
  return read.choice("working_memory", {"micro-batch", "sequence"}) == 0;
}

}  // namespace spillway
