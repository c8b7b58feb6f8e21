#include "policies/model/saved.hpp"

#include "base/rounding.hpp"

namespace spillway {

namespace {

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

std::vector<SavedTensor> gpt_tensors(const ModelSpec& model) {
  using namespace gpt_saved;
  const std::int64_t c = model.hidden;
  return {{ln1, "ln1", c, false},
          {qkv, "qkv", model.qkv_width(), false},
          {attention, "attention", c, false},
          {residual, "residual", c, false},
          {ln2, "ln2", c, false},
          {fc, "fc", model.fc_width(), false},
          {gelu, "gelu", model.ffn, false},
          {statistics, "statistics", 4 + model.heads, true}};
}

std::vector<SavedTensor> llama_tensors(const ModelSpec& model) {
  using namespace llama_saved;
  const std::int64_t c = model.hidden, a = model.attention_width();
  const std::int64_t of_heads = model.qk_norm ? 2 * model.heads + model.kv_heads : model.heads;
  std::vector<SavedTensor> tensors = {{norm1, "norm1", c, false},
                                      {qkv, "qkv", model.qkv_width(), false},
                                      {attention, "attention", a, false},
                                      {residual, "residual", c, false},
                                      {norm2, "norm2", c, false},
                                      {gate_up, "gate_up", model.fc_width(), false},
                                      {product, "product", model.ffn, false},
                                      {statistics, "statistics", 2 + of_heads, true}};
  if (model.qk_norm) tensors.push_back({rotated, "rotated", a + model.kv_width(), false});
  return tensors;
}

}  // namespace

std::vector<SavedTensor> saved_tensors(const ModelSpec& model) {
  return model.architecture == Architecture::gpt ? gpt_tensors(model) : llama_tensors(model);
}

SavedMask saved_all(const ModelSpec& model) {
  const bool rotates_apart = model.architecture == Architecture::llama && model.qk_norm;
  return rotates_apart ? 0x1ff : 0xff;
}

SavedMask saved_others(const ModelSpec& model, SavedMask mask) {
  return static_cast<SavedMask>(saved_all(model) & ~mask);
}

std::vector<SavedLayout> saved_layout(const Problem& problem, SavedMask mask,
                                      std::int64_t sequences) {
  std::vector<SavedLayout> layout;
  std::uint64_t offset = 0;
  for (const SavedTensor& tensor : saved_tensors(problem.model)) {
    if ((mask & tensor.bit) == 0) continue;
    const std::uint64_t element_bytes = tensor.fp32 ? 4 : problem.activation_bytes();
    const std::uint64_t stride =
        unsigned_of(problem.workload.sequence * tensor.width) * element_bytes;
    const std::uint64_t bytes = round_up(unsigned_of(sequences) * stride, buffer_alignment);
    layout.push_back({tensor.bit, offset, bytes, stride, tensor.width});
    offset += bytes;
  }
  return layout;
}

std::uint64_t saved_bytes(const Problem& problem, SavedMask mask, std::int64_t sequences) {
  const auto layout = saved_layout(problem, mask, sequences);
  return layout.empty() ? 0 : layout.back().offset + layout.back().bytes;
}

std::uint64_t saved_bytes(const Problem& problem, SavedMask mask) {
  return saved_bytes(problem, mask, problem.workload.micro_batch);
}

}  // namespace spillway
