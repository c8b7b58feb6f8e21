#include "policies/model/tensors.hpp"

#include <algorithm>

#include "policies/model/gpt_layout.hpp"

namespace spillway {

namespace {

// Where each matrix of a layer starts, in elements, ascending.
std::vector<std::int64_t> matrix_starts(const ModelSpec& model) {
  std::vector<std::int64_t> starts;
  if (model.architecture == Architecture::gpt) {
    for (const TensorLayout& tensor : layer_layout(model)) {
      if (tensor.rows > 1) starts.push_back(tensor.offset);
    }
    return starts;
  }
  const std::int64_t c = model.hidden, kv = c / model.heads * model.kv_heads;
  std::int64_t start = 0;
  for (const std::int64_t elements :
       {c * c, c * kv, c * kv, c * c, c * model.ffn, c * model.ffn, c * model.ffn}) {
    starts.push_back(start);
    start += elements;
  }
  return starts;
}

}  // namespace

std::vector<TensorRange> unit_tensors(const ModelSpec& model, int unit) {
  const auto end = static_cast<std::uint64_t>(unit_elements(model, unit));
  constexpr auto grid = static_cast<std::uint64_t>(element_alignment);
  std::vector<std::uint64_t> cuts = {0};
  std::vector<std::int64_t> starts = matrix_starts(model);
  if (unit == model.layers) {
    starts = {0};
    if (model.architecture == Architecture::llama) starts = {0, model.vocabulary * model.hidden};
  }
  for (std::size_t k = 1; k < starts.size(); ++k) {
    const std::uint64_t cut = (static_cast<std::uint64_t>(starts[k]) + grid / 2) / grid * grid;
    if (cut > cuts.back() && cut < end) cuts.push_back(cut);
  }
  cuts.push_back(end);
  std::vector<TensorRange> tensors;
  for (std::size_t k = 0; k + 1 < cuts.size(); ++k) {
    tensors.push_back({unit, cuts[k], cuts[k + 1] - cuts[k]});
  }
  return tensors;
}

std::uint64_t largest_tensor(const ModelSpec& model) {
  std::uint64_t largest = 0;
  for (const TensorRange& tensor : unit_tensors(model, 0)) {
    largest = std::max(largest, tensor.elements);
  }
  return largest;
}

}  // namespace spillway
