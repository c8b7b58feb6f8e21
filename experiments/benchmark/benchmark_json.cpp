#include "experiments/benchmark/benchmark_json.hpp"

#include <nlohmann/json.hpp>

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const std::optional<BenchmarkPlan>& plan) {
  if (!plan) return nullptr;
  return {{"policy", plan->policy},
          {"micro_batch", plan->micro_batch},
          {"step_seconds", plan->step_seconds}};
}

std::optional<BenchmarkPlan> plan_in(const Json& json) {
  if (json.is_null()) return {};
  return BenchmarkPlan{json.at("policy"), json.at("micro_batch"), json.at("step_seconds")};
}

template <class Row>
Json with_cells(const Row& row, const std::vector<std::string>& keys) {
  Json json = Json::object();
  for (std::size_t k = 0; k < keys.size(); ++k) {
    if (!row.cells[k].empty()) json[keys[k]] = row.cells[k];
  }
  json.update(to_json(row));
  return json;
}

Json to_json(const BenchmarkSummary& summary) {
  return {{"points", summary.points},
          {"fit", summary.fits},
          {"only_tuned_fits", summary.only_tuned},
          {"own_plans", summary.own_plans},
          {"slower", summary.slower},
          {"mean_speedup_over_published", summary.against_published},
          {"mean_speedup_over_built_in", summary.against_built_in},
          {"mean_speedup_over_zero_infinity", summary.against_zero_infinity},
          {"median_gap", summary.median_gap},
          {"largest_gap", summary.largest_gap}};
}

Json to_json(const BatchSummary& summary) {
  return {{"rows", summary.rows},
          {"io_bound", summary.io_bound},
          {"reach_own_peak", summary.own_peak},
          {"may_reach_own_peak", summary.may_own_peak},
          {"reach_greedysnakes_peak", summary.other_peak},
          {"may_reach_greedysnakes_peak", summary.may_other_peak}};
}

}  // namespace

Json to_json(const BenchmarkRow& row) {
  return {{"published", to_json(row.published)},
          {"built_in", to_json(row.built_in)},
          {"zero_infinity", to_json(row.zero_infinity)},
          {"tuned", to_json(row.tuned)},
          {"bound_seconds", row.tuned ? Json(row.bound_seconds) : Json(nullptr)},
          {"bound_by", row.bound_by}};
}

Json to_json(const BatchRow& row) {
  return {{"greedysnake",
           {{"batch", row.batch},
            {"peak_batch", row.peak_batch},
            {"peak_tokens_per_second", row.peak_tokens_per_second},
            {"limited_below", row.limited_below}}},
          {"tuned",
           {{"batch", row.fewer},
            {"tokens_per_second", row.fewer_tokens_per_second},
            {"most_tokens_per_second", row.most_tokens_per_second},
            {"peak_tokens_per_second", row.tuned_peak_tokens_per_second}}}};
}

BenchmarkRow benchmark_row(const Json& json) {
  BenchmarkRow row;
  row.published = plan_in(json.at("published"));
  row.built_in = plan_in(json.at("built_in"));
  row.zero_infinity = plan_in(json.at("zero_infinity"));
  row.tuned = plan_in(json.at("tuned"));
  if (row.tuned) row.bound_seconds = json.at("bound_seconds");
  row.bound_by = json.at("bound_by");
  return row;
}

BatchRow batch_row(const Json& json) {
  BatchRow row;
  const Json &greedysnake = json.at("greedysnake"), &tuned = json.at("tuned");
  row.batch = greedysnake.at("batch");
  row.peak_batch = greedysnake.at("peak_batch");
  row.peak_tokens_per_second = greedysnake.at("peak_tokens_per_second");
  row.limited_below = greedysnake.at("limited_below");
  row.fewer = tuned.at("batch");
  row.fewer_tokens_per_second = tuned.at("tokens_per_second");
  row.most_tokens_per_second = tuned.at("most_tokens_per_second");
  row.tuned_peak_tokens_per_second = tuned.at("peak_tokens_per_second");
  return row;
}

Json to_json(const Benchmark& benchmark, const BenchmarkOptions& options) {
  Json rows = Json::array(), batches = Json::array();
  for (const BenchmarkRow& row : benchmark.rows) {
    rows.push_back(with_cells(row, benchmark.keys));
    rows.back()["gap"] = row.gap() ? Json(*row.gap()) : Json(nullptr);
  }
  for (const BatchRow& row : benchmark.batches) batches.push_back(with_cells(row, benchmark.keys));
  Json json = {{"effort", options.effort},
               {"seed", options.seed},
               {"rows", rows},
               {"summary", to_json(summary_of(benchmark.rows))}};
  if (options.share) {
    json["share"] = *options.share;
    json["batches"] = batches;
    json["batches_summary"] = to_json(summary_of(benchmark.batches, *options.share));
  }
  return json;
}

}  // namespace spillway
