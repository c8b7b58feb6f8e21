// The lines of RUN/metrics.jsonl: an event each, as JSON (docs/train.md).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace spillway {

// The longest line that is read: what is longer is none of ours.
inline constexpr std::size_t longest_event = std::size_t{1} << 20;

// An event as a line, without its break: numbers as short as they can be read back, a loss with all
// 17 digits, for the eye.
std::string event_line(const nlohmann::ordered_json& event);

// Nothing where the line is no event: a crash has cut it, or something else has written it.
std::optional<nlohmann::json> read_event(std::string_view line);

// The name of an event, e.g. "step"; `event` is one that read_event gave.
std::string event_name(const nlohmann::json& event);

// A number of an event; nothing where there is none of this name, or one that is not finite.
std::optional<double> event_number(const nlohmann::json& event, const char* key);
std::optional<std::int64_t> event_integer(const nlohmann::json& event, const char* key);
std::string event_text(const nlohmann::json& event, const char* key);  // empty: there is none

// Whether a training that goes on from `first_step` says this anew: steps and evaluations of it and
// of later ones, commits after it, and the end.
bool is_overtaken(const nlohmann::json& event, std::int64_t first_step);

// Of the lines written before, those that stay where a training goes on from `first_step`.
std::string events_before(const std::string& text, std::int64_t first_step);

}  // namespace spillway
