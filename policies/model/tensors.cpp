#include "policies/model/tensors.hpp"

#include <algorithm>

#include "policies/model/units.hpp"

namespace spillway {

namespace {

// Where each matrix of a unit and its frozen part start, in elements, ascending.
std::vector<std::int64_t> matrix_starts(const ModelSpec& model, std::int64_t unit) {
  std::vector<std::int64_t> starts;
  bool trained = true;
  for (const TensorLayout& tensor : unit_layout(model, unit)) {
    if (tensor.decay || (tensor.trained != trained && tensor.offset > 0))
      starts.push_back(tensor.offset);
    trained = tensor.trained;
  }
  return starts;
}

}  // namespace

std::vector<TensorRange> unit_tensors(const ModelSpec& model, int unit) {
  const auto end = static_cast<std::uint64_t>(unit_elements(model, unit));
  constexpr auto grid = static_cast<std::uint64_t>(element_alignment);
  std::vector<std::uint64_t> cuts = {0};
  std::vector<std::int64_t> starts = {0};
  if (unit < model.layers) starts = matrix_starts(model, unit);
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
