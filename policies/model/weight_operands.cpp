#include "policies/model/weight_operands.hpp"

#include "base/rounding.hpp"

namespace spillway {

namespace {

std::uint64_t page(std::uint64_t bytes) { return round_up(bytes, buffer_alignment); }

// Bytes of the sums over tokens that the first pass makes, a row of them per kernel batch.
std::uint64_t sum_bytes(const Problem& problem) {
  if (problem.backend() == Backend::cpu) return 0;
  const Workload& workload = problem.workload;
  const std::int64_t batches =
      (workload.micro_batch + workload.sequences_at_once - 1) / workload.sequences_at_once;
  return page(static_cast<std::uint64_t>(batches * vector_elements(problem.model)) * sizeof(float));
}

}  // namespace

std::array<std::int64_t, output_gradient_count> output_gradient_widths(const Problem& problem) {
  const ModelSpec& model = problem.model;
  const std::int64_t c = model.hidden;
  if (problem.backend() == Backend::cuda)
    return {c, model.fc_width(), 0, c, model.qkv_width(), 0, 0};
  return {c,
          model.fc_width(),
          c,
          c,
          model.qkv_width(),
          c,
          model.qk_norm ? model.attention_width() + model.kv_width() : 0};
}

SavedMask activations_of_weights(const Problem& problem) {
  using namespace llama_saved;
  static_assert(gpt_saved::ln1 == norm1 && gpt_saved::attention == attention &&
                gpt_saved::residual == residual && gpt_saved::ln2 == norm2 &&
                gpt_saved::gelu == product && gpt_saved::statistics == statistics);
  constexpr SavedMask of_matrices = norm1 | attention | norm2 | product;
  if (problem.backend() == Backend::cuda) return of_matrices;
  const SavedMask mask = of_matrices | residual | statistics;
  return problem.model.qk_norm ? static_cast<SavedMask>(mask | qkv) : mask;
}

std::uint64_t output_gradient_element_bytes(const Problem& problem) {
  return problem.backend() == Backend::cpu ? sizeof(float) : problem.activation_bytes();
}

std::int64_t vector_elements(const ModelSpec& model) {
  std::int64_t elements = 0;
  for (const TensorLayout& tensor : unit_layout(model, 0))
    if (tensor.rows == 1) elements += tensor.columns;
  return elements;
}

std::uint64_t weight_operand_bytes(const Problem& problem, SavedMask available) {
  const std::int64_t rows = problem.workload.micro_batch * problem.workload.sequence;
  std::uint64_t bytes =
      saved_bytes(problem, kept_for_weights(problem, available)) + sum_bytes(problem);
  for (const std::int64_t width : output_gradient_widths(problem))
    bytes +=
        page(static_cast<std::uint64_t>(rows * width) * output_gradient_element_bytes(problem));
  return bytes;
}

}  // namespace spillway
