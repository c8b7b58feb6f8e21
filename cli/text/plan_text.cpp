#include "cli/text/plan_text.hpp"

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/progress.hpp"
#include "policies/cost/commit_interval.hpp"
#include "sim/step_interval.hpp"

namespace spillway::cli {

namespace {

std::string bytes_text(std::uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

// When the drives' write cache is full, if ever.
std::string cache_text(const WriteCache& cache, const Wear& wear) {
  const std::string size = format_bytes(cache.bytes),
                    full = format_bytes_per_second(cache.when_full),
                    fast = format_bytes_per_second(cache.write);
  if (!wear.step_seconds) return fmt::format("{} at {}, {} once it is full", size, fast, full);
  const std::optional<double> steps = wear.steps_until_cache_full();
  if (!steps) return fmt::format("{} at {}: never full at this pace", size, fast);
  const std::string until =
      wear.step_seconds_in_cache
          ? fmt::format("{} a step", format_seconds(*wear.step_seconds_in_cache))
          : std::string();
  if (wear.ends_in_cache() && !until.empty())
    return fmt::format("{} at {}: the run is over before it is full, at {}; above, the step at {}",
                       size, fast, until, full);
  if (*steps == 0)
    return fmt::format(
        "{} at {}: full before the first step, then {}, at which the step is predicted", size, fast,
        full);
  return fmt::format(
      "{} at {}: full after some {} step{}{}, then {}, at which the step is predicted", size, fast,
      *steps < 100 ? fmt::format("{:.3g}", *steps) : fmt::format("{:.0f}", *steps),
      *steps == 1 ? "" : "s", until.empty() ? "" : " of " + until, full);
}

// At which rate of writing it would never fill.
std::string cache_rate_text(const WriteCache& cache, const Machine& machine) {
  const auto source = machine.sources.find("ssd.cache");
  const bool assumed = source != machine.sources.end() && source->second.rfind("assumed", 0) == 0;
  const std::string size = assumed ? "its size is assumed; " : "";
  if (cache.recovery > 0)
    return size + fmt::format("written at {} or less on average it never fills",
                              format_bytes_per_second(cache.recovery));
  return size + "how fast the drives empty it while they work is not known: taken not to";
}

std::string commits_text(const Wear& wear) {
  if (wear.commit_every == 0) return "none: nothing can be resumed";
  std::string text =
      wear.commit_every == 1 ? "every step" : fmt::format("every {} steps", wear.commit_every);
  if (wear.step_seconds && wear.commit_every > 1)
    text += fmt::format(" ({})",
                        long_time(static_cast<double>(wear.commit_every) * *wear.step_seconds));
  if (wear.also_every > 0 && wear.also_every % wear.commit_every != 0)
    text += fmt::format(" and every {} for the checkpoints", wear.also_every);
  if (wear.store.captured() == 0) return text + ", at no extra writes of state";
  return text + fmt::format(", each writes {} of optimizer state that rests in memory",
                            format_bytes(static_cast<double>(wear.store.captured()) * wear.stores));
}

}  // namespace

std::string long_time(double seconds) {
  if (seconds < 120) return format_seconds(seconds);
  if (seconds < 3600) return fmt::format("{:.1f} min", seconds / 60);
  if (seconds < 86'400) return fmt::format("{:.1f} h", seconds / 3600);
  if (seconds < seconds_per_year) return fmt::format("{:.1f} days", seconds / 86'400);
  return fmt::format("{:.3g} years", seconds / seconds_per_year);
}

std::string interval_text(const Evaluation& evaluation, const std::string& margin) {
  const SimulationResult& result = *evaluation.result;
  const auto uncertainty =
      step_uncertainty(evaluation.schedule, result, evaluation.schedule.problem().machine);
  if (!uncertainty) return "";
  return fmt::format("{}{} to {} in {:.0f} % of runs\n", margin,
                     format_seconds(uncertainty->low(result.step_seconds)),
                     format_seconds(uncertainty->high(result.step_seconds)), 100 * interval_share);
}

std::string ranks_text(const Problem& problem) {
  if (problem.workload.pipeline > 1)
    return fmt::format(
        "{} stages of a pipeline, a GPU each; memory, lanes and waits are those of stage 0",
        problem.workload.pipeline);
  if (problem.workload.ranks == 1) return "";
  const Ranks ranks = problem.ranks();
  return fmt::format("{} ranks, {} GPU{} on {} node{}: {} sequences a step each", ranks.size(),
                     ranks.inside, ranks.inside == 1 ? "" : "s", ranks.across,
                     ranks.across == 1 ? "" : "s", problem.workload.rank_batch());
}

std::string header_text(const Candidate& candidate) {
  const Schedule& schedule = candidate.evaluation.schedule;
  const Problem& problem = schedule.problem();
  std::string text = fmt::format(
      "{} on {}, policy {}\n  {} sequences of {} tokens a step, {} micro-batch{} of {}\n  {}\n",
      problem.model.name, problem.machine.name, schedule.policy(), problem.workload.batch,
      problem.workload.sequence, problem.workload.micro_batches(),
      problem.workload.micro_batches() == 1 ? "" : "es", problem.workload.micro_batch,
      assumptions_text(problem, schedule.steps()));
  if (const std::string ranks = ranks_text(problem); !ranks.empty())
    text += fmt::format("  {}\n", ranks);
  if (candidate.evaluation.result)
    text += extrapolation_text(candidate.evaluation.result->extrapolates, "  ");
  return text;
}

std::string memory_text(const Candidate& candidate) {
  const Schedule& schedule = candidate.evaluation.schedule;
  const Machine& machine = schedule.problem().machine;
  const StoreBytes& store = candidate.wear.store;
  std::string text;
  for (const Tier tier : memories_of(machine)) {
    const TierUse& use = schedule.use(tier);
    const bool whole_store = is_drives(tier) && machine.ssd.count > 0;
    const std::uint64_t on_set =
        whole_store ? store.on_set[static_cast<std::size_t>(drive_set(tier))] : 0;
    const std::uint64_t peak = whole_store ? on_set : use.peak_bytes;
    text += fmt::format("  {:<5} {:>10} of {:>10}{}", to_string(tier), bytes_text(peak),
                        bytes_text(use.capacity_bytes),
                        peak > use.capacity_bytes ? "   does not fit" : "");
    if (whole_store && store.second_copies + store.memory_copies > 0) {
      const std::uint64_t records = tier == Tier::ssd ? store.records : 0;
      text += fmt::format("   ({} of it copies of optimizer state for commits)",
                          bytes_text(on_set - use.peak_bytes - records));
    }
    if (use.in_place_bytes > 0)
      text += fmt::format("   ({} of frozen weights are read from the model's own files)",
                          bytes_text(use.in_place_bytes));
    if (use.kept_bytes > 0)
      text += fmt::format("   ({} of it kept because memory is left)", bytes_text(use.kept_bytes));
    if (tier == Tier::host && machine.host.reserved > 0)
      text += fmt::format("   (host.reserved keeps {})", bytes_text(machine.host.reserved));
    text += "\n";
  }
  if (schedule.problem().workload.pipeline > 1)
    text += fmt::format("  of stage {}, which has its part of a node's host memory and drives\n",
                        schedule.problem().rank);
  if (schedule.problem().workload.ranks > 1)
    text += "  of a rank each; of host memory and drives it has its part of a node's\n";
  return text;
}

std::string wear_text(const Wear& wear, const Machine& machine, const std::string& margin,
                      int width) {
  std::string text;
  const auto line = [&](const char* label, const std::string& what) {
    text += fmt::format("{}{:<{}}{}\n", margin, label, width, what);
  };
  std::string written = format_bytes(wear.bytes_per_step()) + " a step";
  if (wear.bytes_per_day())
    written += fmt::format(", {} a day", format_bytes(*wear.bytes_per_day()));
  if (wear.commit_bytes_per_step() > 0)
    written += fmt::format(" ({} a step by commits)", format_bytes(wear.commit_bytes_per_step()));
  line("ssd written", written);
  if (wear.cache && wear.bytes_per_step() > 0) {
    const WriteCache& cache = *wear.cache;
    line("write cache", cache_text(cache, wear));
    line("", cache_rate_text(cache, machine));
  }
  line("commits", commits_text(wear));
  if (wear.commit_every > 0 && machine.ssd.count == 0) {
    line("", fmt::format("{} on a drive that the machine file does not describe",
                         bytes_text(wear.store.all())));
  }
  if (wear.run_bytes()) {
    std::string whole =
        fmt::format("{} written in {} step{}{}", format_bytes(*wear.run_bytes()), *wear.steps,
                    *wear.steps == 1 ? "" : "s",
                    wear.first_step > 0 ? fmt::format(", from step {} on", wear.first_step) : "");
    if (wear.run_seconds()) whole += ", " + long_time(*wear.run_seconds());
    line(wear.first_step > 0 ? "still to do" : "whole run", whole);
  }
  if (wear.rated_bytes > 0) {
    std::string life = "rated for " + format_bytes(wear.rated_bytes);
    if (wear.drive_years())
      life += fmt::format(": {} at this rate", long_time(*wear.drive_years() * seconds_per_year));
    if (const std::optional<double> share = wear.share_of_rating())
      life += *share < 1 ? fmt::format("; this run takes {:.2g} % of it", 100 * *share)
                         : fmt::format("; this run writes {:.3g} times that", *share);
    line("drives", life);
  }
  return text;
}

Candidates evaluate_as_asked(const ProblemOptions& options, const Problem& problem,
                             const std::vector<std::string>& policies, const WholeRun& run,
                             int steps) {
  Activity activity("building the schedule");
  return evaluate_candidates(problem, options.chooses_micro_batch(), policies_named(policies), run,
                             steps, options.evaluation(problem, activity), options.settle(problem));
}

void fail_to_fit(const Candidates& candidates, const ProblemOptions& options,
                 const Problem& problem, const std::vector<std::string>& policies,
                 const WholeRun& run, int steps, bool other_policies) {
  FitQuestion question;
  question.other_policies = other_policies;
  question.problem = problem;
  question.choose_micro_batch = options.chooses_micro_batch();
  question.policies = policies_named(policies);
  question.durability = run.durability;
  question.steps = steps;
  question.settle = options.settle(problem);
  Activity activity("looking for what would fit");
  spillway::fail_to_fit(candidates, question);
}

}  // namespace spillway::cli
