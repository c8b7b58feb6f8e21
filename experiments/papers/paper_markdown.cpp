// docs/accuracy.md.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "base/errors.hpp"
#include "experiments/papers/paper_points.hpp"
#include "experiments/papers/paper_report.hpp"
#include "experiments/papers/paper_words.hpp"
#include "policies/framework/framework.hpp"

namespace spillway {

namespace {

const std::string headline_begins = "<!-- the headline begins -->\n";
const std::string headline_ends = "<!-- the headline ends -->\n";

// Factors on a fold's constants, by their places in the paper's file: not shown, but read again by
// the test that holds the headline against the program.
const std::string fitted_begins = "<!-- fitted without it: ", fitted_ends = " -->";

void add_factors(const std::string& paper, const std::string& fold, const char* method,
                 const Refit& refit, std::string& out) {
  out += fitted_begins + paper + "|" + fold + "|" + method + "|";
  const char* separator = "";
  for (const auto& [constant, factor] : refit.tuning()) {
    fmt::format_to(std::back_inserter(out), "{}{} {:.17g}", separator, constant, factor);
    separator = " ";
  }
  out += fitted_ends + "\n";
}

std::string share_or_dash(bool any, double share) { return any ? share_text(share) : "-"; }

std::string intro(const std::string& command) {
  return "# How far the simulator is off\n\n"
         "Published measurements beside what the simulator says of the same setting. Written by\n"
         "`" +
         command +
         "`; a test keeps it up to date.\n\n"
         "One machine file serves all points of a paper. A point on which a constant was fitted, "
         "or\nof which fitted constants say 80 % or more, is marked and is no prediction; nor is "
         "one "
         "that is\nmarked chosen: one of several ways was chosen in view of it, and another way "
         "would change it by more\nthan 2 %, or to another verdict. A quantity of a run that two "
         "figures show counts once. Errors are\nsimulated / published - 1; means are of their "
         "amounts. How\n"
         "well runs of our own executor are predicted is another question: `spillway validate`,\n"
         "[train.md](train.md).\n\n";
}

// Ours with the constants in use, over the points of a fold.
double own_mean(const PaperReport& report, const std::vector<LeftOutPoint>& points, int& count) {
  double sum = 0;
  count = 0;
  for (const LeftOutPoint& point : points) {
    if (!point.determined) continue;
    const PaperPoint& own = report.result.experiments[point.point.experiment]
                                .systems[point.point.system]
                                .points[point.point.value];
    sum += std::abs(own.error().value_or(error_without_fit));
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

struct HeadlineSums {
  double own = 0, left_out = 0, closed_form = 0;
  int points = 0, closed_form_points = 0, not_determined = 0;
};

void add_headline_row(const PaperReport& report, const std::string& name,
                      const std::vector<LeftOutPoint>& points,
                      const std::vector<LeftOutPoint>& closed_form, std::string& out,
                      HeadlineSums* sums) {
  const LeftOutErrors ours = errors_of(points), theirs = errors_of(closed_form);
  int count = 0;
  const double own = own_mean(report, points, count);
  fmt::format_to(
      std::back_inserter(out), "| {} | {} | {} | {} | {} | {} | {} | {} |\n",
      report.result.paper.name, name, ours.points, share_or_dash(ours.points > 0, ours.mean),
      ours.points > 0 ? fmt::format("{} at {}", percent_text(ours.worst), ours.worst_at) : "-",
      share_or_dash(count > 0, own), share_or_dash(theirs.points > 0, theirs.mean),
      ours.not_determined);
  if (!sums) return;
  sums->own += own * count;
  sums->left_out += ours.mean * ours.points;
  sums->closed_form += theirs.mean * theirs.points;
  sums->points += ours.points;
  sums->closed_form_points += theirs.points;
  sums->not_determined += ours.not_determined;
}

// Where the closed form, with constants fitted the same way, predicts better.
std::string nearer_left_out(const std::vector<PaperReport>& reports) {
  std::string text;
  for (const PaperReport& report : reports) {
    if (!report.left_out) continue;
    const LeftOutErrors ours = errors_of(report.left_out->points());
    const LeftOutErrors theirs = errors_of(report.left_out->closed_form());
    if (ours.points == 0 || theirs.points == 0) continue;
    fmt::format_to(std::back_inserter(text), "* {}: {} ({} against {}).\n",
                   report.result.paper.name,
                   ours.mean <= theirs.mean ? "the simulator predicts better"
                                            : "the closed form predicts better",
                   share_text(ours.mean), share_text(theirs.mean));
  }
  return text;
}

// The headline once more, without points that a choice was made in view of.
std::string headline_of_unchosen(const std::vector<PaperReport>& reports) {
  double sum = 0, own = 0;
  int points = 0, chosen = 0;
  for (const PaperReport& report : reports) {
    if (!report.left_out) continue;
    std::vector<LeftOutPoint> kept = report.left_out->points();
    const std::size_t before = kept.size();
    std::erase_if(kept, [&](const LeftOutPoint& point) {
      return !point.determined || is_chosen(report.result.paper, point.point);
    });
    for (const LeftOutPoint& point : report.left_out->points())
      chosen += point.determined && is_chosen(report.result.paper, point.point) ? 1 : 0;
    if (before == 0 || kept.empty()) continue;
    int count = 0;
    own += own_mean(report, kept, count) * static_cast<double>(kept.size());
    sum += errors_of(kept).mean * static_cast<double>(kept.size());
    points += static_cast<int>(kept.size());
  }
  if (points == 0 || chosen == 0) return "";
  return fmt::format(
      "Which of several ways a program goes is no constant that a fit could look for, and stays as "
      "it was chosen. Without\nthe {} points that such a choice was made in view of, and that it "
      "moves (\"chosen\" below), the mean error is {}\nover {} points (own fit: {}).\n\n",
      chosen, share_text(sum / points), points, share_text(own / points));
}

// Papers of which no figure can be left out, for nothing was fitted that a fit could look for.
std::string not_left_out(const std::vector<PaperReport>& reports) {
  std::vector<std::string> names;
  for (const PaperReport& report : reports)
    if (!report.left_out) names.push_back(report.result.paper.name);
  if (names.empty()) return "";
  return fmt::format(
      "Not among these points: {}, whose files give no continuous constant bounds to fit it "
      "again\nwithin. What was "
      "fitted or chosen\nthere is marked, point by point, in the tables below.\n\n",
      fmt::join(names, ", "));
}

// Nothing where no figure was left out.
std::string headline(const std::vector<PaperReport>& reports) {
  HeadlineSums sums;
  std::string factors,
      table =
          "| paper | left out | points | left out, mean error | worst | own fit, mean error | "
          "closed "
          "form, left out | told by nothing else |\n|---|---|---|---|---|---|---|---|\n";
  for (const PaperReport& report : reports) {
    if (!report.left_out) continue;
    for (const Fold& fold : report.left_out->folds) {
      add_headline_row(report, fold.name, fold.points, fold.closed_form, table, nullptr);
      const std::string& paper = report.result.paper.name;
      add_factors(paper, fold.name, "simulator", fold.refit, factors);
      add_factors(paper, fold.name, "closed form", fold.closed_form_refit, factors);
    }
    add_headline_row(report, "**all**", report.left_out->points(), report.left_out->closed_form(),
                     table, &sums);
  }
  if (sums.points == 0) return "";
  return headline_begins +
         fmt::format(
             "**Mean error {} over {} points that the constants have not seen** (own fit: {}; "
             "closed form with constants\nfitted the same way: {}).\n\n",
             share_text(sums.left_out / sums.points), sums.points,
             share_text(sums.own / sums.points),
             share_text(sums.closed_form / std::max(1, sums.closed_form_points))) +
         headline_of_unchosen(reports) +
         "Each figure is left out in turn, with its runs in other figures; the continuous "
         "constants of\nthe paper are fitted on all other points, within bounds, and the figure "
         "is predicted. \"Own fit\"\nis the error of the same points with the constants in use. A "
         "point that hangs on a constant which\nnothing but the figure tells is not counted, but "
         "named in the last column.\n\n" +
         not_left_out(reports) + table + "\n" + nearer_left_out(reports) + "\n" + factors +
         headline_ends + "\n";
}

void add_closed_form(const std::vector<PaperReport>& reports, std::string& out) {
  out +=
      "## Against a closed form\n\n"
      "What a referee would write in two lines, with the same machine and framework files: the "
      "time "
      "of a phase is\nthe largest of FLOPs / `gpu.flops` x `compute.time` (with the pageable "
      "copies, "
      "for which the host thread\nwaits), bytes over PCIe / bandwidth each way, bytes of the "
      "drives / "
      "bandwidth by their law, and parameters /\n`host.adam_rate` with the framework's passes over "
      "them; a step is the sum of the phases that do not overlap\nin the system (named beside it). "
      "Bytes, FLOPs and parameters are those of the schedule; there\n"
      "are no latencies, no waits and no limits of\nmemory. Of predictions only, with the "
      "constants in use:\n\n"
      "| paper | predictions | simulator, mean error | closed form, mean error | simulator nearer "
      "|\n|---|---|---|---|---|\n";
  const auto row = [&](const std::string& name, const ErrorSums& sums) {
    const bool any = sums.predictions > 0;
    fmt::format_to(std::back_inserter(out), "| {} | {} | {} | {} | {} |\n", name, sums.predictions,
                   share_or_dash(any, sums.mean), share_or_dash(any, sums.closed_form_mean),
                   any ? fmt::format("{} of {} ({:.0f} %)", sums.nearer, sums.predictions,
                                     100.0 * sums.nearer / sums.predictions)
                       : "-");
  };
  ErrorSums all;
  for (const PaperReport& report : reports) {
    if (report.result.experiments.empty()) continue;
    row(report.result.paper.name, errors_of(report.result));
    for (const ExperimentResult& experiment : report.result.experiments) {
      for (const SystemResult& system : experiment.systems) all.add(system.errors);
    }
  }
  row("**all**", all);
  out += "\nBy system:\n\n";
  for (const PaperReport& report : reports) {
    const std::string nearer = nearer_text(report.result);
    if (!nearer.empty())
      fmt::format_to(std::back_inserter(out), "* {}: {}.\n", report.result.paper.name, nearer);
  }
  out += "\n";
}

void add_system_row(const PaperResult& result, std::size_t i, const SystemResult& system,
                    const SystemErrors& e, std::string& out) {
  const bool any = e.predictions > 0;
  fmt::format_to(std::back_inserter(out), "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
                 result.paper.name, result.paper.experiments[i].name, system.name, e.predictions,
                 share_or_dash(any, e.mean),
                 any ? fmt::format("{} at {}", percent_text(e.worst), e.worst_at) : "-",
                 share_or_dash(any, e.closed_form_mean),
                 e.fitted ? fmt::format("{}, {}", e.fitted, share_text(e.fitted_mean)) : "-",
                 fits_text(system));
}

const char* const systems_head =
    "| paper | experiment | system | predictions | mean error | worst | closed form | fitted "
    "points, mean | fits as published |\n|---|---|---|---|---|---|---|---|---|\n";

void add_systems(const std::vector<PaperReport>& reports, std::string& out) {
  out += std::string("## All systems\n\n") + systems_head;
  std::string apart;
  std::vector<std::string> reasons;
  for (const PaperReport& report : reports) {
    const PaperResult& result = report.result;
    for (std::size_t i = 0; i < result.experiments.size(); ++i) {
      const std::string& reason = result.paper.experiments[i].apart;
      for (const SystemResult& system : result.experiments[i].systems) {
        if (reason.empty())
          add_system_row(result, i, system, system.errors, out);
        else
          add_system_row(result, i, system, errors_apart(system), apart);
      }
      if (!reason.empty() && (reasons.empty() || reasons.back() != reason))
        reasons.push_back(reason);
    }
  }
  if (apart.empty()) return;
  out += "\nApart, in no mean:";
  for (const std::string& reason : reasons) out += " " + reason + ".";
  out += std::string("\n\n") + systems_head + apart;
}

void add_constants(const PaperResult& result, std::string& out) {
  const Paper& paper = result.paper;
  if (paper.constants_chosen.empty()) return;
  fmt::format_to(std::back_inserter(out),
                 "\n{}:\n\n| constant | kind | value | chosen in view of | points |\n"
                 "|---|---|---|---|---|\n",
                 freedom_text(result));
  for (const PaperConstant& constant : paper.constants_chosen) {
    std::string seen, in;
    for (const std::string& one : constant.seen) seen += (seen.empty() ? "" : "; ") + one;
    for (const std::string& one : constant.in) in += (in.empty() ? " of " : "; ") + one;
    const std::string value = constant_value(paper, constant);
    fmt::format_to(std::back_inserter(out), "| `{}`{} | {} | {} | {} | {} |\n", constant.key, in,
                   constant.kind == ConstantKind::continuous ? "continuous" : "discrete",
                   value.empty() ? "default" : value, seen.empty() ? "-" : seen,
                   seen_count(paper, constant));
  }
}

void add_experiment(const Paper& paper, const PaperExperiment& e, const ExperimentResult& result,
                    std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to, "\n### {}\n\n", experiment_heading(e));
  if (!e.apart.empty()) fmt::format_to(to, "Apart: {}.\n\n", e.apart);
  for (const SystemResult& system : result.systems) {
    fmt::format_to(
        to, "* {}: {}; closed form: {}\n", system.name, priced_as(e, system, "`"),
        e.of_pipelines ? pipeline_closed_form_text(e.quantity) : overlap_text(system.overlap));
  }
  fmt::format_to(
      to,
      "\n| system | {} | published | simulated | error | closed form | tightest memory | "
      "counts as |\n|---|---|---|---|---|---|---|---|\n",
      e.axis);
  for (const SystemResult& system : result.systems) {
    for (const PaperPoint& point : system.points) {
      if (!point.published.given) continue;
      fmt::format_to(to, "| {} | {} | {} | {} | {} | {} | {} | {} |\n", system.name, point.at,
                     published_text(point.published), simulated_text(point), verdict_text(point),
                     closed_form_text(point), margin_words(paper, point), role_text(point));
    }
  }
  if (result.ordering.pairs > 0) out += "\n" + order_text(result.ordering) + ".\n";
}

void add_ratio(const PaperRatio& ratio, const std::vector<RatioRow>& rows, std::string& out) {
  const auto to = std::back_inserter(out);
  fmt::format_to(to,
                 "\n### {}; simulated {}\n\nSaturated tokens/s of `{}` over `{}`, and the bytes "
                 "that each moves from and to its drives in a step.\n\n",
                 ratio_heading(ratio), range_text(rows), ratio.faster, ratio.slower);
  out += "| assumption | faster | slower | ratio | in the range |\n|---|---|---|---|---|\n";
  for (const RatioRow& row : rows) {
    fmt::format_to(to, "| {} | {} | {} | {} | {} |\n", row.label, saturation_text(row.faster),
                   saturation_text(row.slower), row.ratio ? number_text(*row.ratio) : "-",
                   row.out_of_range().empty() ? "yes" : "no: " + row.out_of_range());
  }
}

}  // namespace

std::string accuracy_markdown(const std::vector<PaperReport>& reports, const std::string& command) {
  std::string out = intro(command) + headline(reports);
  add_closed_form(reports, out);
  add_systems(reports, out);
  const auto to = std::back_inserter(out);
  for (const PaperReport& report : reports) {
    const PaperResult& result = report.result;
    fmt::format_to(to, "\n## {}: {}\n\n{}\n\nMachine: `{}`. {}\n", result.paper.name,
                   result.paper.title, result.paper.citation, result.paper.machine,
                   result.paper.constants);
    add_constants(result, out);
    const bool has_memory =
        std::any_of(result.paper.experiments.begin(), result.paper.experiments.end(),
                    [](const PaperExperiment& e) { return !e.of_pipelines; });
    if (has_memory) fmt::format_to(to, "\n{}.\n", verdicts_text(result));
    for (std::size_t i = 0; i < result.experiments.size(); ++i)
      add_experiment(result.paper, result.paper.experiments[i], result.experiments[i], out);
    for (std::size_t i = 0; i < result.ratios.size(); ++i)
      add_ratio(result.paper.ratios[i], result.ratios[i], out);
    if (!result.paper.notes.empty()) out += "\n";
    for (const std::string& note : result.paper.notes) fmt::format_to(to, "* {}\n", note);
  }
  return out;
}

KnownFits known_fits(const std::string& accuracy_markdown, const std::string& paper) {
  KnownFits known;
  std::istringstream lines(accuracy_markdown);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(fitted_begins, 0) != 0) continue;
    // paper | fold | method | place factor place factor ...
    std::istringstream parts(
        line.substr(fitted_begins.size(), line.rfind(fitted_ends) - fitted_begins.size()));
    std::string of, fold, method, factors;
    std::getline(parts, of, '|');
    std::getline(parts, fold, '|');
    std::getline(parts, method, '|');
    std::getline(parts, factors);
    if (of != paper) continue;
    Tuning& tuning = method == "simulator" ? known[fold].simulator : known[fold].closed_form;
    std::istringstream numbers(factors);
    std::size_t constant = 0;
    for (double factor = 0; numbers >> constant >> factor;) tuning[constant] = factor;
  }
  return known;
}

}  // namespace spillway
