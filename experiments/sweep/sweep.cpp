#include "experiments/sweep/sweep.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/errors.hpp"
#include "experiments/plan/candidates.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/price.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/plan/wear.hpp"
#include "experiments/sweep/journal_owner.hpp"
#include "experiments/sweep/result_database.hpp"
#include "experiments/sweep/result_file.hpp"
#include "experiments/sweep/sweep_explanation.hpp"
#include "experiments/sweep/sweep_journal.hpp"
#include "sim/result_json.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* status_ok = "ok";
constexpr const char* status_does_not_fit = "does not fit";
constexpr const char* status_invalid = "invalid";

Json status_json(const char* status, const std::string& reason, const std::string& hint) {
  return {{"status", status}, {"reason", reason}, {"hint", hint}};
}

// Tokens per second that no schedule with this work exceeds, by what the GPU computes and by what
// moves over PCIe and to and from the SSDs.
Json roofs_json(const Problem& problem, const SimulationResult& result) {
  const auto demand = [&](Lane lane) {
    return result.lanes[static_cast<std::size_t>(lane)].demand_seconds;
  };
  double io = 0;
  for (const Lane lane : {Lane::pcie_h2d, Lane::pcie_d2h}) io = std::max(io, demand(lane));
  for (int set = 0; set < most_drive_sets; ++set)
    io = std::max({io, demand(read_lane(set)), demand(write_lane(set))});
  for (const ResourceUse& use : result.resources) {
    const bool is_link = use.name.rfind("ssd", 0) == 0 || use.name.rfind("pcie.", 0) == 0;
    if (is_link) io = std::max(io, use.demand_seconds);
  }
  const auto roof = [&](double seconds) {
    return seconds > 0 ? Json(static_cast<double>(problem.workload.tokens_per_step()) / seconds)
                       : Json(nullptr);
  };
  return {{"compute_tokens_per_second", roof(demand(Lane::gpu_compute))},
          {"io_tokens_per_second", roof(io)}};
}

// Of durability and wear what follows from a step; how long a training is, a sweep does not know.
void leave_out_whole_run(Json& json) {
  const auto keep = [&](const char* object, std::initializer_list<const char*> keys) {
    Json kept;
    for (const char* key : keys)
      kept[key] = json[object].is_null() ? Json(nullptr) : std::move(json[object][key]);
    json[object] = std::move(kept);
  };
  keep("durability", {"commit_every"});
  keep("wear", {"commit_bytes_per_step", "bytes_per_day", "drive_years"});
}

// Why it does not fit, for which the whole schedule is built.
Json misfit_json(const Candidate& candidate) {
  try {
    require_fit(candidate);
  } catch (const FitError& error) {
    return status_json(status_does_not_fit, error.what(), error.hint());
  }
  return status_json(status_ok, "", "");
}

Json evaluated_json(Evaluation of, const WholeRun& run, bool explains) {
  if (!fits_drives(store_bytes(of.schedule, run.durability.on()), of.schedule.problem().machine))
    of.result.reset();
  Candidate candidate{std::move(of), {}};
  const Evaluation& evaluation = candidate.evaluation;
  const Schedule& schedule = evaluation.schedule;
  const SimulationResult* result = evaluation.result ? &*evaluation.result : nullptr;
  candidate.wear = wear_of(schedule, result, run);
  Json json = result != nullptr ? status_json(status_ok, "", "") : misfit_json(candidate);
  json.update(to_json(schedule, result, evaluation.schedule_seconds, evaluation.simulate_seconds));
  json["fits"] = result != nullptr;
  add_wear(json, candidate.wear, schedule.problem().machine);
  add_margins(json, tier_uses(schedule, candidate.wear));
  if (result == nullptr) json["ssd_bytes_written_per_step"] = json["wear"] = nullptr;
  leave_out_explanation(json);
  leave_out_whole_run(json);
  // How often commits pay follows from the time of a step.
  if (result == nullptr && run.durability.on() && run.durability.interval == 0)
    json["durability"]["commit_every"] = nullptr;
  if (explains && result != nullptr) add_explanation(json, schedule, *result);
  json["built"] = evaluation.by_some_steps ? "steps" : "all";
  json["roofs"] = result != nullptr ? roofs_json(schedule.problem(), *result) : Json(nullptr);
  return json;
}

StoreBytes store_of(const Price& price, const WholeRun& run) {
  StoreBytes store = price.store;
  if (run.durability.on()) return store;
  store.second_copies = store.memory_copies = store.records = 0;
  for (int set = 0; set < most_drive_sets; ++set)
    store.on_set[static_cast<std::size_t>(set)] =
        price.memory[static_cast<std::size_t>(drives_tier(set))].peak_bytes;
  return store;
}

// As close to the capacity of the drives as this, the whole schedule says whether the store fits.
bool may_not_fit(const StoreBytes& store, const Machine& machine) {
  constexpr double close = 0.85;
  for (int set = 0; set < machine.drive_sets(); ++set) {
    if (static_cast<double>(store.on_set[static_cast<std::size_t>(set)]) >
        close * static_cast<double>(machine.drives(set).capacity))
      return true;
  }
  return false;
}

Json priced_json(const Problem& problem, const Price& price, const WholeRun& run, int steps) {
  const StoreBytes store = store_of(price, run);
  const Wear wear =
      wear_of(store, problem, price.ssd_bytes_written_per_step, price.step_seconds, run);
  const TierUses memory = with_store(price.memory, store, problem.machine);
  Json json = status_json(status_ok, "", "");
  json.update(to_json(
      ScheduleSummary{problem, price.policy, steps, memory, price.fits, price.schedule_tasks},
      &*price.result, 0, 0));
  add_wear(json, wear, problem.machine);
  leave_out_explanation(json);
  leave_out_whole_run(json);
  json["built"] = "part";
  json["roofs"] = roofs_json(problem, *price.result);
  return json;
}

Json evaluate_json(const SweepPoint& point, EvaluationReuse& reuse) {
  if (!point.invalid.empty()) return status_json(status_invalid, point.invalid, point.hint);
  const ResolvedSettings& settings = point.settings;
  Problem problem = settings.problem();
  const EvaluateOne evaluate_one = with_durability(
      settings.chooses_sequences_at_once ? evaluation_on(problem.machine) : EvaluateOne(evaluate),
      settings.durability);
  const WholeRun run{settings.durability, {}};
  if (is_tuned(settings.policy))
    return evaluated_json(evaluate_tuned(problem, settings.best_micro_batch, settings.steps,
                                         evaluate_one, settings.settle()),
                          run, point.explains);
  if (settings.best_micro_batch)
    return evaluated_json(
        evaluate_best_micro_batch(problem, settings.policy, settings.steps, evaluate_one), run,
        point.explains);
  if (const auto settle = settings.settle()) settle(problem);
  // A price has no times of tasks, from which an explanation follows.
  if (!point.explains) {
    const std::optional<Price> one =
        quick_price_with(reuse.schedules, problem, settings.policy, settings.steps);
    if (one && !may_not_fit(store_of(*one, run), problem.machine))
      return priced_json(problem, *one, run, settings.steps);
  }
  return evaluated_json(
      evaluate_with(reuse, problem, settings.policy, settings.steps, point.explains), run,
      point.explains);
}

std::string journal_name(const std::optional<SweepShard>& shard) {
  return (shard ? fmt::format("shard-{}-of-{}", shard->index, shard->count) : "all") + "." +
         this_kernel();
}

// Workers take the next point until none is left or one fails.
class Pool {
 public:
  Pool(const SweepPlan& plan, const SweepRun& run, SweepState& state, SweepJournal& journal)
      : plan_(plan), run_(run), state_(state), journal_(journal) {}

  void work() {
    const std::size_t threads =
        std::min(static_cast<std::size_t>(std::max(run_.jobs, 1)), state_.missing.size());
    report(0);
    std::vector<std::thread> others;
    try {
      for (std::size_t i = 1; i < threads; ++i) others.emplace_back([this] { take_points(); });
    } catch (...) {
      fail();
    }
    take_points();
    for (std::thread& other : others) other.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void take_points() {
    EvaluationReuse reuse;
    while (!stop_) {
      const std::size_t next = next_++;
      if (next >= state_.missing.size()) return;
      try {
        evaluate_one(plan_.points[state_.missing[next]], reuse);
      } catch (...) {
        fail();
      }
    }
  }

  void evaluate_one(const SweepPoint& point, EvaluationReuse& reuse) {
    std::string json;
    try {
      json = evaluate_point(point, reuse);
    } catch (const std::bad_alloc&) {
      throw MachineError(fmt::format("out of memory with {} points at once", run_.jobs),
                         "use fewer " + Setting{"jobs"} + "; run again: what is done is kept");
    }
    journal_.append(point.identity, json);
    const std::lock_guard lock(mutex_);
    state_.results.emplace(point.identity, std::move(json));
    report(++done_);
  }

  void fail() {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    stop_ = true;
  }

  void report(std::size_t done) const {
    if (!run_.progress) return;
    const auto now = std::chrono::steady_clock::now();
    run_.progress(
        {done, state_.missing.size(), std::chrono::duration<double>(now - began_).count()});
  }

  const SweepPlan& plan_;
  const SweepRun& run_;
  SweepState& state_;
  SweepJournal& journal_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // of what follows, and of state_.results
  std::size_t done_ = 0;
  std::exception_ptr failure_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

void count_status(SweepOutcome& outcome) {
  const std::size_t column = outcome.table.find("status");
  for (const auto& row : outcome.table.rows) {
    const std::string& status = row[column];
    ++(status == status_ok             ? outcome.ok
       : status == status_does_not_fit ? outcome.does_not_fit
                                       : outcome.invalid);
  }
}

}  // namespace

SweepShard parse_shard(const std::string& text) {
  SweepShard shard{0, 0};
  const char* end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, shard.index);
  bool good = error == std::errc() && slash != end && *slash == '/';
  if (good) {
    const auto [stop, second] = std::from_chars(slash + 1, end, shard.count);
    good = second == std::errc() && stop == end;
  }
  if (good && shard.index >= 1 && shard.index <= shard.count) return shard;
  throw InputError(Setting{"shard", text} + " is not I/N with 1 <= I <= N",
                   "the second of eight shards is " + Setting{"shard", "2/8"});
}

std::string evaluate_point(const SweepPoint& point, EvaluationReuse& reuse) {
  try {
    return evaluate_json(point, reuse).dump();
  } catch (const InputError& error) {
    return status_json(status_invalid, error.what(), error.hint()).dump();
  }
}

SweepState inspect_sweep(const SweepPlan& plan, const SweepRun& run) {
  SweepState state;
  SweepResults all = read_journals(run.folder, &state.damaged);
  for (std::size_t i = 0; i < plan.points.size(); ++i) {
    const auto known = all.find(plan.points[i].identity);
    if (known != all.end()) {
      state.results.emplace(known->first, std::move(known->second));
      all.erase(known);
    } else if (!run.shard || i % run.shard->count == run.shard->index - 1) {
      state.missing.push_back(i);
    }
  }
  state.foreign = all.size();
  return state;
}

SweepOutcome run_sweep(const SweepPlan& plan, const SweepRun& run, SweepState state) {
  SweepOutcome outcome;
  outcome.run = state.missing.size();
  outcome.csv = run.folder / "results.csv";
  outcome.database = run.folder / "results.sqlite";
  if (!state.missing.empty()) {
    SweepJournal journal(run.folder, journal_name(run.shard));
    Pool(plan, run, state, journal).work();
    journal.sync();
    // Other shards may have ended meanwhile.
    if (run.shard) state.results.merge(read_journals(run.folder));
  }
  outcome.table = make_table(plan, state.results);
  count_status(outcome);
  outcome.missing = plan.points.size() - outcome.table.rows.size();
  if (outcome.missing > 0) return outcome;
  outcome.written = update_file(outcome.csv, to_csv(outcome.table));
  const bool is_new = update_file(outcome.database, to_sqlite(outcome.table));
  outcome.written = outcome.written || is_new;
  return outcome;
}

}  // namespace spillway
