#include "policies/model/scratch.hpp"

#include <algorithm>

#include "base/rounding.hpp"
#include "policies/model/weight_operands.hpp"

namespace spillway {

namespace {

std::uint64_t page(std::uint64_t bytes) { return round_up(bytes, buffer_alignment); }

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::uint64_t fp32_bytes(std::int64_t elements) {
  return page(unsigned_of(elements) * sizeof(float));
}

std::uint64_t parameter_copy_bytes(const Problem& problem, std::int64_t unit) {
  return fp32_bytes(unit_elements(problem.model, unit));
}

std::uint64_t gradient_copy_bytes(const Problem& problem, std::int64_t unit) {
  return problem.gradient_bytes() == 2 ? fp32_bytes(trained_elements(problem.model, unit)) : 0;
}

std::uint64_t activation_copy_bytes(const Problem& problem) {
  return fp32_bytes(problem.workload.sequence * problem.model.hidden);
}

// For the adapters of the widest group, `products` times A x.
std::uint64_t adapter_scratch_bytes(const Problem& problem, std::int64_t products) {
  const ModelSpec& model = problem.model;
  if (!model.has_adapters()) return 0;
  const AdapterWidths widths = adapter_widths(model);
  const std::int64_t columns =
      products * widths.ranks + (model.lora_dropout > 0 ? widths.input : 0);
  return page(
      unsigned_of(problem.workload.sequences_at_once * problem.workload.sequence * columns) *
      problem.activation_bytes());
}

}  // namespace

std::uint64_t checkpoint_bytes(const Problem& problem) {
  const Workload& workload = problem.workload;
  return page(unsigned_of(workload.micro_batch * workload.sequence * problem.model.hidden) *
              problem.activation_bytes());
}

bool works_on_copies(const Problem& problem) {
  return problem.backend() == Backend::cpu && problem.activation_bytes() < sizeof(float);
}

Problem one_sequence_in_fp32(const Problem& problem) {
  Problem one;
  one.model = problem.model;
  one.machine.cluster = problem.machine.cluster;  // which the ranks are on
  one.workload = problem.workload;
  one.workload.micro_batch = one.workload.sequences_at_once = 1;
  one.workload.precision = Precision::fp32;
  one.workload.gradient = GradientWidth::automatic;
  one.trains_on = Backend::cpu;
  return one;
}

std::uint64_t forward_scratch_bytes(const Problem& problem, SavedMask saves) {
  if (works_on_copies(problem)) {
    const Problem one = one_sequence_in_fp32(problem);
    const SavedMask all = saved_all(problem.model);
    return parameter_copy_bytes(problem, 0) + 2 * activation_copy_bytes(problem) +
           saved_bytes(one, all) + forward_scratch_bytes(one, all);
  }
  return saved_bytes(problem, saved_others(problem.model, saves),
                     problem.workload.sequences_at_once) +
         adapter_scratch_bytes(problem, 1);
}

std::uint64_t backward_scratch_bytes(const Problem& problem, SavedMask available) {
  if (works_on_copies(problem)) {
    const Problem one = one_sequence_in_fp32(problem);
    const std::int64_t trained_layer = problem.model.layers - 1;
    return parameter_copy_bytes(problem, 0) + gradient_copy_bytes(problem, trained_layer) +
           2 * activation_copy_bytes(problem) + saved_bytes(one, available) +
           backward_scratch_bytes(one, available);
  }
  const std::int64_t sequences = problem.workload.sequences_at_once;
  const std::uint64_t gradients =
      unsigned_of(sequences) * gradient_scratch_bytes(problem.backend(), problem.model,
                                                      problem.workload.sequence,
                                                      problem.activation_bytes());
  return saved_bytes(problem, saved_others(problem.model, available), sequences) + page(gradients) +
         adapter_scratch_bytes(problem, 2);
}

std::uint64_t input_gradient_scratch_bytes(const Problem& problem, SavedMask available) {
  const std::uint64_t whole = backward_scratch_bytes(problem, available);
  if (!works_on_copies(problem)) return whole;
  return whole - gradient_copy_bytes(problem, problem.model.layers - 1) +
         saved_bytes(one_sequence_in_fp32(problem), kept_for_weights(problem, available));
}

std::uint64_t weight_gradient_scratch_bytes(const Problem& problem) {
  if (!works_on_copies(problem)) return 0;
  return gradient_copy_bytes(problem, problem.model.layers - 1) + activation_copy_bytes(problem) +
         saved_bytes(one_sequence_in_fp32(problem), activations_of_weights(problem));
}

std::int64_t head_chunk_tokens(const Problem& problem) {
  constexpr std::int64_t logits_budget = 64 << 20;  // bytes of fp32 logits
  const std::int64_t by_budget = logits_budget / (4 * problem.model.vocabulary);
  return std::clamp<std::int64_t>(by_budget, 16,
                                  std::max<std::int64_t>(problem.workload.sequence, 16));
}

std::uint64_t head_scratch_bytes(const Problem& problem) {
  if (works_on_copies(problem)) {
    const std::int64_t unit = head_unit(problem.model);
    return parameter_copy_bytes(problem, unit) + gradient_copy_bytes(problem, unit) +
           activation_copy_bytes(problem) + head_scratch_bytes(one_sequence_in_fp32(problem));
  }
  const std::int64_t rows =
      std::min(head_chunk_tokens(problem), std::max<std::int64_t>(problem.workload.sequence, 1));
  const std::int64_t width = problem.model.vocabulary + 2 * problem.model.hidden + 2;
  // Every chunk reads and writes the token table's gradient anew: where layers take the memory of
  // several sequences, the head does so, too, up to half a gigabyte.
  constexpr std::int64_t most_times = 8;
  const std::int64_t times = std::min(problem.workload.sequences_at_once, most_times);
  return page(unsigned_of(times * rows * width) * 4);
}

std::uint64_t embed_backward_scratch_bytes(const Problem& problem) {
  if (!works_on_copies(problem) || problem.gradient_bytes() != 2) return 0;
  const Workload& workload = problem.workload;
  return page(unsigned_of(workload.micro_batch * workload.sequence) * sizeof(std::int32_t)) +
         fp32_bytes(problem.model.hidden);
}

}  // namespace spillway
