#include "experiments/sweep/sweep_explanation.hpp"

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/explanation.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 3> places = {"first", "second", "third"};

// Adds "first": "ssd.read parameters", "first_share": 0.42 and so on; null where there are fewer.
template <class Parts, class Name>
void add_longest(Json& json, const Parts& parts, double window_ns, const Name& name) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::string place = places[i];
    const bool is_there = i < parts.size();
    json[place] = is_there ? Json(name(parts[i])) : Json();
    json[place + "_share"] = is_there ? Json(static_cast<double>(parts[i].ns) / window_ns) : Json();
  }
}

}  // namespace

void add_explanation(Json& json, const Schedule& schedule, const SimulationResult& result) {
  const Explanation explanation = explain(schedule, result);
  const SteadyWindow& window = explanation.window;
  const auto window_ns = static_cast<double>(window.end_ns - window.begin_ns);
  const double chain_ns = explanation.critical_path.chain_ns;
  Json path = {{"chain_seconds", chain_ns > 0 ? Json(chain_ns * 1e-9 / window.steps) : Json()}};
  add_longest(path, explanation.critical_path.parts, window_ns,
              [](const CriticalPart& part) { return to_string(part.of); });
  const StallReport& report = explanation.stalls;
  Json stalls = {{"idle_share", static_cast<double>(report.idle_ns) / window_ns}};
  add_longest(stalls, report.stalls, window_ns, [](const Stall& stall) {
    const std::string running = to_string(stall.running);
    return stall.wait == Wait::data ? running : running + ", " + to_string(stall.wait);
  });
  json["critical_path"] = std::move(path);
  json["stalls"] = std::move(stalls);
}

void leave_out_explanation(Json& json) {
  json.erase("critical_path");
  json.erase("stalls");
}

}  // namespace spillway
