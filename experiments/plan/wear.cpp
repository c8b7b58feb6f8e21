#include "experiments/plan/wear.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "exec/store/commit_points.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "policies/cost/commit_interval.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

constexpr double seconds_per_day = 86'400;

double written_by_mean_step(const Schedule& schedule) {
  double bytes = 0;
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::write) bytes += static_cast<double>(task.bytes);
  }
  return bytes / schedule.steps();
}

// What the ranks or stages of a node have, of whose schedules one is known, and what they write in
// a mean step.
struct OfNode {
  double stores = 1;  // as many as this one
  double step_bytes = 0;
};

OfNode of_node(const Schedule& schedule, bool durable) {
  const Problem& problem = schedule.problem();
  const auto all = static_cast<double>(problem.gpus_of_node());
  // Ranks are alike.
  if (problem.workload.pipeline == 1 || problem.rank > 0)
    return {all, all * written_by_mean_step(schedule)};
  const auto written = [durable](const Schedule& stage) {
    const StoreBytes bytes = store_bytes(stage, durable);
    return static_cast<double>(bytes.first_fill + bytes.written_by_commit());
  };
  const std::vector<Schedule> stages = stages_of(schedule);
  OfNode node{0, 0};
  const double first = written(schedule);
  for (std::size_t stage = 0; stage < static_cast<std::size_t>(all); ++stage) {
    node.stores += first > 0 ? written(stages[stage]) / first : 1;
    node.step_bytes += written_by_mean_step(stages[stage]);
  }
  return node;
}

// The space that counts against the capacity of a set of drives.
std::uint64_t counted_bytes(const StoreBytes& store, const Machine& machine, int set) {
  return machine.ssd.count > 0 ? store.on_set[static_cast<std::size_t>(set)] : store.tier;
}

}  // namespace

Durability durability_of(const std::string& text, const std::string& framework) {
  if (text.empty() && load_framework(framework).name != own_framework) return {};
  return parse_durability(text);
}

double Wear::commit_bytes_per_step() const {
  if (commit_every == 0) return 0;
  const double each = stores * static_cast<double>(store.written_by_commit());
  const double regular = each / static_cast<double>(commit_every);
  if (also_every == 0) return regular;
  // Steps that both name are committed once.
  const double common = static_cast<double>(commit_every / std::gcd(commit_every, also_every));
  return regular + (1 - 1 / common) * each / static_cast<double>(also_every);
}

std::optional<double> Wear::bytes_per_day() const {
  if (!step_seconds) return {};
  return bytes_per_step() * seconds_per_day / *step_seconds;
}

std::optional<double> Wear::run_bytes() const {
  if (!steps) return {};
  double bytes = start_bytes + schedule_bytes * static_cast<double>(*steps);
  bytes += static_cast<double>(commits) * stores * static_cast<double>(store.written_by_commit());
  return bytes;
}

std::optional<double> Wear::run_seconds() const {
  if (!steps || !step_seconds) return {};
  const double in_cache = step_seconds_in_cache ? steps_in_cache() : 0;
  return *step_seconds * (static_cast<double>(*steps) - in_cache) +
         step_seconds_in_cache.value_or(0) * in_cache;
}

std::optional<double> Wear::drive_years() const {
  const std::optional<double> daily = bytes_per_day();
  if (rated_bytes == 0 || !daily || *daily == 0) return {};
  return rated_bytes / *daily * seconds_per_day / seconds_per_year;
}

std::optional<double> Wear::share_of_rating() const {
  const std::optional<double> all = run_bytes();
  if (rated_bytes == 0 || !all) return {};
  return *all / rated_bytes;
}

std::optional<double> Wear::steps_until_cache_full() const {
  if (!cache || !step_seconds) return {};
  const double pace = step_seconds_in_cache.value_or(*step_seconds);
  const std::optional<double> full = cache->steps_until_full(bytes_per_step(), pace);
  if (!full) return {};
  return *full * std::max(0.0, 1 - start_bytes / cache->bytes);
}

double Wear::steps_in_cache() const {
  if (!cache || !step_seconds || !steps) return 0;
  const auto all = static_cast<double>(*steps);
  return std::min(all, steps_until_cache_full().value_or(all));
}

bool Wear::ends_in_cache() const {
  return steps_until_cache_full() && steps && start_bytes < cache->bytes &&
         steps_in_cache() >= static_cast<double>(*steps);
}

std::int64_t commits_in(std::int64_t first_step, std::int64_t steps, std::int64_t every,
                        std::int64_t also_every) {
  if (every == 0) return 0;
  const std::int64_t end = first_step + steps;
  const CommitPoints all{every, first_step, 0, end, also_every};
  const bool last_is_one = all.points(end) > all.points(end - 1);
  return all.points(end) - all.points(first_step) + (steps > 0 && !last_is_one ? 1 : 0);
}

Wear wear_of(const StoreBytes& store, const Problem& problem, double schedule_bytes,
             std::optional<double> step_seconds, const WholeRun& run) {
  Wear wear;
  wear.store = store;
  wear.start_bytes = static_cast<double>(wear.store.first_fill);
  if (run.durability.on()) wear.start_bytes += static_cast<double>(wear.store.records) / 2;
  wear.schedule_bytes = schedule_bytes;
  wear.step_seconds = step_seconds;
  wear.steps = run.steps;
  wear.rated_bytes = rated_bytes(problem.machine);
  wear.cache = write_cache_of(problem.machine);
  if (run.durability.on()) {
    const CommitInterval interval =
        commit_interval(wear.store, problem, wear.step_seconds.value_or(0));
    wear.commit_every = run.durability.interval > 0 ? run.durability.interval : interval.steps;
    if (wear.steps) {
      wear.commits = commits_in(0, *wear.steps, wear.commit_every);
      // The last step is committed in any case.
      wear.commit_every =
          std::clamp<std::int64_t>(wear.commit_every, 1, std::max<std::int64_t>(*wear.steps, 1));
    }
    wear.commit_cost_seconds = interval.cost_seconds;
  }
  return wear;
}

Wear wear_of(const Schedule& schedule, const SimulationResult* result, const WholeRun& run) {
  const Problem& problem = schedule.problem();
  const OfNode node = of_node(schedule, run.durability.on());
  const double written = result != nullptr ? result->ssd_bytes_written_per_step : node.step_bytes;
  Wear wear = wear_of(store_bytes(schedule, run.durability.on()), problem, written,
                      result != nullptr ? std::optional(result->step_seconds) : std::nullopt, run);
  wear.stores = node.stores;
  wear.start_bytes *= wear.stores;
  if (result != nullptr && wear.steps && wear.cache && wear.schedule_bytes > 0 &&
      !wear.cache->holds(wear.bytes_per_step(), result->step_seconds)) {
    Machine fast = problem.machine;
    fast.ssd.write = wear.cache->write;
    wear.step_seconds_in_cache = simulate_stages(stages_of(schedule), fast).step_seconds;
  }
  return wear;
}

bool fits_drives(const StoreBytes& store, const Machine& machine) {
  return machine.ssd.count > 0 ? store.lacking(machine) < 0 : store.tier <= machine.ssd.capacity;
}

TierUses with_store(TierUses memory, const StoreBytes& store, const Machine& machine) {
  for (int set = 0; set < std::max(1, machine.drive_sets()); ++set)
    memory[static_cast<std::size_t>(drives_tier(set))].peak_bytes =
        counted_bytes(store, machine, set);
  return memory;
}

TierUses tier_uses(const Schedule& schedule, const Wear& wear) {
  return with_store(tier_uses(schedule), wear.store, schedule.problem().machine);
}

void add_wear(nlohmann::ordered_json& json, const Wear& wear, const Machine& machine) {
  const auto whole = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(std::llround(std::min(*value, 9e18)))
                 : nlohmann::ordered_json();
  };
  const auto number = [](const std::optional<double>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  for (int set = 0; json.contains("memory") && set < std::max(1, machine.drive_sets()); ++set)
    json["memory"][drive_set_name(set)]["peak_bytes"] = counted_bytes(wear.store, machine, set);
  if (json.contains("ssd_bytes_written_per_step"))
    json["ssd_bytes_written_per_step"] = whole(wear.bytes_per_step());
  json["durability"] = {{"commit_every", wear.commit_every},
                        {"bytes_copied_per_commit", wear.store.captured()},
                        {"commit_cost_seconds", wear.commit_cost_seconds},
                        {"store_bytes", wear.store.all()},
                        {"second_copies_bytes", wear.store.second_copies},
                        {"memory_copies_bytes", wear.store.memory_copies}};
  json["wear"] = {
      {"bytes_per_step", whole(wear.bytes_per_step())},
      {"commit_bytes_per_step", whole(wear.commit_bytes_per_step())},
      {"bytes_per_day", whole(wear.bytes_per_day())},
      {"steps", wear.steps ? nlohmann::ordered_json(*wear.steps) : nlohmann::ordered_json()},
      {"run_bytes", whole(wear.run_bytes())},
      {"run_seconds", number(wear.run_seconds())},
      {"rated_bytes", wear.rated_bytes > 0 ? whole(wear.rated_bytes) : nlohmann::ordered_json()},
      {"drive_years", number(wear.drive_years())},
      {"cache_bytes", wear.cache ? whole(wear.cache->bytes) : nlohmann::ordered_json()},
      {"steps_until_cache_full", number(wear.steps_until_cache_full())},
      {"step_seconds_in_cache", number(wear.step_seconds_in_cache)},
      {"share_of_rating", number(wear.share_of_rating())}};
}

}  // namespace spillway
