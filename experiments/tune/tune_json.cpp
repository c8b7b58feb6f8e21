#include "experiments/tune/tune_json.hpp"

#include <nlohmann/json.hpp>
#include <sstream>

#include "experiments/plan/candidates.hpp"
#include "sim/result_json.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

// The policy's settings by name.
Json settings_of(const std::string& policy) {
  Json settings = Json::object();
  const std::size_t colon = policy.find(':');
  if (colon == std::string::npos) return settings;
  std::istringstream list(policy.substr(colon + 1));
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t equals = item.find('=');
    settings[item.substr(0, equals)] = item.substr(equals + 1);
  }
  return settings;
}

Json to_json(const PricedTrial& one) {
  const TrialPrice& price = one.second;
  return {{"policy", price.settled},
          {"micro_batch", one.first.micro_batch},
          {"step_seconds", price.step_seconds},
          {"memory",
           {{"gpu", {{"peak_bytes", price.peaks[0]}}},
            {"host", {{"peak_bytes", price.peaks[1]}}},
            {"ssd", {{"peak_bytes", price.peaks[2]}}}}},
          {"ssd_bytes_written_per_step", price.bytes_written}};
}

Json to_json(const std::vector<PricedTrial>& all) {
  Json list = Json::array();
  for (const PricedTrial& one : all) list.push_back(to_json(one));
  return list;
}

Json best_json(const TuneResult& result) {
  if (!result.best) return nullptr;
  const Evaluation& evaluation = result.best->evaluation;
  const Explanation explanation = explain(evaluation.schedule, *evaluation.result);
  Json json = to_json(Candidate{evaluation, result.best->wear}, &explanation);
  json["settings"] = settings_of(evaluation.schedule.policy());
  // How long this computer took would not be the same the next time.
  json.erase("schedule_seconds");
  json.erase("simulate_seconds");
  return json;
}

Json relaxations_json(const TuneResult& result) {
  Json list = Json::array();
  for (const Relaxation& one : result.relaxations) {
    Json set = Json::object();
    for (const Setting& change : one.changes) set[change.name] = change.value;
    list.push_back({{"name", one.name},
                    {"set", set},
                    {"policy", one.plan.policy},
                    {"micro_batch", one.plan.micro_batch},
                    {"step_seconds", one.step_seconds},
                    {"bound_seconds", one.bound_seconds},
                    {"gain", one.gain}});
  }
  return list;
}

}  // namespace

nlohmann::ordered_json to_json(const TuneResult& result, const TuneOptions& options) {
  const bool has_bound = result.bound.seconds > 0;
  return {{"best", best_json(result)},
          {"front", to_json(result.front)},
          {"runners_up", to_json(result.runners_up)},
          {"bound_seconds", has_bound ? Json(result.bound.seconds) : Json(nullptr)},
          {"bound_by", has_bound ? Json(result.bound.limit) : Json(nullptr)},
          {"gap", result.best ? Json(result.gap()) : Json(nullptr)},
          {"relaxations", relaxations_json(result)},
          {"explored", result.explored},
          {"effort", options.effort},
          {"seed", options.seed},
          {"stopped_by_clock", result.stopped_by_clock}};
}

}  // namespace spillway
