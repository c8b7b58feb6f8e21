#include "experiments/questions/knee_json.hpp"

#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json point_json(const KneePoint& point) {
  Json json = {
      {"value", point.value}, {"text", point.text}, {"set", point.set}, {"fits", point.fits()}};
  if (!point.fits()) {
    json["why_not"] = point.why_not;
    return json;
  }
  json["policy"] = point.policy;
  json["micro_batch"] = point.micro_batch;
  json["step_seconds"] = point.step_seconds;
  json["tokens_per_second"] = point.tokens_per_second;
  json["next_gain"] = point.next_gain ? Json(*point.next_gain) : Json();
  json["bound_by"] = point.bound_by;
  json["waits_for"] = point.waits_for.empty() ? Json() : Json(point.waits_for);
  json["waits_share"] = point.waits_share;
  if (point.is_extrapolated) json["drives_extrapolated"] = true;
  return json;
}

Json curve_json(const KneeCurve& curve) {
  Json json = {{"resource", curve.resource}};
  if (!curve.why_not.empty()) {
    json["why_not"] = curve.why_not;
    return json;
  }
  const KneePoint& now = curve.points[curve.now];
  json["now"] = now.value;
  json["gain_now"] = now.next_gain ? Json(*now.next_gain) : Json();
  json["knee"] = curve.knee ? Json(curve.points[*curve.knee].value) : Json();
  json["in_proportion"] = curve.in_proportion;
  if (curve.table_ends > 0) json["table_ends"] = curve.table_ends;
  json["most_tokens_per_second"] =
      curve.most_tokens_per_second > 0 ? Json(curve.most_tokens_per_second) : Json();
  Json& points = json["points"] = Json::array();
  for (const KneePoint& point : curve.points) points.push_back(point_json(point));
  return json;
}

}  // namespace

Json to_json(const Knees& knees) {
  Json json = {{"threshold", knees.threshold}};
  Json& curves = json["resources"] = Json::array();
  for (const KneeCurve& curve : knees.curves) curves.push_back(curve_json(curve));
  return json;
}

}  // namespace spillway
