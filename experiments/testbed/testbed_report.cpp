#include "experiments/testbed/testbed_report.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/units.hpp"
#include "policies/cost/link_rates.hpp"
#include "sim/step_interval.hpp"

namespace spillway {

namespace {

using Text = std::string;

template <class... Values>
void add(Text& text, fmt::format_string<Values...> format, Values&&... values) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Values>(values)...);
}

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }
std::string signed_percent(double share) { return fmt::format("{:+.2f} %", 100 * share); }

// Milliseconds, with the digits that a comparison needs.
std::string milliseconds(double seconds) { return fmt::format("{:.1f}", seconds * 1e3); }

void add_corrected_targets(Text& text, const CorrectedSummary& c) {
  if (c.errors.count == 0) return;
  const auto line = [&](const std::string& target, const std::string& measured, bool held) {
    add(text, "| {} | {} | {} |\n", target, measured, held ? "held" : "**missed**");
  };
  // What single runs say stands beside what their means do.
  const auto with_runs = [&](double errors, double runs, const std::string& more) {
    const std::string single =
        c.of_runs.count == c.errors.count ? "" : fmt::format("; of single runs {}", percent(runs));
    return fmt::format("{} ({}{})", percent(errors), more, single);
  };
  line(fmt::format("unthrottled, corrected for drift, median over {} configurations, {} runs: at "
                   "most {}",
                   c.errors.count, c.of_runs.count, percent(target_corrected_median)),
       with_runs(c.errors.median, c.of_runs.median, "bias " + signed_percent(c.errors.bias)),
       c.errors.median <= target_corrected_median);
  line(fmt::format("95th percentile: at most {}", percent(target_corrected_p95)),
       with_runs(c.errors.p95, c.of_runs.p95, "largest " + percent(c.errors.largest)),
       c.errors.p95 <= target_corrected_p95);
  if (c.of_runs.count > c.errors.count)
    add(text,
        "| for comparison: a prediction without error, by the scatter of the runs alone | "
        "median {}, 95th percentile {} | |\n",
        percent(c.noise.median), percent(c.noise.p95));
  line(fmt::format("Kendall's tau: at least {}", target_corrected_tau),
       fmt::format("{:.3f}", c.order.tau()), c.order.tau() >= target_corrected_tau);
  line(fmt::format("intervals that are to hold {:.0f} % of runs hold {:.0f} to {:.0f} %",
                   100 * interval_share, 100 * least_share_inside, 100 * most_share_inside),
       fmt::format("{} of {}, {:.1f} %", c.inside, c.of_runs.count, 100 * c.share_inside()),
       c.share_inside() >= least_share_inside && c.share_inside() <= most_share_inside);
}

void add_targets(Text& text, const TestbedSummary& s) {
  const auto verdict = [](bool held) { return held ? "held" : "**missed**"; };
  double worst = 1;
  std::size_t regimes = 0;
  for (const RegimeSummary& regime : s.regimes) {
    if (!regime.throttled) continue;
    worst = std::min(worst, regime.order.tau());
    ++regimes;
  }
  add(text, "| target | measured | |\n|---|---|---|\n");
  if (s.throttled.count > 0) {
    add(text,
        "| step-time error, median over {} throttled configurations: at most {} | {} | {} |\n",
        s.throttled.count, percent(target_median), percent(s.throttled.median),
        verdict(s.throttled.median <= target_median));
    add(text, "| 95th percentile: at most {} | {} (largest {}) | {} |\n", percent(target_p95),
        percent(s.throttled.p95), percent(s.throttled.largest),
        verdict(s.throttled.p95 <= target_p95));
    add(text,
        "| Kendall's tau of predicted and measured order in each of {} regimes: at least {} | "
        "{:.3f} in the worst | {} |\n",
        regimes, target_tau, worst, verdict(worst >= target_tau));
  }
  if (s.unthrottled.count > 0) {
    add(text,
        "| unthrottled, {} configurations on the real drive, median: at most {} | {} (95th "
        "percentile {}) | {} |\n",
        s.unthrottled.count, percent(target_median_unthrottled), percent(s.unthrottled.median),
        percent(s.unthrottled.p95), verdict(s.unthrottled.median <= target_median_unthrottled));
  }
  add_corrected_targets(text, s.corrected);
  if (!s.tuned.empty()) {
    add(text,
        "| the tuned plan, really trained, is faster than every other policy, really trained, in "
        "at "
        "least {:.0f} % of cases, and nowhere more than {} slower | {} of {}, least {:.3f}x | {} "
        "|\n",
        100 * target_tuned_wins, percent(target_tuned_loss), s.tuned_wins(), s.tuned.size(),
        s.slowest_tuned(), verdict(s.tuned_held()));
  }
  add(text, "\n");
}

void add_tuned(Text& text, const TestbedSummary& s) {
  if (s.tuned.empty()) return;
  add(text,
      "## The tuned plan\n\nPolicy `spillway` without settings: the plan that a short search finds "
      "on the machine stood for, trained like the others.\n*weights*: whether another policy ended "
      "with the "
      "same weights, bit by bit: there are two sets, as micro-batches are taken in ascending or in "
      "snake order.\n\n");
  add(text, "| regime | batch | tuned, ms | fastest other, ms | | speedup | weights |\n");
  add(text, "|---|---|---|---|---|---|---|\n");
  for (const TunedResult& t : s.tuned) {
    add(text, "| {} | {} | {} | {} | {} | {:.3f}x | {} |\n", t.regime, t.batch,
        milliseconds(t.tuned_seconds), milliseconds(t.other_seconds), t.other, t.speedup(),
        t.same_weights ? "the same" : "**others**");
  }
  add(text, "\nThe plans:\n\n");
  for (const TunedResult& t : s.tuned)
    add(text, "* {}, batch {}: `{}`\n", t.regime, t.batch, t.plan);
  add(text, "\n");
}

void add_regimes(Text& text, const TestbedSummary& s) {
  add(text, "## By regime\n\n");
  add(text,
      "| regime | configurations | median | 95th | largest | bias | tau | pairs | tied | tau, no "
      "ties |\n");
  add(text, "|---|---|---|---|---|---|---|---|---|---|\n");
  for (const RegimeSummary& r : s.regimes) {
    add(text, "| {} | {} | {} | {} | {} | {} | {:.3f} | {} | {} | {:.3f} |\n", r.regime,
        r.errors.count, percent(r.errors.median), percent(r.errors.p95), percent(r.errors.largest),
        signed_percent(r.errors.bias), r.order.tau(), r.order.pairs(), r.order.tied,
        r.strict.tau());
  }
  add(text, R"(
* *median*, *95th*, *largest*: of |predicted / measured - 1| over the regime's configurations (nearest rank); *bias*: median with
  its sign, positive where the prediction is too slow.
* *tau*: (concordant - discordant) / pairs, over pairs of policies at the same batch. A pair is *tied*, and left out, where the
  measured step times differ by no more than {}, or by no more than the steps of either run scatter: there is no order
  to predict. *tau, no ties*: every pair counts, be the difference a nanosecond.

)",
      percent(least_resolution));
}

void add_kinds(Text& text, const std::vector<KindSummary>& kinds) {
  add(text, "| kind | configurations | median error | 95th | bias | share of all task time |\n");
  add(text, "|---|---|---|---|---|---|\n");
  double all = 0;
  for (const KindSummary& kind : kinds) all += kind.measured_seconds;
  for (const KindSummary& kind : kinds) {
    add(text, "| {} | {} | {} | {} | {} | {:.2f} % |\n", kind.kind, kind.errors.count,
        percent(kind.errors.median), percent(kind.errors.p95), signed_percent(kind.errors.bias),
        100 * kind.measured_seconds / all);
  }
  add(text, "\n");
}

void add_kinds(Text& text, const TestbedSummary& s) {
  if (!s.kinds.empty()) {
    add(text,
        "## By kind of task\n\nAll tasks of a kind in a step added up, over the throttled "
        "configurations that have any. A measured\ntask counts from when its thread is awake, a "
        "little after the moment from which its time is modelled.\n\n");
    add_kinds(text, s.kinds);
  }
  if (s.kinds_unthrottled.empty()) return;
  add(text,
      "## By kind of task, unthrottled\n\nThe same over the unthrottled configurations, with the "
      "rates of the machine file as they are.\n\n");
  add_kinds(text, s.kinds_unthrottled);
}

// Unthrottled: the prediction as the machine file has it, and corrected for what the machine's
// reference kernels took before and after each run.
void add_corrected_rows(Text& text, const std::string& regime,
                        const std::vector<TestbedRow>& rows) {
  add(text,
      R"(*raw*: with the rates of the machine file. *corrected*: with each rate divided by the drift of its own reference kernels, timed right before
and after a run, and simulated again; nothing is fitted to the run. *interval*: holds {:.0f} % of runs, by the machine file's spreads; beside it,
how many of the configuration's runs lie in theirs. All are means over the *runs*, without a tenth of them, rounded, at either end of the order of
corrected / measured. *of runs*: (80th percentile - 20th) / median of corrected / measured, over the root of the number of runs; of one run,
of its steps.

)",
      100 * interval_share);
  add(text,
      "| policy | batch | raw, ms | corrected, ms | measured, ms | raw error | corrected error | "
      "interval, ms | inside | of runs | compute | memory | drive | runs |\n");
  add(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const TestbedRow& row : rows) {
    if (row.regime != regime || !row.is_corrected()) continue;
    const DriftShares drift = drift_shares(row.drift);
    const std::vector<TestbedRound> runs = row.each_run();
    const auto inside = std::count_if(runs.begin(), runs.end(),
                                      [](const TestbedRound& run) { return run.is_inside(); });
    const auto slower = [](const std::optional<double>& factor) {
      return factor ? fmt::format("{:+.1f} %", 100 * (*factor - 1)) : std::string("-");
    };
    add(text,
        "| {} | {} | {} | {} | {} | {} | {} | {} to {} | {} of {} | {} | {} | {} | {} | {} |\n",
        row.policy, row.batch, milliseconds(row.predicted_seconds),
        milliseconds(row.corrected_seconds), milliseconds(row.measured_seconds),
        signed_percent(row.error()), signed_percent(row.corrected_error()),
        milliseconds(row.interval_low), milliseconds(row.interval_high), inside, runs.size(),
        percent(row.scatter), slower(drift.compute), slower(drift.memory), slower(drift.drive),
        row.runs);
  }
  add(text, "\n");
}

void add_rows(Text& text, const TestbedRegime& regime, const std::vector<TestbedRow>& rows) {
  add(text, "### {}\n\n", regime.name);
  if (regime.throttled()) {
    add(text, "{}: `{}`.\n\n", regime.description, regime.throttle);
  } else {
    add(text, "{}.\n\n", regime.description);
  }
  const bool corrected = std::any_of(rows.begin(), rows.end(), [&](const TestbedRow& row) {
    return row.regime == regime.name && row.is_corrected();
  });
  if (corrected) return add_corrected_rows(text, regime.name, rows);
  add(text,
      "| policy | batch | predicted, ms | measured, ms | error | scatter | overrun | runs |\n");
  add(text, "|---|---|---|---|---|---|---|---|\n");
  for (const TestbedRow& row : rows) {
    if (row.regime != regime.name) continue;
    add(text, "| {} | {} | {} | {} | {} | {} | {} | {} |\n", row.policy, row.batch,
        milliseconds(row.predicted_seconds), milliseconds(row.measured_seconds),
        signed_percent(row.error()), percent(row.scatter),
        regime.throttled() ? percent(row.late) : "-", row.runs);
  }
  add(text, "\n");
}

void add_machine(Text& text, const TestbedCircumstances& c) {
  const Machine& m = c.machine;
  add(text, "## The machine\n\n{}. {}. {}.\n\nCalibrated once, before the first configuration:\n\n",
      c.processor, c.system, c.load);
  add(text, "| | |\n|---|---|\n");
  add(text, "| fastest layer forward | {} |\n", format_flops_per_second(m.gpu.flops));
  add(text, "| memcpy | {} there, {} back; memory {} |\n", format_bytes_per_second(m.pcie.h2d),
      format_bytes_per_second(m.pcie.d2h), format_bytes_per_second(m.host.bandwidth));
  add(text, "| AdamW | {:.2f} Gparam/s |\n", m.host.adam_params_per_second / 1e9);
  add(text, "| drive | reads {}, writes {}, both {} |\n", format_bytes_per_second(m.ssd.read),
      format_bytes_per_second(m.ssd.write),
      format_bytes_per_second(1 / drive_rates(m.ssd, m.ssd.at_queue_depth()).seconds(0.5, 0.5)));
  add(text, "| waking a lane | {} |\n", format_seconds(static_cast<double>(m.gpu.launch_ns) / 1e9));
}

}  // namespace

std::string testbed_markdown(const std::vector<TestbedRegime>& regimes,
                             const std::vector<TestbedRow>& rows,
                             const TestbedCircumstances& circumstances) {
  const TestbedSummary s = summarize(rows);
  Text text = "# Predicted against measured\n\n";
  add(text,
      R"(Every policy, on machines that are not there: the CPU backend keeps the rates of a throttle, trains for real, and the steps it
takes are held against the simulator's. The machine file is calibrated once and the throttle's rates are laid over it as they are;
no configuration is fitted. Written by

```
{}
```

[experiments/testbed](../experiments/testbed/README.md) holds the regimes and says what is done.

)",
      circumstances.command);
  add_targets(text, s);
  add_regimes(text, s);
  add_tuned(text, s);
  add_kinds(text, s);
  add(text, "## Every configuration\n\n");
  add(text,
      R"(*measured*: the median of the steady steps of a run. *scatter*: (80th percentile - 20th) / median of them. *overrun*: time that
real work took beyond the time of the machine stood for / that time, over all lanes: this machine was too slow there. Where scatter and overrun
come to more than {} a throttled run is made again, up to the *runs* shown, and the least disturbed one counts; the prediction has no
part in that. Unthrottled, every run counts.

)",
      percent(most_disturbance));
  for (const TestbedRegime& regime : regimes) {
    const bool any = std::any_of(rows.begin(), rows.end(),
                                 [&](const TestbedRow& row) { return row.regime == regime.name; });
    if (any) add_rows(text, regime, rows);
  }
  add_machine(text, circumstances);
  return text;
}

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

TestbedCircumstances these_circumstances() {
  TestbedCircumstances c;
  std::string model = "an unknown processor";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    model = line.substr(line.find(':') + 2);
    break;
  }
  const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  c.processor = fmt::format("{} core{} of {}", cores, cores == 1 ? "" : "s", model);
  utsname system{};
  uname(&system);
  const int scheduling = sched_getscheduler(0);
  sched_param parameters{};
  if (scheduling == SCHED_FIFO && sched_getparam(0, &parameters) == 0)
    c.command = fmt::format("chrt --fifo {} ", parameters.sched_priority);
  c.system =
      fmt::format("{} {}, threads at {} priority", system.sysname, system.release,
                  scheduling == SCHED_FIFO || scheduling == SCHED_RR ? "real-time" : "normal");
  return c;
}

}  // namespace spillway
