#include "base/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace spillway {

namespace {

// Edit distance with insertion, deletion, substitution and swap of neighbours (optimal string
// alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      next[j] =
          std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        next[j] = std::min(next[j], before[j - 2] + 1);
      }
    }
    std::swap(before, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

std::string_view after_last_dot(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// Without those that are another one with a number ("ssd2.read" beside "ssd.read"), unless the name
// has a number, too.
std::vector<std::string> without_numbered(std::string_view name,
                                          const std::vector<std::string>& known) {
  constexpr const char* digits = "0123456789";
  if (name.find_first_of(digits) != std::string_view::npos) return known;
  std::vector<std::string> plain;
  for (const std::string& one : known) {
    std::string without = one;
    std::erase_if(without, [&](char c) { return c >= '0' && c <= '9'; });
    if (without == one || std::find(known.begin(), known.end(), without) == known.end())
      plain.push_back(one);
  }
  return plain;
}

}  // namespace

std::vector<std::string> near_names(std::string_view name, const std::vector<std::string>& known) {
  const std::size_t limit = std::max<std::size_t>(2, name.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> found;
  // Names whose lengths differ by more than the limit are not compared letter by letter: a file may
  // have a key of megabytes.
  const auto distance_to = [&](std::string_view other) {
    const std::size_t shorter = std::min(name.size(), other.size());
    const std::size_t longer = std::max(name.size(), other.size());
    return longer - shorter > limit ? longer : edit_distance(name, other);
  };
  const bool has_section = name.find('.') != std::string_view::npos;
  for (const std::string& candidate : without_numbered(name, known)) {
    std::size_t distance = distance_to(candidate);
    if (!has_section) distance = std::min(distance, distance_to(after_last_dot(candidate)));
    if (distance <= limit && distance < name.size()) found.emplace_back(distance, candidate);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (found.size() > 3) found.resize(3);
  std::vector<std::string> names;
  for (auto& [_, candidate] : found) names.push_back(std::move(candidate));
  return names;
}

std::string unknown_name_hint(std::string_view name, const std::vector<std::string>& known) {
  const std::vector<std::string> near = near_names(name, known);
  if (near.empty()) return fmt::format("known: {}", fmt::join(without_numbered(name, known), ", "));
  return fmt::format("did you mean {}?", fmt::join(near, " or "));
}

}  // namespace spillway
