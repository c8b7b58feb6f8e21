// Reading the options of a policy: "alpha=0.2,snake=off". Values left out have their default.
#pragma once

#include <cstdint>
#include <string>

#include "policies/common/policy.hpp"

namespace spillway {

class OptionReader {
 public:
  OptionReader(const PolicyInfo& info, const PolicyOptions& options)
      : info_(info), options_(options) {}

  const std::string& text(const std::string& name) const;             // the value, or the default
  bool on_off(const std::string& name) const;                         // "on" | "off"
  double fraction(const std::string& name, double most = 1.0) const;  // 0 .. most
  int count(const std::string& name, int least, int most) const;
  // A whole number of elements, also as 5e8, from `least` to 1e15.
  std::uint64_t elements(const std::string& name, std::uint64_t least = 0) const;
  // One of `choices`; returns its index.
  int choice(const std::string& name, std::initializer_list<const char*> choices) const;
  bool is_auto(const std::string& name) const { return text(name) == "auto"; }
  // Throws InputError: the value is not `expected`.
  [[noreturn]] void reject(const std::string& name, const std::string& expected) const;

 private:
  const PolicyInfo& info_;
  const PolicyOptions& options_;
};

}  // namespace spillway
