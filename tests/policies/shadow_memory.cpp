#include "tests/policies/shadow_memory.hpp"

#include <fmt/format.h>

#include <limits>

namespace spillway::test {

std::string to_string(const Value& value) {
  static constexpr const char* names[] = {
      "nothing",       "scratch",    "parameters",          "optimizer state", "gradient",
      "head gradient", "activation", "activation gradient", "saved",           "norm"};
  const char* name = names[static_cast<std::size_t>(value.held)];
  if (value.held == Held::nothing || value.held == Held::scratch) return name;
  return fmt::format("{} of unit {} version {} micro-batch {} summed {:b} elements {}+{}", name,
                     value.unit, value.version, value.micro_batch, value.summed, value.first,
                     value.elements);
}

void ShadowMemory::split(std::uint64_t at) {
  auto it = runs_.upper_bound(at);
  if (it == runs_.begin()) return;
  --it;
  Run& run = it->second;
  if (run.begin == at || run.end <= at) return;
  Run tail = run;
  tail.begin = at;
  tail.from = run.from + (at - run.begin);
  run.end = at;
  runs_.emplace(at, tail);
}

void ShadowMemory::write(std::uint64_t begin, std::uint64_t bytes, const Value& value,
                         std::uint64_t from) {
  split(begin);
  split(begin + bytes);
  runs_.erase(runs_.lower_bound(begin), runs_.lower_bound(begin + bytes));
  runs_.emplace(begin, Run{begin, begin + bytes, value, from});
}

ShadowMemory::Run ShadowMemory::at(std::uint64_t at) const {
  const auto next = runs_.upper_bound(at);
  if (next != runs_.begin()) {
    Run run = std::prev(next)->second;
    if (run.end > at) {
      run.from += at - run.begin;
      run.begin = at;
      return run;
    }
  }
  const auto end = next == runs_.end() ? std::numeric_limits<std::uint64_t>::max() : next->first;
  return {at, end, {}, 0};
}

std::string ShadowMemory::expect(std::uint64_t begin, std::uint64_t bytes, const Value& value,
                                 std::uint64_t from) const {
  for (std::uint64_t done = 0; done < bytes;) {
    const Run run = at(begin + done);
    if (run.value != value || run.from != from + done) {
      return fmt::format("byte {} should be byte {} of ({}) and is byte {} of ({})", begin + done,
                         from + done, to_string(value), run.from, to_string(run.value));
    }
    done += run.end - run.begin;
  }
  return "";
}

}  // namespace spillway::test
