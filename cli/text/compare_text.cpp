#include "cli/text/compare_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/units.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/explanation_text.hpp"
#include "cli/text/plan_text.hpp"

namespace spillway::cli {

namespace {

// Longer names of policies stand below the table.
constexpr std::size_t longest_label = 40;

// "host needs 30.00 GB of 24.00 GB", of every tier of which there is too little.
std::string needs_text(const Candidate& candidate) {
  std::string text;
  const Schedule& schedule = candidate.evaluation.schedule;
  const TierUses memory = tier_uses(schedule, candidate.wear);
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    const TierUse& use = memory[static_cast<std::size_t>(tier)];
    if (use.peak_bytes <= use.capacity_bytes) continue;
    const bool by_copies = schedule.use(tier).peak_bytes <= use.capacity_bytes;
    text += fmt::format("{}{}{} needs {} of {}", text.empty() ? "" : ", ",
                        by_copies ? "with durability, " : "", to_string(tier),
                        format_bytes(static_cast<double>(use.peak_bytes)),
                        format_bytes(static_cast<double>(use.capacity_bytes)));
    const Machine::Gpu& gpu = schedule.problem().machine.gpu;
    if (tier == Tier::gpu && gpu.limit > 0)
      text += fmt::format(" beside {} of workspaces",
                          format_bytes(static_cast<double>(gpu.workspaces)));
  }
  return text;
}

std::string why_not(const Candidate& candidate) {
  return needs_text(candidate) + "; " + to_text(margin_of(candidate));
}

// "4 % host"
std::string least_left_text(const Candidate& candidate) {
  const FitMargin margin = margin_of(candidate);
  return fmt::format("{:.0f} % {}", 100 * margin.share.value_or(0), to_string(margin.tier));
}

std::string life_text(const Wear& wear) {
  if (!wear.drive_years()) return "";
  return fmt::format("{:.3g} years", *wear.drive_years());
}

// FLOPs that are computed again, as a share of the model's.
std::string recomputed_text(const SimulationResult& result) {
  if (result.model_tflops <= 0) return "-";
  return fmt::format("{:.0f} %", 100 * (result.hardware_tflops / result.model_tflops - 1));
}

class ComparisonText {
 public:
  ComparisonText(const Problem& problem, const Comparison& comparison)
      : problem_(problem), comparison_(comparison), all_(comparison.candidates.all) {
    for (const Candidate& one : all_) labels_.push_back(label_of(one));
  }

  std::string text() const {
    std::string text = heading() + head();
    for (std::size_t i = 0; i < all_.size(); ++i) text += row(i);
    for (const Refusal& refusal : comparison_.candidates.refused)
      text += fmt::format("{:<{}} cannot run this: {}\n", refusal.policy, width(), refusal.reason);
    text += extrapolation_text(extrapolations()) + assumed_note(problem_.machine);
    if (!comparison_.fastest && all_.size() > 1 && comparison_.candidates.chosen)
      text +=
          "none is called the fastest: fewer than two rows that fit are compared like with like\n";
    return text + long_names();
  }

 private:
  // Its whole text, or as it was asked for with the number of its whole text below the table.
  std::string label_of(const Candidate& one) const {
    const std::string& policy = one.evaluation.schedule.policy();
    if (policy.size() <= longest_label) return policy;
    return fmt::format("{} [{}]", one.asked.substr(0, one.asked.find(':')), labels_.size() + 1);
  }
  std::string long_names() const {
    std::string text;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const std::string& policy = all_[i].evaluation.schedule.policy();
      if (policy.size() > longest_label) text += fmt::format("[{}] {}\n", i + 1, policy);
    }
    return text;
  }
  std::size_t width() const {
    std::size_t width = 6;
    for (const std::string& label : labels_) width = std::max(width, label.size());
    return width;
  }

  std::string heading() const {
    const int steps = all_.front().evaluation.schedule.steps();
    std::string text =
        fmt::format("{} on {}: {} sequences of {} tokens a step\n", problem_.model.name,
                    problem_.machine.name, problem_.workload.batch, problem_.workload.sequence);
    if (const std::string ranks = ranks_text(problem_); !ranks.empty()) text += ranks + "\n";
    return text + assumptions_text(problem_, steps) + "\n" + what_is_compared();
  }

  // Which comparison it is.
  std::string what_is_compared() const {
    std::string text = "compared ";
    if (comparison_.at_best) {
      text += fmt::format("at their best: each policy with the fastest settings found, {} tried",
                          comparison_.settings_tried);
    } else if (comparison_.names_given) {
      text += "as named: each policy with the settings given, else its defaults";
    } else {
      text += "as published: each policy at its defaults";
    }
    text += comparison_.micro_batch
                ? fmt::format(", in micro-batches of {}", *comparison_.micro_batch)
                : std::string(", in the micro-batch that is fastest for it");
    text += fmt::format("; all as run by {}, ", comparison_.framework);
    text += comparison_.recomputation
                ? fmt::format("with recompute={}", to_string(*comparison_.recomputation))
                : std::string("each with a recomputation of its own");
    return text + "\n";
  }

  bool with_run() const { return all_.front().wear.steps.has_value(); }
  bool with_life() const { return all_.front().wear.rated_bytes > 0; }
  std::string extra(const std::string& run, const std::string& life) const {
    return (with_run() ? fmt::format(" {:>10}", run) : "") +
           (with_life() ? fmt::format(" {:>12}", life) : "");
  }

  std::string head() const {
    return fmt::format(
        "{:<{}} {:>5} {:>10} {:>10} {:>8} {:>10} {:<13} {:>6} {:>10} {:>10} {:>10} {:>10} "
        "{:>11}{}  {}\n",
        "policy", width(), "micro", "step", "tokens/s", "TFLOPS", "recomputed", "bound by", "of it",
        "gpu", "host", "ssd", "least left", "ssd written", extra("whole run", "drives last"),
        "the gpu waits most for");
  }

  std::string row(std::size_t i) const {
    const Candidate& one = all_[i];
    const Schedule& schedule = one.evaluation.schedule;
    const std::int64_t micro_batch = schedule.problem().workload.micro_batch;
    if (!one.evaluation.result)
      return fmt::format("{:<{}} {:>5} does not fit: {}{}\n", labels_[i], width(), micro_batch,
                         why_not(one), untried_text(one.evaluation));
    const SimulationResult& r = *one.evaluation.result;
    const auto peak = [&](Tier tier) {
      return format_bytes(static_cast<double>(schedule.use(tier).peak_bytes));
    };
    const std::string ssd = problem_.machine.ssd.count > 0
                                ? format_bytes(static_cast<double>(one.wear.store.all()))
                                : peak(Tier::ssd);
    return fmt::format(
        "{:<{}} {:>5} {:>10} {:>10.1f} {:>8.3g} {:>10} {:<13} {:>4.0f} % {:>10} {:>10} {:>10} "
        "{:>10} {:>11}{}  {}{}{}\n",
        labels_[i], width(), micro_batch, format_seconds(r.step_seconds), r.tokens_per_second,
        r.model_tflops, recomputed_text(r), r.bound_by, 100 * r.efficiency, peak(Tier::gpu),
        peak(Tier::host), ssd, least_left_text(one), format_bytes(one.wear.bytes_per_step()),
        extra(format_bytes(one.wear.run_bytes().value_or(0)), life_text(one.wear)),
        longest_stall_text(explain(schedule, r)), r.extrapolates.empty() ? "" : "  extrapolated",
        mark(i));
  }

  // What rows marked as extrapolated rest on, each once.
  std::vector<std::string> extrapolations() const {
    std::vector<std::string> texts;
    for (const Candidate& one : all_) {
      if (!one.evaluation.result) continue;
      for (const std::string& text : one.evaluation.result->extrapolates) {
        if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
      }
    }
    return texts;
  }

  std::string mark(std::size_t i) const {
    std::vector<std::string> marks;
    const ComparedRow& row = comparison_.rows[i];
    if (!row.follows) {
      marks.push_back(fmt::format("not compared: it recomputes {}", how_much(row.recomputation)));
    } else if (!row.competes && !comparison_.at_best) {
      marks.push_back(row.settings == SettingsBy::search ? "not compared: searched for"
                                                         : "not compared: a variant");
    }
    if (comparison_.fastest == i) marks.push_back("fastest " + in_what());
    if (ties_with_fastest(i)) marks.push_back("as fast as the fastest, to a thousandth");
    if (comparison_.auto_choice == i) marks.push_back("auto takes it");
    if (comparison_.candidates.writes_less == i)
      marks.push_back(fmt::format("within {:g} % of the fastest row, and writes least",
                                  100 * as_good_as_fastest));
    return marks.empty() ? "" : fmt::format("  <- {}", fmt::join(marks, "; "));
  }

  // Among the rows that are compared.
  bool ties_with_fastest(std::size_t i) const {
    if (!comparison_.fastest || *comparison_.fastest == i || !comparison_.rows[i].competes ||
        !all_[i].evaluation.result)
      return false;
    constexpr double thousandth = 1.001;
    return all_[i].evaluation.result->step_seconds <=
           thousandth * all_[*comparison_.fastest].evaluation.result->step_seconds;
  }

  std::string in_what() const {
    std::string text = comparison_.at_best       ? "at its best"
                       : comparison_.names_given ? "as named"
                                                 : "as published";
    if (comparison_.recomputation)
      text += fmt::format(" with recompute={}", to_string(*comparison_.recomputation));
    return text;
  }

  static std::string how_much(Recomputation recomputation) {
    switch (recomputation) {
      case Recomputation::off:
        return "nothing";
      case Recomputation::needed:
        return "what backward needs";
      case Recomputation::full:
        return "whole layers";
      case Recomputation::some:
        return "a part";
    }
    return "";
  }

  const Problem& problem_;
  const Comparison& comparison_;
  const std::vector<Candidate>& all_;
  std::vector<std::string> labels_;
};

}  // namespace

std::string comparison_text(const Problem& problem, const Comparison& comparison) {
  return ComparisonText(problem, comparison).text();
}

}  // namespace spillway::cli
