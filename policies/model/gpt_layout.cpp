#include "policies/model/gpt_layout.hpp"

#include <algorithm>

namespace spillway {

namespace {

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

std::uint64_t unsigned_of(std::int64_t value) { return static_cast<std::uint64_t>(value); }

class LayoutBuilder {
 public:
  void add(std::string name, std::int64_t rows, std::int64_t columns, bool decay) {
    tensors_.push_back({std::move(name), rows, columns, offset_, decay});
    offset_ += rows * columns;
  }
  std::vector<TensorLayout> take() { return std::move(tensors_); }

 private:
  std::vector<TensorLayout> tensors_;
  std::int64_t offset_ = 0;
};

}  // namespace

std::vector<TensorLayout> layer_layout(const ModelSpec& model) {
  const std::int64_t c = model.hidden;
  LayoutBuilder layout;
  layout.add("ln_1.weight", 1, c, false);
  layout.add("ln_1.bias", 1, c, false);
  layout.add("attn.c_attn.weight", 3 * c, c, true);
  layout.add("attn.c_attn.bias", 1, 3 * c, false);
  layout.add("attn.c_proj.weight", c, c, true);
  layout.add("attn.c_proj.bias", 1, c, false);
  layout.add("ln_2.weight", 1, c, false);
  layout.add("ln_2.bias", 1, c, false);
  layout.add("mlp.c_fc.weight", model.ffn, c, true);
  layout.add("mlp.c_fc.bias", 1, model.ffn, false);
  layout.add("mlp.c_proj.weight", c, model.ffn, true);
  layout.add("mlp.c_proj.bias", 1, c, false);
  return layout.take();
}

std::vector<TensorLayout> embedding_layout(const ModelSpec& model) {
  LayoutBuilder layout;
  layout.add("wte.weight", model.vocabulary, model.hidden, true);
  layout.add("wpe.weight", model.positions, model.hidden, true);
  layout.add("ln_f.weight", 1, model.hidden, false);
  layout.add("ln_f.bias", 1, model.hidden, false);
  return layout.take();
}

std::int64_t unit_elements(const ModelSpec& model, std::int64_t unit) {
  const std::int64_t elements =
      unit < model.layers ? model.layer_parameters() : model.embedding_parameters();
  return (elements + element_alignment - 1) / element_alignment * element_alignment;
}

std::string unit_name(const ModelSpec& model, std::int64_t unit) {
  return unit == model.layers ? "the embedding" : "layer " + std::to_string(unit);
}

std::vector<SavedLayout> saved_layout(const Problem& problem, std::uint8_t mask,
                                      std::int64_t sequences) {
  const ModelSpec& model = problem.model;
  const std::uint64_t t = unsigned_of(problem.workload.sequence);
  const std::int64_t c = model.hidden;
  std::vector<SavedLayout> layout;
  std::uint64_t offset = 0;
  const auto add = [&](SavedTensor tensor, std::int64_t width, std::uint64_t element_bytes) {
    if ((mask & tensor) == 0) return;
    const std::uint64_t stride = t * unsigned_of(width) * element_bytes;
    const std::uint64_t bytes = round_up(unsigned_of(sequences) * stride, buffer_alignment);
    layout.push_back({tensor, offset, bytes, stride, width});
    offset += bytes;
  };
  const std::uint64_t element = problem.activation_bytes();
  add(saved_ln1, c, element);
  add(saved_qkv, model.qkv_width(), element);
  add(saved_attention, c, element);
  add(saved_residual, c, element);
  add(saved_ln2, c, element);
  add(saved_fc, model.fc_width(), element);
  add(saved_gelu, model.ffn, element);
  add(saved_statistics, 4 + model.heads, 4);
  return layout;
}

std::uint64_t saved_bytes(const Problem& problem, std::uint8_t mask, std::int64_t sequences) {
  const auto layout = saved_layout(problem, mask, sequences);
  return layout.empty() ? 0 : layout.back().offset + layout.back().bytes;
}

std::uint64_t saved_bytes(const Problem& problem, std::uint8_t mask) {
  return saved_bytes(problem, mask, problem.workload.micro_batch);
}

std::uint64_t checkpoint_bytes(const Problem& problem) {
  const Workload& workload = problem.workload;
  return round_up(unsigned_of(workload.micro_batch * workload.sequence * problem.model.hidden) *
                      problem.activation_bytes(),
                  buffer_alignment);
}

std::uint64_t forward_scratch_bytes(const Problem& problem, std::uint8_t saves) {
  return saved_bytes(problem, static_cast<std::uint8_t>(~saves),
                     problem.workload.sequences_at_once);
}

std::uint64_t backward_scratch_bytes(const Problem& problem, std::uint8_t available) {
  const std::int64_t sequences = problem.workload.sequences_at_once;
  const std::uint64_t gradients =
      unsigned_of(sequences) * gradient_scratch_bytes(problem.backend(), problem.model,
                                                      problem.workload.sequence,
                                                      problem.activation_bytes());
  return saved_bytes(problem, static_cast<std::uint8_t>(~available), sequences) +
         round_up(gradients, buffer_alignment);
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

double recompute_flops(const Problem& problem, std::uint8_t available, bool output) {
  const ModelSpec& model = problem.model;
  const Workload& workload = problem.workload;
  const double tokens = static_cast<double>(workload.micro_batch * workload.sequence);
  const double c = static_cast<double>(model.hidden);
  double flops = 0;
  for (const SavedLayout& missing :
       saved_layout(problem, static_cast<std::uint8_t>(~available), workload.micro_batch)) {
    const bool is_product = missing.tensor == saved_qkv || missing.tensor == saved_residual ||
                            missing.tensor == saved_fc;
    if (is_product) flops += 2 * tokens * c * static_cast<double>(missing.width);
  }
  const double scores = 2 * tokens * static_cast<double>(workload.sequence) * c;
  if ((available & saved_attention) == 0) {
    flops += 2 * scores;  // and their product with the values
  } else if ((available & saved_statistics) == 0) {
    flops += scores;
  }
  if (output) flops += 2 * tokens * c * static_cast<double>(model.ffn);
  return flops;
}

double forward_flops(const Problem& problem) {
  return problem.model.layer_forward_flops(problem.workload.micro_batch, problem.workload.sequence);
}

double backward_flops(const Problem& problem, std::uint8_t available, bool output) {
  return 2 * forward_flops(problem) + recompute_flops(problem, available, output);
}

double head_flops(const Problem& problem) {
  return 3 *
         problem.model.head_forward_flops(problem.workload.micro_batch, problem.workload.sequence);
}

}  // namespace spillway
