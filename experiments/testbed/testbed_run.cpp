#include "experiments/testbed/testbed_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "exec/run/training.hpp"
#include "experiments/calibrate/normal_priority.hpp"
#include "experiments/calibrate/sampler.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/sweep/csv_reader.hpp"
#include "experiments/sweep/sweep_table.hpp"
#include "experiments/validate/validate.hpp"

namespace spillway {

namespace {

double scatter_of(const std::vector<double>& seconds) {
  std::vector<std::int64_t> ns;
  for (const double step : seconds) ns.push_back(std::llround(step * 1e9));
  return spread(std::move(ns));
}

void take_correction(const Validation& validation, TestbedRow& row) {
  if (!validation.corrected || !validation.uncertainty) return;
  row.drift = validation.corrected->drift;
  row.corrected_seconds = validation.corrected->predicted_seconds;
  row.interval_low = validation.uncertainty->low(row.corrected_seconds);
  row.interval_high = validation.uncertainty->high(row.corrected_seconds);
}

TestbedRow run_once(const TestbedConfiguration& configuration, const Problem& problem,
                    const TestbedOptions& options) {
  TestbedRow row;
  row.tuned = is_tuned(configuration.policy);
  TrainingOptions training_options;
  training_options.problem = problem;
  training_options.policy =
      row.tuned ? evaluate_tuned(problem, false, options.steps, evaluate).schedule.policy()
                : configuration.policy;
  training_options.steps = options.steps;
  training_options.data = options.data;
  training_options.ssd = options.ssd;
  training_options.throttle = configuration.regime.rates;
  if (options.durable) training_options.durability = {DurabilityMode::on, 0};
  row.plan = training_options.policy;
  const NormalPriority normal(!configuration.regime.throttled());
  const bool timed = options.references != nullptr && !configuration.regime.throttled();
  std::vector<KernelTime> before;
  if (timed) before = options.references->before_training();
  Trace trace;
  {
    Training training(std::move(training_options));
    row.weights_hash =
        fmt::format("{:016x}", training.run([](const StepResult&) {}, &trace).weights_hash);
    if (training.throttle()) row.late = training.throttle()->late_share();
  }
  if (timed) record_references(trace, before, options.references->after_training());
  const Validation validation =
      validate_trace(trace, fmt::format("{}, {}", configuration.regime.name, configuration.policy));
  const TraceComparison& comparison = validation.comparison;
  row.regime = configuration.regime.name;
  row.policy = configuration.policy;
  row.throttled = configuration.regime.throttled();
  row.batch = configuration.batch;
  row.micro_batch = problem.workload.micro_batch;
  row.predicted_seconds = comparison.predicted.median_seconds;
  row.measured_seconds = comparison.measured.median_seconds;
  row.scatter = scatter_of(comparison.measured.seconds);
  row.steps = static_cast<int>(comparison.measured.seconds.size());
  for (const Quantity& kind : comparison.kinds)
    row.kinds.push_back({kind.name, kind.predicted_seconds, kind.measured_seconds});
  take_correction(validation, row);
  return row;
}

double ratio(const TestbedRound& run) {
  return (run.is_corrected() ? run.corrected_seconds : run.predicted_seconds) /
         run.measured_seconds;
}

// At either end of the order of predicted / measured.
std::size_t runs_cut(std::size_t runs) {
  return runs < 3 ? 0 : static_cast<std::size_t>(std::lround(0.1 * static_cast<double>(runs)));
}

std::vector<const TestbedRow*> middle(const std::vector<TestbedRow>& rounds) {
  std::vector<const TestbedRow*> sorted;
  for (const TestbedRow& round : rounds) sorted.push_back(&round);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const TestbedRow* a, const TestbedRow* b) { return ratio(*a) < ratio(*b); });
  const auto cut = static_cast<std::ptrdiff_t>(runs_cut(sorted.size()));
  return {sorted.begin() + cut, sorted.end() - cut};
}

template <class Value>
double mean(const std::vector<const TestbedRow*>& rounds, Value value) {
  double sum = 0;
  for (const TestbedRow* round : rounds) sum += value(*round);
  return sum / static_cast<double>(rounds.size());
}

KindSeconds mean_of_kind(const std::vector<const TestbedRow*>& rounds, const std::string& name) {
  const auto seconds = [&](const TestbedRow& row, double KindSeconds::*which) {
    const auto kind = std::find_if(row.kinds.begin(), row.kinds.end(),
                                   [&](const KindSeconds& one) { return one.kind == name; });
    return kind == row.kinds.end() ? 0 : (*kind).*which;
  };
  return {name,
          mean(rounds, [&](const auto& row) { return seconds(row, &KindSeconds::predicted); }),
          mean(rounds, [&](const auto& row) { return seconds(row, &KindSeconds::measured); })};
}

}  // namespace

std::vector<TestbedRound> TestbedRow::each_run() const {
  return rounds.empty() ? std::vector<TestbedRound>{*this} : rounds;
}

double TestbedRow::standard_error() const {
  if (rounds.size() < 2) return std::numeric_limits<double>::infinity();
  std::vector<double> ratios;
  for (const TestbedRound& run : rounds) ratios.push_back(ratio(run));
  std::sort(ratios.begin(), ratios.end());
  const std::size_t cut = runs_cut(ratios.size());
  for (double& one : ratios) one = std::clamp(one, ratios[cut], ratios[ratios.size() - 1 - cut]);
  const auto count = static_cast<double>(ratios.size());
  double sum = 0, squares = 0;
  for (const double one : ratios) sum += one;
  for (const double one : ratios) squares += std::pow(one - sum / count, 2);
  const double kept = 1 - 2 * static_cast<double>(cut) / count;
  return std::sqrt(squares / (count - 1) / count) / kept / (sum / count);
}

bool wants_another_round(const std::vector<TestbedRow>& runs, int rounds, int most_rounds) {
  const auto made = static_cast<int>(runs.size());
  if (made < rounds) return true;
  return rounds >= fewest_rounds_judged && made < most_rounds &&
         joined(runs).standard_error() > most_standard_error;
}

TestbedRow joined(const std::vector<TestbedRow>& rounds) {
  SPILLWAY_ASSERT(!rounds.empty());
  if (rounds.size() == 1) return rounds.front();
  TestbedRow row = rounds.front();
  const std::vector<const TestbedRow*> counted = middle(rounds);
  const auto mean_of = [&](double TestbedRound::*value) {
    return mean(counted, [&](const TestbedRow& round) { return round.*value; });
  };
  row.measured_seconds = mean_of(&TestbedRound::measured_seconds);
  row.corrected_seconds = mean_of(&TestbedRound::corrected_seconds);
  row.interval_low = mean_of(&TestbedRound::interval_low);
  row.interval_high = mean_of(&TestbedRound::interval_high);
  for (auto& [kind, factor] : row.drift)
    factor = mean(counted, [&](const TestbedRow& round) { return round.drift.at(kind); });
  for (KindSeconds& kind : row.kinds) kind = mean_of_kind(counted, kind.kind);
  std::vector<double> ratios;
  row.runs = 0;
  for (const TestbedRow& round : rounds) {
    // A policy changes time, never numbers; nor does the hour.
    SPILLWAY_ASSERT(round.weights_hash == row.weights_hash);
    row.rounds.push_back(round);
    row.runs += round.runs;
    ratios.push_back(ratio(round));
  }
  row.scatter = scatter_of(ratios) / std::sqrt(static_cast<double>(rounds.size()));
  return row;
}

TestbedRow run_configuration(const TestbedConfiguration& configuration, const Machine& base,
                             const TestbedOptions& options) {
  const Problem problem = configuration.problem(base);
  TestbedRow best = run_once(configuration, problem, options);
  int runs = 1;
  while (configuration.regime.throttled() && best.disturbance() > most_disturbance &&
         runs < options.most_runs) {
    TestbedRow again = run_once(configuration, problem, options);
    ++runs;
    if (again.disturbance() < best.disturbance()) best = std::move(again);
  }
  best.runs = runs;
  return best;
}

namespace {

void add_correction(const TestbedRound& run, nlohmann::ordered_json& json) {
  if (!run.is_corrected()) return;
  json["corrected_seconds"] = run.corrected_seconds;
  json["corrected_error"] = run.corrected_error();
  json["interval_low"] = run.interval_low;
  json["interval_high"] = run.interval_high;
  json["inside"] = run.is_inside();
  json["drift"] = run.drift;
}

// Of a row or of one of its rounds.
void read_round(const nlohmann::ordered_json& json, TestbedRound& run) {
  run.predicted_seconds = json.at("predicted_seconds");
  run.measured_seconds = json.at("measured_seconds");
  run.scatter = json.at("scatter");
  if (!json.contains("drift")) return;
  run.corrected_seconds = json.at("corrected_seconds");
  run.interval_low = json.at("interval_low");
  run.interval_high = json.at("interval_high");
  run.drift = json.at("drift").get<Drift>();
}

}  // namespace

nlohmann::ordered_json to_json(const TestbedRow& row) {
  nlohmann::ordered_json kinds = nlohmann::ordered_json::object();
  for (const KindSeconds& kind : row.kinds)
    kinds[kind.kind] = {{"predicted", kind.predicted}, {"measured", kind.measured}};
  nlohmann::ordered_json json = {{"regime", row.regime},
                                 {"policy", row.policy},
                                 {"plan", row.plan},
                                 {"weights_hash", row.weights_hash},
                                 {"throttled", row.throttled},
                                 {"tuned", row.tuned},
                                 {"batch", row.batch},
                                 {"micro_batch", row.micro_batch},
                                 {"predicted_seconds", row.predicted_seconds},
                                 {"measured_seconds", row.measured_seconds},
                                 {"error", row.error()},
                                 {"scatter", row.scatter},
                                 {"steps", row.steps},
                                 {"runs", row.runs},
                                 {"late", row.late},
                                 {"kinds", kinds}};
  add_correction(row, json);
  if (!row.rounds.empty()) json["standard_error"] = row.standard_error();
  for (const TestbedRound& round : row.rounds) {
    nlohmann::ordered_json one = {{"predicted_seconds", round.predicted_seconds},
                                  {"measured_seconds", round.measured_seconds},
                                  {"error", round.error()},
                                  {"scatter", round.scatter}};
    add_correction(round, one);
    json["rounds"].push_back(std::move(one));
  }
  return json;
}

TestbedRow row_from_json(const nlohmann::ordered_json& json) {
  TestbedRow row;
  row.regime = json.at("regime");
  row.policy = json.at("policy");
  row.plan = json.at("plan");
  row.weights_hash = json.at("weights_hash");
  row.throttled = json.at("throttled");
  row.tuned = json.at("tuned");
  row.batch = json.at("batch");
  row.micro_batch = json.at("micro_batch");
  read_round(json, row);
  row.steps = json.at("steps");
  row.runs = json.at("runs");
  row.late = json.at("late");
  for (const auto& [name, kind] : json.at("kinds").items())
    row.kinds.push_back({name, kind.at("predicted"), kind.at("measured")});
  if (!json.contains("rounds")) return row;
  for (const auto& round : json.at("rounds")) read_round(round, row.rounds.emplace_back());
  return row;
}

std::string to_csv(const std::vector<TestbedRow>& rows) {
  SweepTable table;
  std::vector<std::vector<std::pair<std::string, std::string>>> cells;
  for (const TestbedRow& row : rows) {
    cells.push_back(flatten(to_json(row)));
    for (const auto& [key, text] : cells.back()) {
      if (table.find(key) == table.columns.size()) table.columns.push_back(key);
    }
  }
  for (const auto& row : cells) {
    table.rows.emplace_back(table.columns.size());
    for (const auto& [key, text] : row) table.rows.back()[table.find(key)] = text;
  }
  return to_csv(table);
}

namespace {

// Numbers, truths and lists as the JSON that they are in the cells.
bool is_text(const std::string& column) {
  return column == "regime" || column == "policy" || column == "plan" || column == "weights_hash";
}

// "kinds.forward.predicted" is {"kinds": {"forward": {"predicted": ...}}}; an empty cell is
// nothing.
nlohmann::ordered_json unflattened(const std::vector<std::string>& columns,
                                   const std::vector<std::string>& cells) {
  nlohmann::ordered_json row = {{"kinds", nlohmann::ordered_json::object()}};
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (cells[c].empty() && !is_text(columns[c])) continue;
    if (nested_deeper(cells[c], most_nesting) ||
        std::count(columns[c].begin(), columns[c].end(), '.') > most_nesting)
      continue;
    nlohmann::ordered_json* place = &row;
    std::istringstream keys(columns[c]);
    for (std::string key; std::getline(keys, key, '.');) place = &(*place)[key];
    *place = is_text(columns[c]) ? nlohmann::ordered_json(cells[c])
                                 : nlohmann::ordered_json::parse(cells[c]);
  }
  return row;
}

}  // namespace

std::vector<TestbedRow> rows_from_csv(const std::string& text, const std::string& origin) {
  const SweepTable table = parse_csv(text, origin);
  std::vector<TestbedRow> rows;
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    try {
      rows.push_back(row_from_json(unflattened(table.columns, table.rows[r])));
    } catch (const nlohmann::json::exception& error) {
      throw InputError(
          fmt::format("{}: row {} is none of a testbed: {}", origin, r + 1, error.what()),
          "the file is damaged, or another program wrote it");
    }
  }
  return rows;
}

}  // namespace spillway
