#include "experiments/questions/questions_json.hpp"

#include <nlohmann/json.hpp>

#include "experiments/plan/candidates.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json plan_json(const std::optional<Candidate>& plan) { return plan ? to_json(*plan) : Json(); }

Json tiers_json(const std::vector<Tier>& tiers) {
  Json names = Json::array();
  for (const Tier tier : tiers) names.push_back(to_string(tier));
  return names;
}

const char* to_string(LargestBatch::End end) {
  switch (end) {
    case LargestBatch::End::memory:
      return "memory";
    case LargestBatch::End::most_tried:
      return "most_tried";
    case LargestBatch::End::most_tasks:
      return "most_tasks";
  }
  return "";
}

Json point_json(const BatchPoint& point) {
  return {{"batch", point.batch},
          {"micro_batch", point.micro_batch},
          {"policy", point.policy},
          {"step_seconds", point.step_seconds},
          {"tokens_per_second", point.tokens_per_second},
          {"bound_by", point.bound_by}};
}

Json point_json(const MachinePoint& point) {
  Json json = {{"name", point.name},
               {"price", point.machine.price},
               {"settings", point.machine.overrides},
               {"fits", point.fits}};
  if (!point.fits) return json;
  json["policy"] = point.policy;
  json["micro_batch"] = point.micro_batch;
  json["step_seconds"] = point.step_seconds;
  json["tokens_per_second"] = point.tokens_per_second;
  json["bound_by"] = point.bound_by;
  json["efficiency"] = point.efficiency;
  json["drive_years"] = point.drive_years ? Json(*point.drive_years) : Json();
  return json;
}

void add_speed(Json& json, const Candidate& plan) {
  const SimulationResult& result = *plan.evaluation.result;
  json["policy"] = plan.evaluation.schedule.policy();
  json["step_seconds"] = result.step_seconds;
  json["tokens_per_second"] = result.tokens_per_second;
  json["bound_by"] = result.bound_by;
}

Json fit_json(const LargestModel& model) {
  Json json = {{"layers", model.layers}, {"parameters", model.parameters}};
  json["full"] = tiers_json(model.full);
  json["reached_end"] = model.reached_end;
  json["cut_short"] = model.cut_short;
  json["micro_batch"] = Json();
  if (model.plan) {
    json["micro_batch"] = model.plan->evaluation.schedule.problem().workload.micro_batch;
    add_speed(json, *model.plan);
  }
  json["built_in"] = Json();
  if (model.of_family) {
    const ModelSpec& largest = model.family[*model.of_family];
    json["built_in"] = {{"model", largest.name}, {"parameters", largest.parameters()}};
    add_speed(json["built_in"], *model.of_family_plan);
  }
  json["built_in_cut_short"] = model.family_cut_short;
  return json;
}

Json fit_json(const LargestBatch& batch) {
  Json json = {{"batch", batch.batch}};
  if (!batch.plan) return json;
  json["micro_batch"] = batch.micro_batch;
  json["largest_micro_batch"] = batch.largest_micro_batch;
  json["ends_by"] = to_string(batch.end);
  json["full"] = tiers_json(batch.full);
  add_speed(json, *batch.plan);
  return json;
}

Json fit_json(const LeastMemory& least) {
  if (!least.bytes)
    return {{"bytes", nullptr}, {"full", tiers_json(least.full)}, {"cut_short", least.cut_short}};
  return {{"bytes", *least.bytes},          {"too_little_bytes", least.too_little},
          {"full", tiers_json(least.full)}, {"more_than_there_is", least.is_more_than_there_is},
          {"cut_short", least.cut_short},   {"micro_batch", least.micro_batch},
          {"policy", least.policy}};
}

Json fit_json(const FitRow& row) {
  Json json = {{"policy", row.policy}};
  if (!row.refused.empty()) json["refused"] = row.refused;
  if (row.model) json["largest_model"] = fit_json(*row.model);
  if (row.batch) json["largest_batch"] = fit_json(*row.batch);
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const std::optional<LeastMemory>& least = row.least[static_cast<std::size_t>(tier)];
    if (least) json["least_memory"][to_string(tier)] = fit_json(*least);
  }
  return json;
}

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Json to_json(const FitTable& table) {
  const Problem& problem = table.problem;
  Json rows = Json::array();
  for (const FitRow& row : table.rows) rows.push_back(fit_json(row));
  Json capacity;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd})
    capacity[to_string(tier)] = size_there_is(problem, tier);
  return {{"question", "fit"},
          {"model", problem.model.name},
          {"machine", problem.machine.name},
          {"framework", problem.framework},
          {"batch", problem.workload.batch},
          {"sequence", problem.workload.sequence},
          {"overrides", problem.overrides},
          {"capacity_bytes", std::move(capacity)},
          {"policies", std::move(rows)}};
}

Json to_json(const SmallestBatch& batch) {
  Json curve = Json::array();
  for (const BatchPoint& point : batch.curve) curve.push_back(point_json(point));
  return {{"question", "smallest_batch"},
          {"share", batch.share},
          {"smallest", point_json(batch.smallest)},
          {"exact", batch.exact},
          {"peak", point_json(batch.peak)},
          {"saturated", batch.saturated},
          {"curve", std::move(curve)},
          {"plan", plan_json(batch.plan)}};
}

Json to_json(const CheapestMachine& machine, const PriceList& list) {
  Json json = {{"question", "cheapest_machine"},
               {"wanted_tokens_per_second", machine.wish.tokens_per_second},
               {"wanted_drive_years", machine.wish.drive_years},
               {"price_list", list.origin},
               {"currency", list.currency},
               {"source", list.source},
               {"machines", machine.machines},
               {"tried", machine.tried}};
  Json runners_up = Json::array();
  for (std::size_t i = 1; i < machine.fast_enough.size(); ++i)
    runners_up.push_back(point_json(machine.fast_enough[i]));
  json["left_out"] = machine.left_out;
  json["why_left_out"] = machine.left_out > 0 ? Json(machine.why_left_out) : Json();
  json["cheapest"] = machine.fast_enough.empty() ? Json() : point_json(machine.fast_enough.front());
  json["runners_up"] = std::move(runners_up);
  json["fastest_below"] = machine.fastest_below ? point_json(*machine.fastest_below) : Json();
  json["plan"] = plan_json(machine.plan);
  return json;
}

Json to_json(const Robustness& robustness) {
  Json rates = Json::array();
  for (const RateEffect& one : robustness.rates)
    rates.push_back({{"rate", one.rate},
                     {"slower_step_seconds", one.slower_step_seconds},
                     {"faster_step_seconds", one.faster_step_seconds}});
  return {{"policy", robustness.policy},
          {"micro_batch", robustness.micro_batch},
          {"margin", rate_margin},
          {"step_seconds", robustness.step_seconds},
          {"worst_step_seconds", robustness.worst_seconds()},
          {"rates", std::move(rates)},
          {"all_slower_step_seconds", robustness.all_slower_seconds},
          {"all_faster_step_seconds", robustness.all_faster_seconds},
          {"random_step_seconds", robustness.random_seconds},
          {"seed", robustness.seed},
          {"measured_slow_step_seconds", or_null(robustness.measured_slow_seconds)},
          {"measured_fast_step_seconds", or_null(robustness.measured_fast_seconds)},
          {"assumed_slow_step_seconds", or_null(robustness.assumed_slow_seconds)},
          {"assumed_fast_step_seconds", or_null(robustness.assumed_fast_seconds)}};
}

namespace {

Json to_json(const AssumedValue& value, const std::optional<double>& low,
             const std::optional<double>& high) {
  const auto text = [](const std::string& end) { return end.empty() ? Json(nullptr) : Json(end); };
  return {{"keys", value.keys},
          {"value", value.value},
          {"why", value.why},
          {"low", text(value.low)},
          {"high", text(value.high)},
          {"range_source", text(value.range_source)},
          {"low_step_seconds", or_null(low)},
          {"high_step_seconds", or_null(high)}};
}

}  // namespace

Json to_json(const AssumptionEffects& effects) {
  Json values = Json::array();
  for (const AssumedEffect& one : effects.effects)
    values.push_back(to_json(one.value, one.low_step_seconds, one.high_step_seconds));
  return {{"values", std::move(values)},
          {"fastest_step_seconds", effects.fastest_seconds},
          {"slowest_step_seconds", effects.slowest_seconds}};
}

Json to_json(const std::vector<AssumedValue>& assumed) {
  Json values = Json::array();
  for (const AssumedValue& one : assumed) values.push_back(to_json(one, {}, {}));
  return {{"values", std::move(values)},
          {"fastest_step_seconds", nullptr},
          {"slowest_step_seconds", nullptr}};
}

}  // namespace spillway
