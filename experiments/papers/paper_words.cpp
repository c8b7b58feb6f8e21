#include "experiments/papers/paper_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/papers/paper_points.hpp"

namespace spillway {

namespace {

// A verdict that hangs on less of a memory than this may as well be the other one.
constexpr double narrow_margin = 0.02;

struct LargestModelVerdicts {
  int known = 0, unseen = 0;
};
// Verdicts of experiments that ask which models fit, and show no numbers.
LargestModelVerdicts largest_model_verdicts(const PaperResult& result) {
  LargestModelVerdicts all;
  for (std::size_t e = 0; e < result.experiments.size(); ++e) {
    const PaperExperiment& experiment = result.paper.experiments[e];
    if (experiment.axis != "model") continue;
    for (const SystemResult& system : result.experiments[e].systems) {
      for (const PaperPoint& point : system.points) {
        if (!point.verdict_counts() || point.published.number) continue;
        ++all.known;
        all.unseen += point.verdict_seen_by.empty() ? 1 : 0;
      }
    }
  }
  return all;
}

const char* fit_word(bool fits) { return fits ? "fits" : "does not fit"; }

}  // namespace

std::string percent_text(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }
std::string share_text(double fraction) { return fmt::format("{:.1f} %", 100 * fraction); }

std::string number_text(double value) {
  if (value >= 1000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  if (value >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

std::string published_text(const PublishedValue& value) {
  if (!value.given) return "-";
  return value.number ? number_text(*value.number) : fit_word(value.fits);
}

std::string simulated_text(const PaperPoint& point) {
  if (!point.published.given) return "-";
  if (!point.fits) return fit_word(false);
  // A number beside a plain "fits" says nothing that could be held against anything.
  return point.published.number || !point.published.fits ? number_text(*point.simulated)
                                                         : fit_word(true);
}

std::string verdict_text(const PaperPoint& point) {
  if (!point.published.given) return "";
  if (const auto error = point.error()) return percent_text(*error);
  return point.fits == point.published.fits ? "as published" : "not as published";
}

std::string closed_form_text(const PaperPoint& point) {
  const auto error = point.closed_form_error();
  return error ? percent_text(*error) : "";
}

std::string role_text(const PaperPoint& point) {
  if (!point.same_run_as.empty()) return "the same run as " + point.same_run_as;
  if (!point.error()) return point.verdict_seen_by.empty() ? "memory" : "memory, fitted";
  // Constants that do the same, such as two rates of one path, add up to more than all of it.
  const double share = 100 * std::min(1.0, point.fitted_share);
  if (!point.counts) return fmt::format("apart, {:.0f} % fitted", share);
  if (point.chosen && !point.published.fitted && point.fitted_share < fitted_share_limit)
    return fmt::format("chosen, {:.0f} % fitted", share);
  if (!point.is_fitted()) return fmt::format("prediction, {:.0f} % fitted", share);
  return fmt::format("fitted, {:.0f} % of it", share);
}

std::string margin_words(const Paper& paper, const PaperPoint& point) {
  if (point.of_pipelines) return "-";
  const FitMargin& margin = point.margin;
  const std::string bytes = format_bytes(std::abs(static_cast<double>(margin.bytes)));
  if (!margin.share) return fmt::format("{}: none, {} lacking", to_string(margin.tier), bytes);
  std::string text =
      fmt::format("{}: {} {} ({})", to_string(margin.tier), share_text(std::abs(*margin.share)),
                  margin.fits() ? "left" : "lacking", bytes);
  for (const std::size_t c : point.hangs_on)
    text += fmt::format(", hangs on `{}`", paper.constants_chosen[c].key);
  return text;
}

std::string verdicts_text(const PaperResult& result) {
  SystemErrors all;
  int hanging = 0;
  for (const ExperimentResult& experiment : result.experiments) {
    for (const SystemResult& system : experiment.systems) {
      all.fits_known += system.errors.fits_known;
      all.fits_as_published += system.errors.fits_as_published;
      all.unseen_known += system.errors.unseen_known;
      all.unseen_as_published += system.errors.unseen_as_published;
      for (const PaperPoint& point : system.points)
        hanging += point.verdict_counts() && !point.hangs_on.empty() ? 1 : 0;
    }
  }
  std::string text = fmt::format(
      "{} of {} verdicts on memory are as published, each run counted once; of the {} that no "
      "constant of memory was chosen in view of, {}. {} would be another one at an end of the "
      "range of a constant that is not better known",
      all.fits_as_published, all.fits_known, all.unseen_known, all.unseen_as_published, hanging);
  if (const auto [known, unseen] = largest_model_verdicts(result); known > 0)
    text +=
        fmt::format(". Of the {} on the largest model that fits, {} are unseen by these constants",
                    known, unseen);
  return text;
}

std::string nearer_text(const PaperResult& result) {
  std::map<std::string, ErrorSums> by_system;
  for (const ExperimentResult& experiment : result.experiments) {
    for (const SystemResult& system : experiment.systems) by_system[system.name].add(system.errors);
  }
  std::string ours, theirs;
  for (const auto& [name, sums] : by_system) {
    if (sums.predictions == 0) continue;
    std::string& list = sums.mean <= sums.closed_form_mean ? ours : theirs;
    list += fmt::format("{}{} ({} against {})", list.empty() ? "" : ", ", name,
                        share_text(sums.mean), share_text(sums.closed_form_mean));
  }
  if (!ours.empty()) ours = "the simulator is nearer for " + ours;
  if (!theirs.empty()) theirs = "the closed form is nearer for " + theirs;
  return ours + (ours.empty() || theirs.empty() ? "" : "; ") + theirs;
}

std::string experiment_heading(const PaperExperiment& e) {
  std::string quantity = to_string(e.quantity);
  std::replace(quantity.begin(), quantity.end(), '_', ' ');
  std::string settings;
  for (const std::string& one : e.settings) settings += "; " + one;
  // The count of the paper, not the model's or the hardware's of `simulate`.
  if (e.flops_per_token > 0)
    quantity += fmt::format(" at {:.4g} GFLOP a token", e.flops_per_token * 1e-9);
  return fmt::format("{}, {}: {}{} [{}]", e.name, e.figure, e.title, settings, quantity);
}

std::string priced_as(const PaperExperiment& experiment, const SystemResult& system,
                      const char* quote) {
  const auto quoted = [&](const std::string& text) { return quote + text + quote; };
  std::string text = quoted(system.policy);
  if (system.framework != own_framework) text += " in " + quoted(system.framework);
  for (const PaperSystem& one : experiment.systems) {
    if (one.name != system.name) continue;
    for (std::size_t i = 0; i < one.framework_settings.size(); ++i) {
      if (framework_at(one, i) != one.framework)
        text += fmt::format(", at {} {}", experiment.values[i], quoted(one.framework_settings[i]));
    }
  }
  return text;
}

std::string order_text(const Ordering& ordering) {
  return fmt::format(
      "Order of the systems: Kendall tau {:.2f} over {} pairs ({} as published, {} "
      "the other way round)",
      ordering.tau(), ordering.pairs, ordering.concordant, ordering.discordant);
}

const char* overlap_text(Overlap overlap) {
  switch (overlap) {
    case Overlap::nothing:
      return "forward + backward + optimizer";
    case Overlap::optimizer:
      return "forward + backward with optimizer";
    case Overlap::all:
      return "the whole step at once";
  }
  SPILLWAY_ASSERT(false);
}

std::string saturation_text(const Saturation& s) {
  if (s.micro_batches == 0) return "does not fit";
  return fmt::format("{} {} {} micro-batch{}, {} of SSD a step", number_text(s.tokens_per_second),
                     s.limit ? "in the limit, from" : "at", s.micro_batches,
                     s.micro_batches == 1 ? "" : "es", format_bytes(s.ssd_bytes));
}

std::string ratio_heading(const PaperRatio& r) {
  return fmt::format("{} ({}): published {}", r.name, r.figure, number_text(r.published));
}

std::string range_text(const std::vector<RatioRow>& rows) {
  const std::optional<RatioRange> range = ratio_range(rows);
  if (!range) return "none: with no assumption both systems use the drives and saturate";
  return fmt::format("{} to {} over {} assumption{} with which both use the drives and saturate",
                     number_text(range->least), number_text(range->most), range->rows,
                     range->rows == 1 ? "" : "s");
}

std::string freedom_text(const PaperResult& result) {
  int continuous = 0, discrete = 0, numbers = 0, verdicts = 0;
  for (const PaperConstant& constant : result.paper.constants_chosen)
    ++(constant.kind == ConstantKind::continuous ? continuous : discrete);
  for (const PointId& point : published_points(result.paper)) {
    if (!counts(result.paper, point)) continue;
    ++(published_at(result.paper, point).number ? numbers : verdicts);
  }
  std::string text = fmt::format("{} continuous constant{} and {} choice{}", continuous,
                                 continuous == 1 ? "" : "s", discrete, discrete == 1 ? "" : "s");
  if (numbers + verdicts > 0)
    text +=
        fmt::format(" for {} numbers and {} bare verdicts on memory that count", numbers, verdicts);
  if (!result.paper.ratios.empty())
    text += fmt::format(" for {} ratios", result.paper.ratios.size());
  return text;
}

std::string fits_text(const SystemResult& system) {
  const bool of_pipelines = std::all_of(
      system.points.begin(), system.points.end(),
      [](const PaperPoint& point) { return point.of_pipelines || !point.published.given; });
  if (of_pipelines) return "-";
  if (system.errors.fits_known == 0) return "counted elsewhere";
  int narrow = 0, hanging = 0;
  for (const PaperPoint& point : system.points) {
    if (!point.verdict_counts()) continue;
    if (point.margin.share && std::abs(*point.margin.share) < narrow_margin) ++narrow;
    if (!point.hangs_on.empty()) ++hanging;
  }
  std::string text =
      fmt::format("{} of {}", system.errors.fits_as_published, system.errors.fits_known);
  const int seen = system.errors.fits_known - system.errors.unseen_known;
  if (seen > 0) text += fmt::format(", {} fitted", seen);
  if (narrow > 0) text += fmt::format(", {} by less than 2 %", narrow);
  if (hanging > 0) text += fmt::format(", {} hang on a constant", hanging);
  return text;
}

SystemErrors errors_apart(const SystemResult& system) {
  std::vector<PaperPoint> points = system.points;
  for (PaperPoint& point : points) {
    point.counts = point.same_run_as.empty();
    point.chosen = false;
    point.fitted_share = 0;
  }
  return errors_of(points);
}

}  // namespace spillway
