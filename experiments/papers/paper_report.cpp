#include "experiments/papers/paper_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

using Json = nlohmann::ordered_json;

std::string percent(double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); }

// Three significant digits or more.
std::string number(double value) {
  if (value >= 1000) return fmt::format("{:.0f}", value);
  if (value >= 100) return fmt::format("{:.1f}", value);
  if (value >= 1) return fmt::format("{:.2f}", value);
  return fmt::format("{:.3f}", value);
}

const char* fit_word(bool fits) { return fits ? "fits" : "does not fit"; }

std::string published_text(const PublishedValue& value) {
  if (!value.given) return "-";
  return value.number ? number(*value.number) : fit_word(value.fits);
}
std::string simulated_text(const PaperPoint& point) {
  if (!point.published.given) return "-";
  if (!point.fits) return fit_word(false);
  // A number beside a plain "fits" says nothing that could be held against anything.
  return point.published.number || !point.published.fits ? number(*point.simulated)
                                                         : fit_word(true);
}
std::string verdict(const PaperPoint& point) {
  if (!point.published.given) return "";
  if (const auto error = point.error())
    return percent(*error) + (point.published.fitted ? " (fitted)" : "");
  return point.fits == point.published.fits ? "as published" : "not as published";
}

std::string errors_text(const SystemErrors& errors, const std::string& axis) {
  std::string text;
  if (errors.predictions > 0) {
    text = fmt::format("mean error {:.1f} %, worst {} (at {} {}), {} prediction{}",
                       100 * errors.mean, percent(errors.worst), axis, errors.worst_at,
                       errors.predictions, errors.predictions == 1 ? "" : "s");
  }
  if (errors.fitted > 0) {
    text += fmt::format("{}fitted points: mean {:.1f} % ({})", text.empty() ? "" : "; ",
                        100 * errors.fitted_mean, errors.fitted);
  }
  text += fmt::format("{}fits or not as published: {} of {}", text.empty() ? "" : "; ",
                      errors.fits_as_published, errors.fits_known);
  return text;
}

std::string heading(const PaperExperiment& e) {
  std::string quantity = to_string(e.quantity);
  std::replace(quantity.begin(), quantity.end(), '_', ' ');
  std::string settings;
  for (const std::string& one : e.settings) settings += "; " + one;
  return fmt::format("{}, {}: {}{} [{}]", e.name, e.figure, e.title, settings, quantity);
}

std::string order_text(const Ordering& ordering) {
  return fmt::format(
      "Order of the systems: Kendall tau {:.2f} over {} pairs ({} as published, {} "
      "the other way round)",
      ordering.tau(), ordering.pairs, ordering.concordant, ordering.discordant);
}

std::string saturation_text(const Saturation& s) {
  if (s.micro_batches == 0) return "does not fit";
  return fmt::format("{} {} {} micro-batch{}", number(s.tokens_per_second),
                     s.limit ? "in the limit, from" : "at", s.micro_batches,
                     s.micro_batches == 1 ? "" : "es");
}

std::string ratio_heading(const PaperRatio& r) {
  return fmt::format("{} ({}): published {}", r.name, r.figure, number(r.published));
}

void add_markdown(const PaperExperiment& e, const ExperimentResult& result, std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\n### {}\n\nPublished / simulated (error) by {}.\n\n| system |", heading(e),
                 e.axis);
  for (const std::string& value : e.values) fmt::format_to(to, " {} |", value);
  out += " mean error | worst |\n|---|";
  for (std::size_t i = 0; i < e.values.size() + 2; ++i) out += "---|";
  for (const SystemResult& system : result.systems) {
    fmt::format_to(to, "\n| {} (`{}`{}) |", system.name, system.policy,
                   system.framework == own_framework ? "" : " in " + system.framework);
    for (const PaperPoint& point : system.points) {
      if (!point.published.given)
        out += " |";
      else
        fmt::format_to(to, " {} / {} ({}) |", published_text(point.published),
                       simulated_text(point), verdict(point));
    }
    const SystemErrors& errors = system.errors;
    if (errors.predictions > 0)
      fmt::format_to(to, " {:.1f} % | {} |", 100 * errors.mean, percent(errors.worst));
    else if (errors.fitted > 0)
      fmt::format_to(to, " {:.1f} % (fitted) | |", 100 * errors.fitted_mean);
    else
      fmt::format_to(to, " fits or not: {} of {} | |", errors.fits_as_published, errors.fits_known);
  }
  out += "\n";
  if (result.ordering.pairs > 0) out += "\n" + order_text(result.ordering) + ".\n";
}

void add_markdown(const PaperRatio& ratio, const std::vector<RatioRow>& rows, std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\n### {}\n\nSaturated tokens/s of `{}` over `{}`.\n\n", ratio_heading(ratio),
                 ratio.faster, ratio.slower);
  out += "| assumption | faster | slower | ratio | error |\n|---|---|---|---|---|\n";
  for (const RatioRow& row : rows) {
    fmt::format_to(to, "| {} | {} | {} | {} | {} |\n", row.label, saturation_text(row.faster),
                   saturation_text(row.slower), row.ratio ? number(*row.ratio) : "-",
                   row.ratio ? percent(*row.ratio / ratio.published - 1) : "-");
  }
}

void add_summary(const std::vector<PaperResult>& results, std::string& out) {
  out +=
      "| paper | experiment | system | predictions | mean error | worst | fitted points, mean | "
      "fits "
      "as published |\n|---|---|---|---|---|---|---|---|\n";
  const auto to = std::back_inserter(out);
  for (const PaperResult& result : results) {
    for (std::size_t i = 0; i < result.experiments.size(); ++i) {
      for (const SystemResult& system : result.experiments[i].systems) {
        const SystemErrors& e = system.errors;
        fmt::format_to(to, "| {} | {} | {} | {} | {} | {} | {} | {} of {} |\n", result.paper.name,
                       result.paper.experiments[i].name, system.name, e.predictions,
                       e.predictions ? fmt::format("{:.1f} %", 100 * e.mean) : "-",
                       e.predictions ? fmt::format("{} at {}", percent(e.worst), e.worst_at) : "-",
                       e.fitted ? fmt::format("{}, {:.1f} %", e.fitted, 100 * e.fitted_mean) : "-",
                       e.fits_as_published, e.fits_known);
      }
    }
  }
}

Json point_json(const PaperPoint& point) {
  const auto error = point.error();
  return {{"at", point.at},
          {"published", point.published.number ? Json(*point.published.number) : Json(nullptr)},
          {"fits_published", point.published.fits},
          {"fitted", point.published.fitted},
          {"fits", point.fits},
          {"simulated", point.simulated ? Json(*point.simulated) : Json(nullptr)},
          {"error", error ? Json(*error) : Json(nullptr)}};
}

Json system_json(const SystemResult& system) {
  Json points = Json::array();
  for (const PaperPoint& point : system.points) {
    if (point.published.given) points.push_back(point_json(point));
  }
  const SystemErrors& errors = system.errors;
  const bool any = errors.predictions > 0;
  return {{"name", system.name},
          {"policy", system.policy},
          {"framework", system.framework},
          {"points", points},
          {"predictions", errors.predictions},
          {"mean_error", any ? Json(errors.mean) : Json(nullptr)},
          {"worst_error", any ? Json(errors.worst) : Json(nullptr)},
          {"worst_at", any ? Json(errors.worst_at) : Json(nullptr)},
          {"fitted", errors.fitted},
          {"fitted_mean_error", errors.fitted > 0 ? Json(errors.fitted_mean) : Json(nullptr)},
          {"fits_as_published", errors.fits_as_published},
          {"fits_known", errors.fits_known}};
}

Json saturation_json(const Saturation& s) {
  return {{"tokens_per_second", s.tokens_per_second},
          {"micro_batches", s.micro_batches},
          {"limit", s.limit}};
}

Json ratio_json(const PaperRatio& ratio, const std::vector<RatioRow>& rows) {
  Json list = Json::array();
  for (const RatioRow& row : rows) {
    list.push_back({{"label", row.label},
                    {"faster", saturation_json(row.faster)},
                    {"slower", saturation_json(row.slower)},
                    {"ratio", row.ratio ? Json(*row.ratio) : Json(nullptr)},
                    {"error", row.ratio ? Json(*row.ratio / ratio.published - 1) : Json(nullptr)}});
  }
  return {{"name", ratio.name}, {"published", ratio.published}, {"rows", list}};
}

}  // namespace

std::string refit_text(const Paper& paper, const Refit& refit) {
  std::string out = fmt::format(
      "{}: {} points, mean error {:.1f} % before, {:.1f} % at the constants that fit best\n",
      paper.name, refit.points, 100 * refit.before, 100 * refit.after);
  for (const RefitConstant& one : refit.constants) {
    const PaperConstant& constant = paper.constants_chosen[one.constant];
    const std::string value = constant_value(paper, constant);
    fmt::format_to(std::back_inserter(out), "  {:<44} {:>16} -> {:>16}{}{}\n", constant.key, value,
                   scaled_quantity(value, one.factor, 4),
                   one.determined ? "" : "   no point tells it", one.at_bound ? "   a bound" : "");
  }
  return out;
}

Json to_json(const Paper& paper, const Refit& refit) {
  Json constants = Json::array();
  for (const RefitConstant& one : refit.constants) {
    const PaperConstant& constant = paper.constants_chosen[one.constant];
    const std::string value = constant_value(paper, constant);
    constants.push_back({{"key", constant.key},
                         {"in", constant.in},
                         {"before", value},
                         {"value", scaled_quantity(value, one.factor, 6)},
                         {"factor", one.factor},
                         {"determined", one.determined},
                         {"at_bound", one.at_bound}});
  }
  return {{"name", paper.name},
          {"points", refit.points},
          {"mean_error_before", refit.before},
          {"mean_error", refit.after},
          {"evaluations", refit.evaluations},
          {"constants", constants}};
}

std::string paper_text(const PaperResult& result) {
  std::string out =
      fmt::format("{}: {}\n{}\nmachine {}; {}\n", result.paper.name, result.paper.title,
                  result.paper.citation, result.paper.machine, result.paper.constants);
  const auto to = std::back_inserter(out);
  for (std::size_t i = 0; i < result.experiments.size(); ++i) {
    const PaperExperiment& e = result.paper.experiments[i];
    const ExperimentResult& x = result.experiments[i];
    fmt::format_to(to, "\n  {}\n  {:<28} {:>12} {:>13} {:>13}   error\n", heading(e), "system",
                   e.axis, "published", "simulated");
    for (const SystemResult& system : x.systems) {
      for (const PaperPoint& point : system.points) {
        if (!point.published.given) continue;
        fmt::format_to(to, "  {:<28} {:>12} {:>13} {:>13}   {}\n", system.name, point.at,
                       published_text(point.published), simulated_text(point), verdict(point));
      }
      fmt::format_to(to, "  {:<28} {}\n", "", errors_text(system.errors, e.axis));
    }
    if (x.ordering.pairs > 0) fmt::format_to(to, "  {}\n", order_text(x.ordering));
  }
  for (std::size_t i = 0; i < result.ratios.size(); ++i) {
    const PaperRatio& ratio = result.paper.ratios[i];
    fmt::format_to(to, "\n  {}\n  {} over {}, saturated tokens/s\n", ratio_heading(ratio),
                   ratio.faster, ratio.slower);
    fmt::format_to(to, "  {:<44} {:>32} {:>32} {:>7}   error\n", "assumption", "faster", "slower",
                   "ratio");
    for (const RatioRow& row : result.ratios[i]) {
      fmt::format_to(to, "  {:<44} {:>32} {:>32} {:>7}   {}\n", row.label,
                     saturation_text(row.faster), saturation_text(row.slower),
                     row.ratio ? number(*row.ratio) : "-",
                     row.ratio ? percent(*row.ratio / ratio.published - 1) : "-");
    }
  }
  for (const std::string& note : result.paper.notes) fmt::format_to(to, "\n  * {}", note);
  if (!result.paper.notes.empty()) out += "\n";
  return out;
}

std::string accuracy_markdown(const std::vector<PaperResult>& results, const std::string& command) {
  std::string out =
      "# How far the simulator is off\n\n"
      "Published measurements beside what the simulator says of the same setting. Written by\n"
      "`" +
      command +
      "`; a test keeps it up to date.\n\n"
      "One machine file serves all points of a paper. A point on which a constant of that file "
      "was\n"
      "fitted is marked and counts for no error; every other point is a prediction. Errors are\n"
      "simulated / published - 1. How well runs of our own executor are predicted is another "
      "question:\n"
      "`spillway validate`, [train.md](train.md).\n\n";
  add_summary(results, out);
  const auto to = std::back_inserter(out);
  for (const PaperResult& result : results) {
    fmt::format_to(to, "\n## {}: {}\n\n{}\n\nMachine: `{}`. {}\n", result.paper.name,
                   result.paper.title, result.paper.citation, result.paper.machine,
                   result.paper.constants);
    for (std::size_t i = 0; i < result.experiments.size(); ++i)
      add_markdown(result.paper.experiments[i], result.experiments[i], out);
    for (std::size_t i = 0; i < result.ratios.size(); ++i)
      add_markdown(result.paper.ratios[i], result.ratios[i], out);
    if (!result.paper.notes.empty()) out += "\n";
    for (const std::string& note : result.paper.notes) fmt::format_to(to, "* {}\n", note);
  }
  return out;
}

Json to_json(const PaperResult& result) {
  Json experiments = Json::array();
  for (std::size_t i = 0; i < result.experiments.size(); ++i) {
    const PaperExperiment& e = result.paper.experiments[i];
    const ExperimentResult& x = result.experiments[i];
    Json systems = Json::array();
    for (const SystemResult& system : x.systems) systems.push_back(system_json(system));
    experiments.push_back({{"name", e.name},
                           {"figure", e.figure},
                           {"quantity", to_string(e.quantity)},
                           {"axis", e.axis},
                           {"systems", systems},
                           {"kendall_tau", x.ordering.tau()},
                           {"pairs", x.ordering.pairs}});
  }
  Json ratios = Json::array();
  for (std::size_t i = 0; i < result.ratios.size(); ++i)
    ratios.push_back(ratio_json(result.paper.ratios[i], result.ratios[i]));
  return {{"name", result.paper.name},
          {"citation", result.paper.citation},
          {"machine", result.paper.machine},
          {"experiments", experiments},
          {"ratios", ratios}};
}

}  // namespace spillway
