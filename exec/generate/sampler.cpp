#include "exec/generate/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// From 0 to below 1.
double uniform(std::uint64_t seed, std::int64_t position) {
  const std::uint64_t bits = mixed(mixed(seed) ^ static_cast<std::uint64_t>(position));
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace

void Sampling::check() const {
  const auto require = [](bool holds, const char* setting, auto value, const char* range) {
    if (!holds) throw InputError(Setting{setting, fmt::format("{}", value)} + ": " + range);
  };
  require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature,
          "not a number of at least 0");
  require(top_k >= 0, "top_k", top_k, "not a number of tokens");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "not above 0 and at most 1");
}

std::int32_t Sampler::pick(std::span<const float> logits, std::int64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (!std::isfinite(*best))
    throw MachineError("a logit is not finite: the weights are not those of a trained model");
  if (sampling_.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  candidates_.clear();
  double all = 0;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const double weight = std::exp(
        (static_cast<double>(logits[token]) - static_cast<double>(*best)) / sampling_.temperature);
    candidates_.emplace_back(weight, static_cast<std::int32_t>(token));
    all += weight;
  }
  if (sampling_.top_k > 0 || sampling_.top_p < 1) {
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    std::size_t kept = 0;
    double sum = 0;
    const auto most =
        sampling_.top_k > 0 ? static_cast<std::size_t>(sampling_.top_k) : candidates_.size();
    while (kept < candidates_.size() && kept < most && sum < sampling_.top_p * all)
      sum += candidates_[kept++].first;
    candidates_.resize(std::max<std::size_t>(kept, 1));
    all = 0;
    for (const auto& [weight, token] : candidates_) all += weight;
  }
  double left = uniform(sampling_.seed, position) * all;
  for (const auto& [weight, token] : candidates_) {
    left -= weight;
    if (left < 0) return token;
  }
  return candidates_.back().second;
}

}  // namespace spillway
