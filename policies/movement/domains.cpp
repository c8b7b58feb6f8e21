#include "policies/movement/domains.hpp"

#include <algorithm>
#include <cmath>

namespace spillway {

std::vector<std::string> between(double least, double most, int count, bool whole) {
  std::vector<std::string> all;
  double last = least;
  for (int part = 1; part < count - 1; ++part) {
    const double share = static_cast<double>(part) / (count - 1);
    double value = least + (most - least) * share;
    if (whole) {
      // Distances from `least`, plus one, in equal ratios; of each value the first two digits.
      value = least + std::pow(most - least + 1, share) - 1;
      const double unit = std::pow(10, std::max(0.0, std::floor(std::log10(value)) - 1));
      value = std::round(value / unit) * unit;
    }
    if (value <= last || value >= most) continue;
    last = value;
    all.push_back(whole ? fmt::format("{:.0f}", value) : fmt::format("{:.6g}", value));
  }
  return all;
}

bool Elements::read(const std::string& text, std::uint64_t& value) const {
  double number = 0;
  if (!read_number(text, number) || number != std::floor(number)) return false;
  if (!(number >= static_cast<double>(least) && number <= static_cast<double>(most))) return false;
  value = static_cast<std::uint64_t>(number);
  return true;
}

std::string Elements::describe() const {
  return fmt::format("a whole number of elements from {} to {:g}", least,
                     static_cast<double>(most));
}

}  // namespace spillway
