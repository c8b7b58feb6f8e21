#include "experiments/why/why_json.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "sim/result_json.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

template <class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

Json by_tier(const TierAmounts& bytes) {
  Json json;
  for (std::size_t tier = 0; tier < bytes.size(); ++tier) {
    if (tier <= static_cast<std::size_t>(Tier::ssd) || bytes[tier] > 0)
      json[to_string(static_cast<Tier>(tier))] = bytes[tier];
  }
  return json;
}

Json profile_json(const PlanProfile& profile) {
  Json json = to_json(profile.plan, &profile.explanation);
  Json& places = json["places"] = Json::array();
  for (const KindPlaces& one : profile.places)
    places.push_back({{"kind", to_string(one.kind)},
                      {"home_bytes", one.home ? by_tier(*one.home) : Json()},
                      {"most_bytes", by_tier(one.most)}});
  Json& work = json["work"] = Json::array();
  for (const ClassWork& one : profile.work) {
    Json row = class_json(one.of);
    row["seconds"] = one.seconds;
    row["bytes"] = one.bytes;
    work.push_back(std::move(row));
  }
  return json;
}

Json differences_json(const std::vector<TimeDifference>& all) {
  Json rows = Json::array();
  for (const TimeDifference& one : all) {
    Json row = class_json(one.of);
    if (one.wait) row["wait"] = to_string(*one.wait);
    row["a_seconds"] = one.a;
    row["b_seconds"] = one.b;
    row["gain_seconds"] = one.gain();
    rows.push_back(std::move(row));
  }
  return rows;
}

Json setting_json(const PlanSetting& setting, const SettingEffect* effect) {
  Json json = {{"name", setting.name}, {"from", setting.from}, {"to", setting.to}};
  if (effect == nullptr) return json;
  json["help"] = setting.help;
  for (const auto& [name, gain] :
       {std::pair{"alone", &effect->alone}, std::pair{"last", &effect->last}}) {
    json[fmt::format("{}_gain_seconds", name)] = or_null(gain->seconds);
    json[fmt::format("{}_why_not", name)] = gain->seconds ? Json() : Json(gain->why_not);
  }
  return json;
}

Json ablation_json(const Why& why) {
  const Ablation& ablation = why.ablation;
  const std::vector<PlanSetting>& all = why.settings.all();
  Json json = {{"settings_of", why.settings.policy()}};
  json["why_not"] = ablation.why_not.empty() ? Json() : Json(ablation.why_not);
  Json& settings = json["settings"] = Json::array();
  for (std::size_t k = 0; k < all.size(); ++k)
    settings.push_back(
        setting_json(all[k], k < ablation.effects.size() ? &ablation.effects[k] : nullptr));
  if (!ablation.why_not.empty()) return json;
  const auto plan_of = [&](bool changed) {
    const PlanState state = why.settings.with(std::vector<bool>(all.size(), changed));
    return Json{{"policy", state.policy}, {"micro_batch", state.micro_batch}};
  };
  json["from"] = plan_of(false);
  json["to"] = plan_of(true);
  json["order"] = {{"given", ablation.given}, {"ranked_to_the_end", ablation.ranked}};
  json["plans"] = ablation.plans;
  json["residual_of_a_seconds"] = why.residual_of_a();
  Json& steps = json["steps"] = Json::array();
  for (const AblationStep& step : ablation.steps) {
    Json changes = Json::array();
    for (const std::size_t one : step.settings) changes.push_back(setting_json(all[one], nullptr));
    steps.push_back({{"settings", std::move(changes)},
                     {"why_together", step.why_together.empty() ? Json() : Json(step.why_together)},
                     {"before_seconds", step.before_seconds},
                     {"after_seconds", step.after_seconds},
                     {"gain_seconds", step.gain()},
                     {"gain_share", step.gain() / why.a_seconds()},
                     {"bound_by", step.bound_by}});
  }
  json["residual_of_b_seconds"] = why.residual_of_b();
  return json;
}

}  // namespace

Json to_json(const Why& why) {
  const double a = why.a_seconds(), b = why.b_seconds();
  return {{"a", profile_json(why.a)},
          {"b", profile_json(why.b)},
          {"gain_seconds", a - b},
          {"gain_share", (a - b) / a},
          {"critical_path", differences_json(why.critical_path)},
          {"stalls", differences_json(why.stalls)},
          {"ablation", ablation_json(why)}};
}

}  // namespace spillway
