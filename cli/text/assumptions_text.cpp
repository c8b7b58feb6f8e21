#include "cli/text/assumptions_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace spillway::cli {

namespace {

std::string names_of(const std::vector<const AssumedValue*>& values) {
  std::string text;
  for (const AssumedValue* value : values) {
    for (const std::string& key : value->keys) {
      const bool is_first = &key == &value->keys.front();
      text += (text.empty() ? "" : is_first ? ", " : " and ") + key;
    }
  }
  return text;
}

std::string change_text(double seconds, double step_seconds) {
  return fmt::format("{:+.1f} %", 100 * (seconds / step_seconds - 1));
}

// "-3.1 % to +22.0 %", the faster end first.
std::string range_text(double one, double other, double step_seconds) {
  const auto [least, most] = std::minmax(one, other);
  return change_text(least, step_seconds) + " to " + change_text(most, step_seconds);
}

std::string timeless_text(const std::vector<const AssumedValue*>& timeless) {
  if (timeless.empty()) return "";
  return fmt::format(
      "  assumed, too, and not tried at other values, for these are another plan: {}\n",
      names_of(timeless));
}

}  // namespace

std::string extrapolation_text(const std::vector<std::string>& extrapolates,
                               const std::string& margin) {
  std::string text;
  for (const std::string& one : extrapolates) {
    text += fmt::format("{}extrapolated: {}\n", margin, one);
    if (one.rfind("kernels of ", 0) != 0) continue;
    text += fmt::format(
        "{}  (`spillway calibrate --model ... --micro-batches ... --sequence ...` measures them)\n",
        margin);
  }
  return text;
}

std::string effects_text(const AssumptionEffects& effects) {
  const double step = effects.step_seconds;
  const std::size_t named = effects.named();
  std::vector<const AssumedValue*> others, timeless;
  std::size_t names = 0, values = 0, ranges = 0;
  const auto range_of = [](const AssumedValue& value) { return value.low + " to " + value.high; };
  for (std::size_t i = 0; i < effects.effects.size(); ++i) {
    const AssumedValue& value = effects.effects[i].value;
    if (i >= named) {
      (value.moves_time() ? others : timeless).push_back(&value);
      continue;
    }
    names = std::max(names, value.name().size());
    values = std::max(values, value.value.size());
    ranges = std::max(ranges, range_of(value).size());
  }
  const std::size_t moving = named + others.size();
  if (moving == 0)
    return "assumed        no value that moves the step: all of them are given\n" +
           timeless_text(timeless);
  const std::string how_many = named > 0 ? fmt::format("{} of {} values", named, moving)
                                         : fmt::format("none of {} values", moving);
  std::string text = fmt::format(
      "assumed        {} may move the step by more than {:g} %; at their ends: {} to {} ({})\n",
      how_many, 100 * worth_naming, format_seconds(effects.fastest_seconds),
      format_seconds(effects.slowest_seconds),
      range_text(effects.fastest_seconds, effects.slowest_seconds, step));
  for (std::size_t i = 0; i < named; ++i) {
    const AssumedEffect& one = effects.effects[i];
    text += fmt::format("  {:<{}}  {:<{}}  {:<{}}  {}\n", one.value.name(), names, one.value.value,
                        values, range_of(one.value), ranges,
                        range_text(*one.low_step_seconds, *one.high_step_seconds, step));
  }
  if (!others.empty())
    text += fmt::format("  {}{} assumed value{} by less than {:g} %: {}\n",
                        named > 0 ? "the other " : "", others.size(),
                        others.size() == 1 ? " moves it" : "s move it", 100 * worth_naming,
                        names_of(others));
  return text + timeless_text(timeless);
}

std::string assumed_text(const std::vector<AssumedValue>& assumed) {
  std::vector<const AssumedValue*> moving, timeless;
  for (const AssumedValue& value : assumed)
    (value.moves_time() ? moving : timeless).push_back(&value);
  if (moving.empty()) return effects_text({});
  return fmt::format(
             "assumed        {} value{} that may move the step; --sensitivity says how far\n  {}\n",
             moving.size(), moving.size() == 1 ? "" : "s", names_of(moving)) +
         timeless_text(timeless);
}

std::size_t assumed_count(const Machine& machine) {
  const std::vector<AssumedValue> all = assumed_values(machine);
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [](const AssumedValue& value) { return value.moves_time(); }));
}

std::string assumed_note(std::size_t least, std::size_t most) {
  if (most == 0) return "";
  return fmt::format(
      "{} value{} of the machine, assumed or derived from such, may move times: "
      "`spillway simulate` says how far\n",
      least == most ? std::to_string(most) : fmt::format("{} to {}", least, most),
      most == 1 ? "" : "s");
}

std::string assumed_note(const Machine& machine) {
  const std::size_t count = assumed_count(machine);
  return assumed_note(count, count);
}

}  // namespace spillway::cli
