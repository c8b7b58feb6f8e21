#include <fmt/format.h>

#include <iterator>

#include "experiments/papers/paper_report.hpp"
#include "experiments/papers/paper_words.hpp"

namespace spillway {

namespace {

// `what` is counted: "prediction", or "point" of what stands apart.
std::string errors_text(const SystemErrors& errors, const std::string& axis, const char* what) {
  std::string text;
  if (errors.predictions > 0) {
    text = fmt::format(
        "mean error {}, worst {} (at {} {}), {} {}{}; closed form {}, ours nearer in {}",
        share_text(errors.mean), percent_text(errors.worst), axis, errors.worst_at,
        errors.predictions, what, errors.predictions == 1 ? "" : "s",
        share_text(errors.closed_form_mean), errors.nearer);
  }
  if (errors.fitted > 0) {
    text += fmt::format("{}fitted or chosen points: mean {} ({})", text.empty() ? "" : "; ",
                        share_text(errors.fitted_mean), errors.fitted);
  }
  if (errors.fits_known > 0)
    text += fmt::format("{}fits or not as published: {} of {}", text.empty() ? "" : "; ",
                        errors.fits_as_published, errors.fits_known);
  return text;
}

void write_experiment(const Paper& paper, const PaperExperiment& e, const ExperimentResult& x,
                      std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\n  {}\n", experiment_heading(e));
  if (!e.apart.empty()) fmt::format_to(to, "  apart: {}\n", e.apart);
  for (const SystemResult& system : x.systems)
    fmt::format_to(to, "  {} is {}\n", system.name, priced_as(e, system, ""));
  fmt::format_to(to, "  {:<28} {:>12} {:>13} {:>13} {:>9} {:>12}   {:<32} counts as\n", "system",
                 e.axis, "published", "simulated", "error", "closed form", "memory");
  for (const SystemResult& system : x.systems) {
    for (const PaperPoint& point : system.points) {
      if (!point.published.given) continue;
      fmt::format_to(to, "  {:<28} {:>12} {:>13} {:>13} {:>9} {:>12}   {:<32} {}\n", system.name,
                     point.at, published_text(point.published), simulated_text(point),
                     verdict_text(point), closed_form_text(point), margin_words(paper, point),
                     role_text(point));
    }
    fmt::format_to(to, "  {:<28} {}\n", "",
                   e.apart.empty() ? errors_text(system.errors, e.axis, "prediction")
                                   : errors_text(errors_apart(system), e.axis, "point"));
  }
  if (x.ordering.pairs > 0) fmt::format_to(to, "  {}\n", order_text(x.ordering));
}

void write_ratio(const PaperRatio& ratio, const std::vector<RatioRow>& rows, std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\n  {}; simulated {}\n  {} over {}, saturated tokens/s\n",
                 ratio_heading(ratio), range_text(rows), ratio.faster, ratio.slower);
  fmt::format_to(to, "  {:<52} {:>52} {:>52} {:>7}\n", "assumption", "faster", "slower", "ratio");
  for (const RatioRow& row : rows) {
    fmt::format_to(to, "  {:<52} {:>52} {:>52} {:>7}{}\n", row.label, saturation_text(row.faster),
                   saturation_text(row.slower), row.ratio ? number_text(*row.ratio) : "-",
                   row.out_of_range().empty() ? "" : "   not in the range: " + row.out_of_range());
  }
}

void write_left_out(const LeaveOneOut& left_out, std::string& out) {
  const auto to = std::back_inserter(out);
  out += "\n  Figures left out of the fit, and predicted\n";
  const auto row = [&](const std::string& name, const std::vector<LeftOutPoint>& points,
                       const std::vector<LeftOutPoint>& closed_form) {
    const LeftOutErrors ours = errors_of(points), theirs = errors_of(closed_form);
    fmt::format_to(to, "  {:<40} {} predicted", name, ours.points);
    if (ours.points > 0)
      fmt::format_to(to, ", mean error {}, worst {} ({}); closed form {}", share_text(ours.mean),
                     percent_text(ours.worst), ours.worst_at, share_text(theirs.mean));
    if (ours.not_determined > 0)
      fmt::format_to(to, "; {} that nothing else tells", ours.not_determined);
    out += "\n";
  };
  for (const Fold& fold : left_out.folds) row(fold.name, fold.points, fold.closed_form);
  row("all", left_out.points(), left_out.closed_form());
}

}  // namespace

std::string refit_text(const Paper& paper, const Refit& refit) {
  std::string out =
      fmt::format("{}: {} points, mean error {} before, {} at the constants that fit best\n",
                  paper.name, refit.points, share_text(refit.before), share_text(refit.after));
  for (const RefitConstant& one : refit.constants) {
    const PaperConstant& constant = paper.constants_chosen[one.constant];
    const std::string value = constant_value(paper, constant);
    fmt::format_to(std::back_inserter(out), "  {:<44} {:>16} -> {:>16}{}{}\n", constant.key, value,
                   scaled_quantity(value, one.factor, 4),
                   one.determined ? "" : "   no point tells it", one.at_bound ? "   a bound" : "");
  }
  return out;
}

std::string paper_text(const PaperReport& report) {
  const PaperResult& result = report.result;
  std::string out =
      fmt::format("{}: {}\n{}\nmachine {}; {}\n", result.paper.name, result.paper.title,
                  result.paper.citation, result.paper.machine, result.paper.constants);
  const auto to = std::back_inserter(out);
  for (std::size_t i = 0; i < result.experiments.size(); ++i)
    write_experiment(result.paper, result.paper.experiments[i], result.experiments[i], out);
  for (std::size_t i = 0; i < result.ratios.size(); ++i)
    write_ratio(result.paper.ratios[i], result.ratios[i], out);
  if (report.left_out) write_left_out(*report.left_out, out);
  const ErrorSums sums = errors_of(result);
  if (sums.predictions > 0)
    fmt::format_to(to, "\n  {} predictions: mean error {}, closed form {}, ours nearer in {}\n",
                   sums.predictions, share_text(sums.mean), share_text(sums.closed_form_mean),
                   sums.nearer);
  fmt::format_to(to, "  {}\n", freedom_text(result));
  for (const std::string& note : result.paper.notes) fmt::format_to(to, "\n  * {}", note);
  if (!result.paper.notes.empty()) out += "\n";
  return out;
}

}  // namespace spillway
