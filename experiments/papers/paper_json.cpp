#include <nlohmann/json.hpp>

#include "experiments/papers/paper_points.hpp"
#include "experiments/papers/paper_report.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json point_json(const PaperPoint& point) {
  return {{"at", point.at},
          {"published", or_null(point.published.number)},
          {"fits_published", point.published.fits},
          {"fitted", point.is_fitted()},
          {"fits", point.fits},
          {"simulated", or_null(point.simulated)},
          {"error", or_null(point.error())},
          {"closed_form", or_null(point.closed_form)},
          {"closed_form_error", or_null(point.closed_form_error())},
          {"fitted_share", point.fitted_share},
          {"chosen", point.chosen},
          {"verdict_fitted", !point.verdict_seen_by.empty()},
          {"verdict_hangs", !point.hangs_on.empty()},
          {"same_run_as", point.same_run_as.empty() ? Json(nullptr) : Json(point.same_run_as)},
          {"counts", point.counts},
          {"verdict_as", point.verdict_as.empty() ? Json(nullptr) : Json(point.verdict_as)},
          {"margin",
           {{"tier", to_string(point.margin.tier)},
            {"bytes", point.margin.bytes},
            {"share", or_null(point.margin.share)}}}};
}

Json system_json(const SystemResult& system) {
  Json points = Json::array();
  for (const PaperPoint& point : system.points) {
    if (point.published.given) points.push_back(point_json(point));
  }
  const SystemErrors& errors = system.errors;
  const bool any = errors.predictions > 0;
  return {{"name", system.name},
          {"policy", system.policy},
          {"framework", system.framework},
          {"points", points},
          {"predictions", errors.predictions},
          {"mean_error", any ? Json(errors.mean) : Json(nullptr)},
          {"worst_error", any ? Json(errors.worst) : Json(nullptr)},
          {"worst_at", any ? Json(errors.worst_at) : Json(nullptr)},
          {"closed_form_mean_error", any ? Json(errors.closed_form_mean) : Json(nullptr)},
          {"nearer", errors.nearer},
          {"fitted", errors.fitted},
          {"fitted_mean_error", errors.fitted > 0 ? Json(errors.fitted_mean) : Json(nullptr)},
          {"fits_as_published", errors.fits_as_published},
          {"fits_known", errors.fits_known}};
}

Json experiment_json(const PaperExperiment& e, const ExperimentResult& x) {
  Json systems = Json::array();
  for (const SystemResult& system : x.systems) systems.push_back(system_json(system));
  return {{"name", e.name},
          {"figure", e.figure},
          {"quantity", to_string(e.quantity)},
          {"axis", e.axis},
          {"apart", e.apart.empty() ? Json(nullptr) : Json(e.apart)},
          {"systems", systems},
          {"kendall_tau", x.ordering.tau()},
          {"pairs", x.ordering.pairs}};
}

Json saturation_json(const Saturation& s) {
  return {{"tokens_per_second", s.tokens_per_second},
          {"micro_batches", s.micro_batches},
          {"limit", s.limit},
          {"ended_by_memory", s.ended_by_memory},
          {"ssd_bytes", s.ssd_bytes}};
}

Json ratio_json(const PaperRatio& ratio, const std::vector<RatioRow>& rows) {
  Json list = Json::array();
  for (const RatioRow& row : rows) {
    list.push_back({{"label", row.label},
                    {"faster", saturation_json(row.faster)},
                    {"slower", saturation_json(row.slower)},
                    {"ratio", or_null(row.ratio)},
                    {"error", row.ratio ? Json(*row.ratio / ratio.published - 1) : Json(nullptr)},
                    {"uses_drives", row.uses_drives}});
  }
  const std::optional<RatioRange> range = ratio_range(rows);
  return {{"name", ratio.name},
          {"published", ratio.published},
          {"range", range ? Json{{"least", range->least}, {"most", range->most}} : Json(nullptr)},
          {"rows", list}};
}

Json constants_json(const Paper& paper) {
  Json list = Json::array();
  for (const PaperConstant& constant : paper.constants_chosen) {
    list.push_back({{"key", constant.key},
                    {"kind", constant.kind == ConstantKind::continuous ? "continuous" : "discrete"},
                    {"in", constant.in},
                    {"value", constant_value(paper, constant)},
                    {"seen", constant.seen},
                    {"points_seen", seen_count(paper, constant)}});
  }
  return list;
}

Json left_out_json(const Paper& paper, const LeaveOneOut& left_out) {
  Json folds = Json::array();
  for (const Fold& fold : left_out.folds) {
    const LeftOutErrors ours = errors_of(fold.points), theirs = errors_of(fold.closed_form);
    Json points = Json::array();
    for (const LeftOutPoint& point : fold.points) {
      points.push_back({{"name", point.name},
                        {"published", point.published},
                        {"simulated", or_null(point.simulated)},
                        {"error", point.error()},
                        {"determined", point.determined}});
    }
    folds.push_back(
        {{"name", fold.name},
         {"predictions", ours.points},
         {"not_determined", ours.not_determined},
         {"mean_error", ours.points > 0 ? Json(ours.mean) : Json(nullptr)},
         {"worst_error", ours.points > 0 ? Json(ours.worst) : Json(nullptr)},
         {"closed_form_mean_error", theirs.points > 0 ? Json(theirs.mean) : Json(nullptr)},
         {"refit", to_json(paper, fold.refit)},
         {"points", points}});
  }
  const LeftOutErrors all = errors_of(left_out.points());
  return {{"predictions", all.points},
          {"not_determined", all.not_determined},
          {"mean_error", all.points > 0 ? Json(all.mean) : Json(nullptr)},
          {"folds", folds}};
}

}  // namespace

Json to_json(const Paper& paper, const Refit& refit) {
  Json constants = Json::array();
  for (const RefitConstant& one : refit.constants) {
    const PaperConstant& constant = paper.constants_chosen[one.constant];
    const std::string value = constant_value(paper, constant);
    constants.push_back({{"key", constant.key},
                         {"in", constant.in},
                         {"before", value},
                         {"value", scaled_quantity(value, one.factor, 6)},
                         {"factor", one.factor},
                         {"determined", one.determined},
                         {"at_bound", one.at_bound}});
  }
  return {{"name", paper.name},
          {"points", refit.points},
          {"mean_error_before", refit.before},
          {"mean_error", refit.after},
          {"evaluations", refit.evaluations},
          {"constants", constants}};
}

Json to_json(const PaperReport& report) {
  const PaperResult& result = report.result;
  Json experiments = Json::array(), ratios = Json::array();
  for (std::size_t i = 0; i < result.experiments.size(); ++i)
    experiments.push_back(experiment_json(result.paper.experiments[i], result.experiments[i]));
  for (std::size_t i = 0; i < result.ratios.size(); ++i)
    ratios.push_back(ratio_json(result.paper.ratios[i], result.ratios[i]));
  const ErrorSums sums = errors_of(result);
  const bool any = sums.predictions > 0;
  return {{"name", result.paper.name},
          {"citation", result.paper.citation},
          {"machine", result.paper.machine},
          {"constants", constants_json(result.paper)},
          {"predictions", sums.predictions},
          {"mean_error", any ? Json(sums.mean) : Json(nullptr)},
          {"closed_form_mean_error", any ? Json(sums.closed_form_mean) : Json(nullptr)},
          {"nearer", sums.nearer},
          {"experiments", experiments},
          {"ratios", ratios},
          {"leave_one_out",
           report.left_out ? left_out_json(result.paper, *report.left_out) : Json(nullptr)}};
}

}  // namespace spillway
