#include "experiments/report/explanation_tables.hpp"

#include <fmt/format.h>

#include "base/units.hpp"
#include "experiments/report/facts.hpp"
#include "experiments/report/html.hpp"

namespace spillway {

namespace {

double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

// Rows of both tables: a name, seconds of a step, a share with a bar, words.
std::vector<Cell> row(const std::string& name, double ns, double whole_ns, int steps,
                      const std::string& words) {
  const double seconds = ns * 1e-9 / steps, share = share_of(ns, whole_ns);
  return {{name},
          number_cell(seconds, format_seconds(seconds)),
          {percentage_text(share), share, share},
          {words}};
}

}  // namespace

std::string stalls_html(const Explanation& why, bool recorded) {
  const StallReport& report = why.stalls;
  const auto idle = static_cast<double>(report.idle_ns);
  const double whole = static_cast<double>(report.busy_ns) + idle;
  const int steps = why.window.steps;
  if (report.idle_ns == 0) return "<p>The GPU is never idle in a steady step.</p>\n";
  std::string text = fmt::format(
      "<p>The GPU is idle {} of a step of {}, {} of it{}. Each moment is charged to the task that "
      "ran then on the chain that held up the next task of the GPU.</p>\n",
      escaped(format_seconds(idle * 1e-9 / steps)), escaped(format_seconds(whole * 1e-9 / steps)),
      escaped(percentage_text(share_of(idle, whole))),
      recorded ? fmt::format(", the mean of {} steady step{}", steps, steps == 1 ? "" : "s") : "");
  if (recorded)
    text +=
        "<p class=\"note\">In a recorded run this includes the time from the end of what a task "
        "waited for to its own start: a row of the GPU's own tasks is the time between two of them "
        "in "
        "which nothing else was waited for.</p>\n";
  PageTable table;
  table.columns = {
      {"while it waits for"}, {"seconds a step", true}, {"share of the step", true}, {"why"}};
  for (const Stall& stall : report.stalls) {
    const std::string words = in_words(stall.wait);
    table.rows.push_back(row(to_string(stall.running), static_cast<double>(stall.ns), whole, steps,
                             words.empty() ? "its data is needed" : words));
  }
  return text + table_html(table);
}

std::string critical_path_html(const Explanation& why, const std::string& caption) {
  const CriticalPath& path = why.critical_path;
  const int steps = why.window.steps;
  const auto whole = static_cast<double>(why.window.end_ns - why.window.begin_ns);
  std::string text;
  if (path.chain_ns > 0)
    text = fmt::format("<p>{} a step if nothing had to be shared.</p>\n",
                       escaped(format_seconds(path.chain_ns * 1e-9 / steps)));
  PageTable table;
  table.caption = caption;
  table.columns = {
      {"task"}, {"seconds a step", true}, {"share of the step", true}, {"lost to sharing"}};
  for (const CriticalPart& part : path.parts)
    table.rows.push_back(row(to_string(part.of), static_cast<double>(part.ns), whole, steps,
                             lost_text(part, steps)));
  return text + table_html(table);
}

}  // namespace spillway
