#include "exec/throttle/throttle_rates.hpp"

#include <fmt/format.h>

#include <sstream>

#include "base/errors.hpp"
#include "policies/machine/config_field.hpp"

namespace spillway {

namespace {

// A key: the rate it sets, and how that is written.
struct Key {
  const char* name;
  double ThrottleRates::*rate;
  Field (*field)(std::string key, double& value);
};

constexpr Key keys[] = {{"h2d", &ThrottleRates::h2d, bandwidth_field},
                        {"d2h", &ThrottleRates::d2h, bandwidth_field},
                        {"ssd.read", &ThrottleRates::ssd_read, bandwidth_field},
                        {"ssd.write", &ThrottleRates::ssd_write, bandwidth_field},
                        {"ssd.total", &ThrottleRates::ssd_total, bandwidth_field},
                        {"gpu", &ThrottleRates::gpu, flops_field},
                        {"gpu.optimizer", &ThrottleRates::gpu_optimizer, params_per_second_field},
                        {"optimizer", &ThrottleRates::optimizer, params_per_second_field},
                        {"nvlink", &ThrottleRates::nvlink, bandwidth_field}};

constexpr const char* example = "write for example h2d=2GB/s,d2h=2GB/s,ssd.read=800MB/s";

void set(ThrottleRates& rates, const std::string& name, const std::string& value) {
  std::vector<Field> fields;
  for (const Key& key : keys) fields.push_back(key.field(key.name, rates.*key.rate));
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
    const ThrottleRates before = rates;
    set(rates, name, item.substr(equals + 1));
    for (const Key& key : keys) {
      if (name != key.name) continue;
      if (before.*key.rate > 0)
        throw InputError(fmt::format("throttle: {} is given twice", name), "give it once");
      // Below one a second no task of any size would end in this life.
      if (!(rates.*key.rate >= 1)) {
        throw InputError(fmt::format("throttle: at {}={} nothing would ever be done", name,
                                     item.substr(equals + 1)),
                         "leave it out, and it is as fast as this machine");
      }
    }
  }
  if (rates.ssd_total > 0 && !(rates.ssd_read > 0 && rates.ssd_write > 0)) {
    throw InputError("throttle: ssd.total is shared by reads and writes, whose rates are missing",
                     "give ssd.read and ssd.write too");
  }
  return rates;
}

std::string to_text(const ThrottleRates& rates) {
  ThrottleRates copy = rates;  // fields bind to variables that `set` could change
  std::string text;
  for (const Key& key : keys) {
    if (!(rates.*key.rate > 0)) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", key.name,
                        key.field(key.name, copy.*key.rate).get());
  }
  return text;
}

}  // namespace spillway
