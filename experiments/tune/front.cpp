#include "experiments/tune/front.hpp"

#include <algorithm>
#include <array>
#include <tuple>

namespace spillway {

namespace {

std::array<double, 4> objectives(const TrialPrice& price) {
  return {price.step_seconds, static_cast<double>(price.peaks[0]),
          static_cast<double>(price.peaks[1]), price.bytes_written};
}

}  // namespace

bool covers(const TrialPrice& a, const TrialPrice& b, double slack) {
  const auto ours = objectives(a), theirs = objectives(b);
  for (std::size_t k = 0; k < ours.size(); ++k) {
    if (ours[k] > theirs[k] * slack) return false;
  }
  return true;
}

std::vector<PricedTrial> pareto_front(const std::map<Trial, TrialPrice>& known) {
  constexpr double alike = 1.05;
  std::vector<PricedTrial> all;
  for (const auto& one : known) {
    if (one.second.fits) all.push_back(one);
  }
  std::stable_sort(all.begin(), all.end(), [](const PricedTrial& a, const PricedTrial& b) {
    return objectives(a.second) < objectives(b.second);
  });
  // One that is covered is so by a faster one: after it in this order. Those alike are left out for
  // one that is in the front already.
  std::vector<PricedTrial> front;
  for (const PricedTrial& one : all) {
    const bool is_known = std::any_of(front.begin(), front.end(), [&](const PricedTrial& other) {
      return covers(other.second, one.second, alike);
    });
    if (!is_known) front.push_back(one);
  }
  return front;
}

}  // namespace spillway
