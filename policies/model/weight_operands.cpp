#include "policies/model/weight_operands.hpp"

namespace spillway {

namespace {

std::uint64_t page(std::uint64_t bytes) {
  return (bytes + buffer_alignment - 1) / buffer_alignment * buffer_alignment;
}

}  // namespace

std::array<std::int64_t, output_gradient_count> output_gradient_widths(const ModelSpec& model) {
  const std::int64_t c = model.hidden;
  return {c,
          model.fc_width(),
          c,
          c,
          model.qkv_width(),
          c,
          model.qk_norm ? model.attention_width() + model.kv_width() : 0};
}

SavedMask activations_of_weights(const ModelSpec& model) {
  using namespace llama_saved;
  static_assert(gpt_saved::ln1 == norm1 && gpt_saved::attention == attention &&
                gpt_saved::residual == residual && gpt_saved::ln2 == norm2 &&
                gpt_saved::gelu == product && gpt_saved::statistics == statistics);
  const SavedMask mask = norm1 | attention | residual | norm2 | product | statistics;
  return model.qk_norm ? static_cast<SavedMask>(mask | qkv) : mask;
}

std::uint64_t output_gradient_element_bytes(const Problem& problem) {
  return problem.backend() == Backend::cpu ? sizeof(float) : problem.activation_bytes();
}

std::uint64_t weight_operand_bytes(const Problem& problem, SavedMask available) {
  const std::int64_t rows = problem.workload.micro_batch * problem.workload.sequence;
  std::uint64_t bytes = saved_bytes(problem, kept_for_weights(problem.model, available));
  for (const std::int64_t width : output_gradient_widths(problem.model))
    bytes +=
        page(static_cast<std::uint64_t>(rows * width) * output_gradient_element_bytes(problem));
  return bytes;
}

}  // namespace spillway
