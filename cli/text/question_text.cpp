#include "cli/text/question_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.hpp"
#include "cli/text/plan_text.hpp"

namespace spillway::cli {

namespace {

// The plan in full, below a table: as `estimate` shows one.
std::string plan_text(const Candidate& plan) {
  const SimulationResult& result = *plan.evaluation.result;
  return fmt::format(
      "\n{}{}step         {}   ({:.1f} tokens/s, {} sets the bound, {:.0f} % of it reached)\n{}",
      header_text(plan), memory_text(plan), format_seconds(result.step_seconds),
      result.tokens_per_second, result.bound_by, 100 * result.efficiency,
      wear_text(plan.wear, plan.evaluation.schedule.problem().machine));
}

template <class Row>
std::size_t policy_width(const std::vector<Row>& rows) {
  std::size_t width = 6;
  for (const Row& row : rows) width = std::max(width, row.policy.size());
  return width;
}

std::string point_line(const BatchPoint& point, const BatchPoint& peak, std::size_t width,
                       const char* note) {
  return fmt::format("{:>6} {:>6} {:>10} {:>10.1f} {:>5.1f} % {:<13} {:<{}}{}\n", point.batch,
                     point.micro_batch, format_seconds(point.step_seconds), point.tokens_per_second,
                     100 * point.tokens_per_second / peak.tokens_per_second, point.bound_by,
                     point.policy, width, note);
}

std::string machine_line(const MachinePoint& point, std::size_t width,
                         const std::string& currency) {
  const std::string life = point.drive_years ? life_text(*point.drive_years) : "-";
  return fmt::format("{:>10} {} {:<{}} {:>10.1f} {:>10} {:<13} {:>12}  {}\n",
                     price_text(point.machine.price), currency, point.name, width,
                     point.tokens_per_second, format_seconds(point.step_seconds), point.bound_by,
                     life, point.policy);
}

}  // namespace

std::string tiers_text(const std::vector<Tier>& tiers) {
  std::vector<std::string> names;
  for (const Tier tier : tiers) names.emplace_back(to_string(tier));
  return fmt::format("{}", fmt::join(names, " and "));
}

std::string price_text(double price) {
  return price < 100 ? fmt::format("{:.2f}", price) : fmt::format("{:.0f}", price);
}

std::string plain_digits(double number) {
  return number < 1e6 ? fmt::format("{:g}", number) : fmt::format("{:.0f}", number);
}

std::string life_text(double years) {
  const auto digits = [](double value) {
    return value < 1000 ? fmt::format("{:.3g}", value) : fmt::format("{:.0f}", value);
  };
  if (years < 1) return digits(365.25 * years) + " days";
  return digits(years) + (years == 1 ? " year" : " years");
}

std::string answer_text(const Problem& problem, const SmallestBatch& batch) {
  std::string text = fmt::format(
      "throughput of {} on {} by batch, in sequences of {} tokens\n{:>6} {:>6} {:>10} {:>10} "
      "{:>7} {:<13} policy\n",
      problem.model.name, problem.machine.name, problem.workload.sequence, "batch", "micro", "step",
      "tokens/s", "of peak", "bound by");
  const std::size_t width = policy_width(batch.curve);
  for (const BatchPoint& point : batch.curve) {
    const char* note = point.batch == batch.smallest.batch
                           ? (batch.exact ? "  <- smallest" : "  <- smallest of these")
                       : point.batch != batch.peak.batch ? ""
                       : batch.saturated                 ? "  <- peak"
                                                         : "  <- the most tried";
    text += point_line(point, batch.peak, width, note);
  }
  if (!batch.saturated)
    text += "no peak was found: this stopped where no more fits, or where trying takes too long\n";
  text += fmt::format("{}{} sequences a step reach {:g} % of the {} {:.1f} tokens/s\n",
                      batch.exact ? "" : "at most ", batch.smallest.batch, 100 * batch.share,
                      batch.saturated ? "peak of the batches above," : "most that was tried,",
                      batch.peak.tokens_per_second);
  if (batch.smallest.policy.starts_with("spillway"))
    text +=
        "its plan is of a short search for each batch: one that `spillway tune` finds may reach as "
        "much with fewer sequences\n";
  if (!batch.exact) text += "a smaller batch may do: not all between those above were tried\n";
  return batch.plan ? text + plan_text(*batch.plan) : text;
}

std::string answer_text(const Problem& problem, const CheapestMachine& machine,
                        const PriceList& list) {
  std::string text = fmt::format(
      "cheapest machine for {} at {} tokens/s{}, {} sequences of {} tokens a step\n"
      "{} machines of {}, {} simulated; prices: {}\n",
      problem.model.name, plain_digits(machine.wish.tokens_per_second),
      machine.wish.drive_years > 0
          ? fmt::format(" whose drives last {}", life_text(machine.wish.drive_years))
          : "",
      problem.workload.batch, problem.workload.sequence, machine.machines, list.origin,
      machine.tried, list.source.empty() ? "no source given" : list.source);
  if (machine.left_out > 0)
    text += fmt::format("left out, since there is no such machine: {}, such as {}\n",
                        machine.left_out, machine.why_left_out);
  if (machine.fast_enough.empty()) return text;
  const std::vector<MachinePoint>& rows = machine.fast_enough;
  const bool with_below = machine.fastest_below.has_value();
  std::size_t width = 7;
  for (const MachinePoint& point : rows) width = std::max(width, point.name.size());
  if (with_below) width = std::max(width, machine.fastest_below->name.size());
  text += fmt::format("{:>{}} {:<{}} {:>10} {:>10} {:<13} {:>12}  {}\n", "price",
                      11 + list.currency.size(), "machine", width, "tokens/s", "step", "bound by",
                      "drives last", "policy");
  for (const MachinePoint& point : rows) text += machine_line(point, width, list.currency);
  if (with_below)
    text += "not enough; of those simulated the fastest that is cheaper:\n" +
            machine_line(*machine.fastest_below, width, list.currency);
  return machine.plan ? text + plan_text(*machine.plan) : text;
}

std::string robustness_text(const Robustness& robustness) {
  const auto change = [&](double seconds) {
    return fmt::format("{:+.1f} %", 100 * (seconds / robustness.step_seconds - 1));
  };
  std::string text = fmt::format(
      "the same plan at other rates than the machine file's: {:+.1f} % at worst\n{:<18} {:>10} "
      "{:>10}\n",
      100 * (robustness.worst_seconds() / robustness.step_seconds - 1), "rate",
      fmt::format("-{:g} %", 100 * rate_margin), fmt::format("+{:g} %", 100 * rate_margin));
  for (const RateEffect& one : robustness.rates)
    text += fmt::format("{:<18} {:>10} {:>10}\n", one.rate, change(one.slower_step_seconds),
                        change(one.faster_step_seconds));
  text += fmt::format("{:<18} {:>10} {:>10}\n", "all together",
                      change(robustness.all_slower_seconds), change(robustness.all_faster_seconds));
  const std::vector<double>& random = robustness.random_seconds;
  text += fmt::format("{:<18} {} to {}, median {} ({} draws, seed {})\n", "all at random",
                      change(random.front()), change(random.back()),
                      change(random[random.size() / 2]), random.size(), robustness.seed);
  if (robustness.measured_slow_seconds)
    text += fmt::format("{:<18} {} to {} (20th and 80th percentile of the file's samples)\n",
                        "as measured", change(*robustness.measured_fast_seconds),
                        change(*robustness.measured_slow_seconds));
  if (robustness.assumed_slow_seconds)
    text += fmt::format(
        "{:<18} {} to {} (what the file assumes, over its range: `simulate` names it)\n",
        "as assumed", change(*robustness.assumed_fast_seconds),
        change(*robustness.assumed_slow_seconds));
  return text;
}

}  // namespace spillway::cli
