#include "experiments/watch/run_events.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace spillway {

std::string event_line(const nlohmann::ordered_json& event) {
  std::string line;
  for (const auto& [key, value] : event.items()) {
    // What is not finite is null, as in all JSON.
    const bool all_digits = (key == "loss" || key == "final_loss") && value.is_number() &&
                            std::isfinite(value.get<double>());
    line += fmt::format(
        "{}\"{}\":{}", line.empty() ? "" : ",", key,
        all_digits ? fmt::format("{:#.17g}", value.get<double>())
                   : value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return "{" + line + "}";
}

std::optional<nlohmann::json> read_event(std::string_view line) {
  if (line.size() > longest_event || nested_deeper(line, most_nesting)) return {};
  nlohmann::json event = nlohmann::json::parse(line, nullptr, false);
  if (!event.is_object()) return {};
  const auto name = event.find("event");
  if (name == event.end() || !name->is_string()) return {};
  return event;
}

std::string event_name(const nlohmann::json& event) { return event_text(event, "event"); }

std::optional<double> event_number(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number()) return {};
  const auto value = found->get<double>();
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<std::int64_t> event_integer(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number_integer()) return {};
  return found->get<std::int64_t>();
}

std::string event_text(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  return found != event.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_overtaken(const nlohmann::json& event, std::int64_t first_step) {
  const std::string name = event_name(event);
  const std::int64_t step = event_integer(event, "step").value_or(0);
  if (name == "end") return true;
  // A step counts from 0. A commit, an evaluation and a sample say how many steps are done;
  // evaluation and samples at the step that training goes on from are made again. What a spike has
  // left out stays so.
  static constexpr std::array<std::string_view, 4> again = {"step", "evaluation", "best", "sample"};
  return (std::find(again.begin(), again.end(), name) != again.end() && step >= first_step) ||
         (name == "commit" && step > first_step);
}

std::string events_before(const std::string& text, std::int64_t first_step) {
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const auto event = read_event(line);
    if (!event || is_overtaken(*event, first_step)) continue;
    kept.append(line).push_back('\n');
  }
  return kept;
}

}  // namespace spillway
