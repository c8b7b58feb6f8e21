#include "exec/throttle/throttle_rates.hpp"

#include <fmt/format.h>

#include <sstream>
#include <utility>
#include <vector>

#include "base/errors.hpp"
#include "policies/machine/config_field.hpp"

namespace spillway {

namespace {

// The rates by their keys, in the order in which they are written.
std::vector<std::pair<Field, double*>> keys_of(ThrottleRates& rates) {
  std::vector<std::pair<Field, double*>> keys;
  const auto add = [&](auto make, const std::string& key, double& rate) {
    keys.emplace_back(make(key, rate), &rate);
  };
  add(bandwidth_field, "h2d", rates.h2d);
  add(bandwidth_field, "d2h", rates.d2h);
  for (int set = 0; set < most_drive_sets; ++set) {
    ThrottledDrives& drives = rates.drives[static_cast<std::size_t>(set)];
    add(bandwidth_field, drive_set_key(set, "read"), drives.read);
    add(bandwidth_field, drive_set_key(set, "write"), drives.write);
    add(bandwidth_field, drive_set_key(set, "total"), drives.total);
  }
  add(flops_field, "gpu", rates.gpu);
  add(params_per_second_field, "gpu.optimizer", rates.gpu_optimizer);
  add(params_per_second_field, "optimizer", rates.optimizer);
  add(bandwidth_field, "nvlink", rates.nvlink);
  return keys;
}

constexpr const char* example = "write for example h2d=2GB/s,d2h=2GB/s,ssd.read=800MB/s";

void set(ThrottleRates& rates, const std::string& name, const std::string& value) {
  std::vector<Field> fields;
  for (auto& [field, rate] : keys_of(rates)) fields.push_back(field);
  try {
    set_field(fields, name, value);
  } catch (const InputError& error) {
    throw InputError(fmt::format("throttle {}: {}", name, error.what()), error.hint());
  }
}

}  // namespace

bool ThrottleRates::any() const { return *this != ThrottleRates{}; }

ThrottleRates parse_throttle(const std::string& text) {
  ThrottleRates rates;
  std::istringstream list(text);
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0)
      throw InputError(fmt::format("throttle: '{}' is not KEY=RATE", item), example);
    const std::size_t begin = item.find_first_not_of(' ');
    const std::string name = item.substr(begin, equals - begin);
    const auto rate_of = [&]() -> double* {
      for (const auto& [field, rate] : keys_of(rates)) {
        if (field.key == name) return rate;
      }
      return nullptr;
    };
    const double* const known = rate_of();
    const bool is_again = known != nullptr && *known > 0;
    set(rates, name, item.substr(equals + 1));
    if (is_again)
      throw InputError(fmt::format("throttle: {} is given twice", name), "give it once");
    // Below one a second no task of any size would end in this life.
    if (!(*rate_of() >= 1)) {
      throw InputError(fmt::format("throttle: at {}={} nothing would ever be done", name,
                                   item.substr(equals + 1)),
                       "leave it out, and it is as fast as this machine");
    }
  }
  for (int set = 0; set < most_drive_sets; ++set) {
    const ThrottledDrives& drives = rates.drives[static_cast<std::size_t>(set)];
    if (drives.total > 0 && !(drives.read > 0 && drives.write > 0))
      throw InputError(
          fmt::format("throttle: {} is shared by reads and writes, whose rates are missing",
                      drive_set_key(set, "total")),
          fmt::format("give {} and {} too", drive_set_key(set, "read"),
                      drive_set_key(set, "write")));
  }
  return rates;
}

std::string to_text(const ThrottleRates& rates) {
  ThrottleRates copy = rates;  // fields bind to variables that `set` could change
  std::string text;
  for (const auto& [field, rate] : keys_of(copy)) {
    if (*rate > 0) text += fmt::format("{}{}={}", text.empty() ? "" : ",", field.key, field.get());
  }
  return text;
}

}  // namespace spillway
