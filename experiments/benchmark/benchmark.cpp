#include "experiments/benchmark/benchmark.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/benchmark/benchmark_json.hpp"
#include "experiments/questions/smallest_batch.hpp"
#include "experiments/sweep/result_file.hpp"
#include "experiments/sweep/sweep_journal.hpp"
#include "experiments/sweep/sweep_table.hpp"
#include "policies/machine/field_reader.hpp"

namespace spillway {

namespace embedded {
const std::vector<std::pair<std::string, std::string>>& benchmark_files();
}

namespace {

constexpr double quarter_less = 0.75;
using Json = nlohmann::ordered_json;

SweepFile load_grid(const std::string& name_or_path) {
  std::vector<std::string> names;
  for (const auto& [file, text] : embedded::benchmark_files()) {
    names.push_back(file.substr(0, file.rfind('.')));
    if (names.back() == name_or_path) return parse_sweep(text, file);
  }
  if (const auto text = read_named_file(name_or_path)) return parse_sweep(*text, name_or_path);
  throw InputError(fmt::format("unknown grid {}", name_or_path),
                   unknown_name_hint(name_or_path, names) + "; a path of a TOML file works too");
}

// The first that runs and whose store fits the drives, evaluated in full.
std::optional<BenchmarkPlan> first_in_full(const ResolvedSettings& settings,
                                           const std::vector<PricedTrial>& fastest_first,
                                           const WholeRun& run) {
  for (const auto& [trial, price] : fastest_first) {
    Problem problem = settings.problem();
    problem.workload.micro_batch = trial.micro_batch;
    if (const auto settle = settings.settle()) settle(problem);
    const Evaluation one = evaluate(problem, price.settled);
    if (!one.result) continue;
    const Wear wear = wear_of(one.schedule, &*one.result, run);
    if (!fits_drives(wear.store, problem.machine)) continue;
    return BenchmarkPlan{one.schedule.policy(), trial.micro_batch, one.result->step_seconds};
  }
  return {};
}

TuneOptions tune_options(const ResolvedSettings& settings, const BenchmarkOptions& options) {
  TuneOptions tuning;
  tuning.choose_micro_batch = settings.best_micro_batch;
  tuning.effort = options.effort;
  tuning.seed = options.seed;
  tuning.threads = options.threads;
  tuning.explains = false;
  tuning.settle = settings.settle();
  return tuning;
}

BenchmarkRow find_row(const ResolvedSettings& settings, const BenchmarkOptions& options) {
  const TuneOptions tuning = tune_options(settings, options);
  const TuneResult found = tune(settings.problem(), tuning);
  BenchmarkRow row;
  row.published = first_in_full(settings, found.published, tuning.run);
  row.built_in = first_in_full(settings, found.runners_up, tuning.run);
  std::vector<PricedTrial> zero_infinity = found.runners_up;
  std::erase_if(zero_infinity, [](const PricedTrial& one) {
    return !one.first.policy.starts_with("zero-infinity");
  });
  row.zero_infinity = first_in_full(settings, zero_infinity, tuning.run);
  if (!found.best) return row;
  const Evaluation& best = found.best->evaluation;
  row.tuned = BenchmarkPlan{best.schedule.policy(), best.schedule.problem().workload.micro_batch,
                            best.result->step_seconds};
  row.bound_seconds = found.bound.seconds;
  row.bound_by = found.bound.limit;
  return row;
}

BatchRow find_batches(const ResolvedSettings& settings, const BenchmarkOptions& options) {
  Problem problem = settings.problem();
  PlansAsked asked;
  asked.policies = {"greedysnake"};
  const SmallestBatch found = smallest_batch(problem, planner_of(asked), *options.share);
  BatchRow row;
  row.batch = found.smallest.batch;
  row.peak_batch = found.peak.batch;
  row.peak_tokens_per_second = found.peak.tokens_per_second;
  for (const BatchPoint& point : found.curve) {
    if (point.batch < row.batch) row.limited_below = point.bound_by;
  }
  row.fewer = static_cast<std::int64_t>(quarter_less * static_cast<double>(row.batch));
  if (!row.is_io_bound() || row.fewer == 0) return row;
  const auto tokens_per_second = [&](std::int64_t batch, double* most) {
    problem.workload.batch = problem.workload.micro_batch = batch;
    const TuneResult tuned = tune(problem, tune_options(settings, options));
    if (most && tuned.bound.seconds > 0)
      *most = static_cast<double>(problem.workload.tokens_per_step()) / tuned.bound.seconds;
    return tuned.best ? tuned.best->evaluation.result->tokens_per_second : 0;
  };
  row.fewer_tokens_per_second = tokens_per_second(row.fewer, &row.most_tokens_per_second);
  row.tuned_peak_tokens_per_second = tokens_per_second(row.peak_batch, nullptr);
  return row;
}

// Points that differ in the batch only, by the first of them; its cell of the batch is empty.
std::vector<SweepPoint> without_batches(const SweepPlan& grid) {
  std::vector<SweepPoint> all;
  const auto batch = static_cast<std::size_t>(
      std::find(grid.keys.begin(), grid.keys.end(), "batch") - grid.keys.begin());
  for (SweepPoint point : grid.points) {
    if (batch < grid.keys.size()) point.cells[batch].clear();
    const bool is_known = std::any_of(all.begin(), all.end(), [&](const SweepPoint& other) {
      return other.cells == point.cells;
    });
    if (!is_known) all.push_back(std::move(point));
  }
  return all;
}

class Run {
 public:
  Run(const SweepPlan& grid, const BenchmarkOptions& options, const BenchmarkListener& listener)
      : grid_(grid), options_(options), listener_(listener) {
    if (options.folder.empty()) return;
    known_ = read_journals(options.folder);
    journal_ = std::make_unique<SweepJournal>(options.folder, "benchmark");
  }

  Benchmark all() {
    const std::vector<SweepPoint> batches =
        options_.share ? without_batches(grid_) : std::vector<SweepPoint>();
    begin("points", grid_.points.size());
    Benchmark found;
    found.keys = grid_.keys;
    for (const SweepPoint& point : grid_.points) {
      const std::string text =
          row_text(point, "", [&] { return to_json(find_row(point.settings, options_)).dump(); });
      found.rows.push_back(benchmark_row(Json::parse(text)));
      found.rows.back().cells = point.cells;
      if (listener_.row) listener_.row(found.rows.back());
      table_.emplace(point.identity, text);
    }
    tell("");
    if (options_.share) begin("machines and models", batches.size());
    for (const SweepPoint& point : batches) {
      const std::string text = row_text(point, fmt::format("batches {}", *options_.share), [&] {
        return to_json(find_batches(point.settings, options_)).dump();
      });
      found.batches.push_back(batch_row(Json::parse(text)));
      found.batches.back().cells = point.cells;
      if (listener_.batch_row) listener_.batch_row(found.batches.back());
    }
    if (options_.share) tell("");
    finish();
    return found;
  }

 private:
  void begin(const char* rows, std::size_t total) {
    progress_ = {};
    progress_.rows = rows;
    progress_.total = total;
    began_ = std::chrono::steady_clock::now();
  }

  // What the journal holds, or else what is found now.
  std::string row_text(const SweepPoint& point, const std::string& question,
                       const std::function<std::string()>& find) {
    const std::string identity = hash_of(fmt::format(
        "benchmark {}\n{}\n{}\n{}", question, options_.effort, options_.seed, point.identity));
    const auto known = known_.find(identity);
    if (known == known_.end()) {
      tell(fmt::format("{}", fmt::join(point.cells, " ")));
      const std::string text = find();
      if (journal_) journal_->append(identity, text);
      ++progress_.found;
      ++progress_.done;
      return text;
    }
    ++progress_.done;
    return known->second;
  }

  void tell(const std::string& what) {
    if (!listener_.progress) return;
    progress_.what = what;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began_;
    progress_.seconds = seconds.count();
    listener_.progress(progress_);
  }

  void finish() {
    if (!journal_) return;
    journal_->sync();
    update_file(options_.folder / "results.csv", to_csv(make_table(grid_, table_)));
  }

  const SweepPlan& grid_;
  const BenchmarkOptions& options_;
  const BenchmarkListener& listener_;
  SweepResults known_, table_;
  std::unique_ptr<SweepJournal> journal_;
  BenchmarkProgress progress_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace

SweepPlan plan_benchmark(const std::string& grid, const std::string& program) {
  SweepFile file = load_grid(grid);
  const auto has_policy = [](const std::string& key) {
    return key == "policy" || policy_of_key(key).has_value();
  };
  for (const SweepAxis& axis : file.axes) {
    if (std::any_of(axis.keys.begin(), axis.keys.end(), has_policy))
      throw InputError(axis.places.front(), 0, "a benchmark compares all policies",
                       "take the axis of policies out");
  }
  for (const auto& [key, place] : file.fixed_places) {
    if (has_policy(key))
      throw InputError(place, 0, "a benchmark compares all policies", "take the line out");
  }
  if (const auto steps = file.fixed_places.find("steps"); steps != file.fixed_places.end())
    throw InputError(steps->second, 0, "a benchmark simulates as many steps as tune does",
                     "take the line out");
  if (!file.plots.empty())
    throw InputError(file.origin, 0, "a benchmark draws no plots", "take [[plot]] out");
  file.fixed["policy"] = "spillway";
  SweepPlan plan = plan_sweep(std::move(file), program);
  for (const SweepPoint& point : plan.points) {
    if (!point.invalid.empty())
      throw InputError(plan.file.origin, 0,
                       fmt::format("{}: {}", fmt::join(point.cells, " "), point.invalid),
                       point.hint);
  }
  return plan;
}

Benchmark run_benchmark(const SweepPlan& grid, const BenchmarkOptions& options,
                        const BenchmarkListener& listener) {
  return Run(grid, options, listener).all();
}

}  // namespace spillway
