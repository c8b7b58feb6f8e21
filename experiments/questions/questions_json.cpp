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

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace

Json to_json(const std::vector<LargestBatch>& batches) {
  Json rows = Json::array();
  for (const LargestBatch& one : batches) {
    Json row = {{"policy", one.policy}, {"batch", one.batch}};
    if (one.plan) {
      const SimulationResult& result = *one.plan->evaluation.result;
      row["micro_batch"] = one.micro_batch;
      row["largest_micro_batch"] = one.largest_micro_batch;
      row["ends_by"] = to_string(one.end);
      row["full"] = tiers_json(one.full);
      row["step_seconds"] = result.step_seconds;
      row["tokens_per_second"] = result.tokens_per_second;
      row["bound_by"] = result.bound_by;
    }
    rows.push_back(std::move(row));
  }
  Json json = {{"question", "largest_batch"}};
  json["batch"] = batches.empty() ? 0 : batches.front().batch;
  json["policies"] = std::move(rows);
  json["plan"] = batches.empty() ? Json() : plan_json(batches.front().plan);
  return json;
}

Json to_json(const LargestModel& model) {
  Json family = Json::array();
  for (std::size_t i = 0; i < model.family.size(); ++i)
    family.push_back({{"model", model.family[i].name},
                      {"parameters", model.family[i].parameters()},
                      {"is_largest", model.of_family == i}});
  Json json = {{"question", "largest_model"}};
  json["model"] = model.of_family ? Json(model.family[*model.of_family].name) : Json();
  json["family"] = std::move(family);
  json["family_plan"] = plan_json(model.of_family_plan);
  json["family_cut_short"] = model.family_cut_short;
  json["layers"] = model.layers;
  json["parameters"] = model.parameters;
  json["reached_end"] = model.reached_end;
  json["cut_short"] = model.cut_short;
  json["full"] = tiers_json(model.full);
  json["plan"] = plan_json(model.plan);
  return json;
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
          {"measured_fast_step_seconds", or_null(robustness.measured_fast_seconds)}};
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
