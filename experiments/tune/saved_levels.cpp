#include "experiments/tune/saved_levels.hpp"

#include <algorithm>
#include <cmath>

#include "policies/model/operators.hpp"
#include "policies/model/saved.hpp"

namespace spillway {

namespace {

// The next mask of the hull after `from`: the most FLOPs saved per byte more.
SavedMask steepest(const Problem& problem, const std::vector<SavedMask>& masks, SavedMask from) {
  const double flops = recompute_flops(problem, from, false);
  const auto bytes = static_cast<double>(saved_bytes(problem, from));
  SavedMask best = saved_all(problem.model);
  double most = -1;
  for (const SavedMask mask : masks) {
    const double more = static_cast<double>(saved_bytes(problem, mask)) - bytes;
    const double less = flops - recompute_flops(problem, mask, false);
    if (more <= 0 || less <= 0 || less / more <= most) continue;
    most = less / more;
    best = mask;
  }
  return best;
}

// Unions of what one kernel makes.
std::vector<SavedMask> unions(const ModelSpec& model) {
  std::vector<SavedMask> masks;
  const std::vector<SavedMask> groups = recompute_groups(model);
  for (unsigned choice = 0; choice < (1u << groups.size()); ++choice) {
    unsigned mask = 0;
    for (std::size_t k = 0; k < groups.size(); ++k) {
      if (choice >> k & 1) mask |= groups[k];
    }
    masks.push_back(static_cast<SavedMask>(mask));
  }
  return masks;
}

}  // namespace

SavedLevels::SavedLevels(const Problem& problem)
    : layers_(static_cast<int>(problem.model.layers)),
      all_(saved_all(problem.model)),
      bytes_(std::size_t{all_} + 1) {
  const std::vector<SavedMask> all = unions(problem.model);
  for (unsigned mask = 0; mask < bytes_.size(); ++mask)
    bytes_[mask] = static_cast<double>(saved_bytes(problem, static_cast<SavedMask>(mask)));
  masks_.push_back(saved_none);
  while (recompute_flops(problem, masks_.back(), false) > 0)
    masks_.push_back(steepest(problem, all, masks_.back()));
}

SavedLevels::Masks SavedLevels::at(double level) const {
  level = std::clamp(level, 0.0, most());
  const auto below = std::min(static_cast<std::size_t>(level), masks_.size() - 2);
  const int under_last = layers_ - 1;
  const int higher =
      std::min(under_last, static_cast<int>((level - static_cast<double>(below)) * layers_ + 1e-9));
  std::vector<Masks::Run> runs;
  if (higher < under_last) runs.push_back({masks_[below], Masks::others});
  if (higher > 0) runs.push_back({masks_[below + 1], higher});
  runs.push_back({all_, 1});
  return Masks(runs);
}

double SavedLevels::bytes(const Masks& masks) const {
  double sum = 0;
  for (int layer = 0; layer < layers_; ++layer) sum += bytes_[masks.at(layer, layers_)];
  return sum;
}

double SavedLevels::level_of(const Masks& masks) const {
  const double wanted = bytes(masks);
  double low = 0, high = most();
  if (wanted >= bytes(at(high))) return high;
  for (int round = 0; round < 24; ++round) {
    const double middle = (low + high) / 2;
    (bytes(at(middle)) <= wanted ? low : high) = middle;
  }
  return low;
}

}  // namespace spillway
