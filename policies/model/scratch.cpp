#include "policies/model/scratch.hpp"

#include <algorithm>

namespace spillway {

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

// For the adapters of the widest group, `products` times A x.
std::uint64_t adapter_scratch_bytes(const Problem& problem, std::int64_t products) {
  const ModelSpec& model = problem.model;
  if (!model.has_adapters()) return 0;
  const AdapterWidths widths = adapter_widths(model);
  const std::int64_t columns =
      products * widths.ranks + (model.lora_dropout > 0 ? widths.input : 0);
  return round_up(
      unsigned_of(problem.workload.sequences_at_once * problem.workload.sequence * columns) *
          problem.activation_bytes(),
      buffer_alignment);
}

}  // namespace

std::uint64_t checkpoint_bytes(const Problem& problem) {
  const Workload& workload = problem.workload;
  return round_up(unsigned_of(workload.micro_batch * workload.sequence * problem.model.hidden) *
                      problem.activation_bytes(),
                  buffer_alignment);
}

std::uint64_t forward_scratch_bytes(const Problem& problem, SavedMask saves) {
  return saved_bytes(problem, saved_others(problem.model, saves),
                     problem.workload.sequences_at_once) +
         adapter_scratch_bytes(problem, 1);
}

std::uint64_t backward_scratch_bytes(const Problem& problem, SavedMask available) {
  const std::int64_t sequences = problem.workload.sequences_at_once;
  const std::uint64_t gradients =
      unsigned_of(sequences) * gradient_scratch_bytes(problem.backend(), problem.model,
                                                      problem.workload.sequence,
                                                      problem.activation_bytes());
  return saved_bytes(problem, saved_others(problem.model, available), sequences) +
         round_up(gradients, buffer_alignment) + adapter_scratch_bytes(problem, 2);
}

std::int64_t head_chunk_tokens(const Problem& problem) {
  constexpr std::int64_t logits_budget = 64 << 20;  // bytes of fp32 logits
  const std::int64_t by_budget = logits_budget / (4 * problem.model.vocabulary);
  return std::clamp<std::int64_t>(by_budget, 16,
                                  std::max<std::int64_t>(problem.workload.sequence, 16));
}

std::uint64_t head_scratch_bytes(const Problem& problem) {
  const std::int64_t rows =
      std::min(head_chunk_tokens(problem), std::max<std::int64_t>(problem.workload.sequence, 1));
  const std::int64_t width = problem.model.vocabulary + 2 * problem.model.hidden + 2;
  // Every chunk reads and writes the token table's gradient anew: where layers take the memory of
  // several sequences, the head does so, too, up to half a gigabyte.
  constexpr std::int64_t most_times = 8;
  const std::int64_t times = std::min(problem.workload.sequences_at_once, most_times);
  return round_up(unsigned_of(times * rows * width) * 4, buffer_alignment);
}

}  // namespace spillway
