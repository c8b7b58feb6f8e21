#include "cli/text/explanation_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.hpp"
#include "sim/causes.hpp"

namespace spillway::cli {

namespace {

constexpr std::size_t lines_at_most = 6;

// One line a part, with its share of the steady steps of `whole_ns`; `note(part)` ends the line.
// All parts add up to `all_ns`.
template <class Part, class Name, class Note>
std::string table(const std::vector<Part>& parts, std::int64_t all_ns, std::int64_t whole_ns,
                  int steps, const Name& name, const Note& note) {
  std::string text;
  std::int64_t left = all_ns;
  const auto line = [&](const std::string& what, std::int64_t ns, const std::string& end) {
    const double share = whole_ns > 0 ? static_cast<double>(ns) / static_cast<double>(whole_ns) : 0;
    const std::string head =
        fmt::format("  {:<30} {:>10} {:>5.1f} %", what,
                    format_seconds(static_cast<double>(ns) * 1e-9 / steps), 100 * share);
    text += end.empty() ? head + "\n" : fmt::format("{}   {}\n", head, end);
  };
  for (std::size_t i = 0; i < std::min(parts.size(), lines_at_most); ++i) {
    line(name(parts[i]), parts[i].ns, note(parts[i]));
    left -= parts[i].ns;
  }
  if (parts.size() > lines_at_most)
    line(fmt::format("{} others", parts.size() - lines_at_most), left, "");
  return text;
}

}  // namespace

std::string critical_path_text(const Explanation& explanation) {
  const SteadyWindow& window = explanation.window;
  const CriticalPath& path = explanation.critical_path;
  std::string text = path.chain_ns > 0
                         ? fmt::format("critical path: {} a step if nothing had to be shared\n",
                                       format_seconds(path.chain_ns * 1e-9 / window.steps))
                         : "critical path, of this stage: to receive is to wait for another, too\n";
  const std::int64_t whole_ns = window.end_ns - window.begin_ns;
  return text + table(
                    path.parts, whole_ns, whole_ns, window.steps,
                    [](const CriticalPart& part) { return to_string(part.of); },
                    [&](const CriticalPart& part) { return lost_text(part, window.steps); });
}

std::string stalls_text(const Explanation& explanation) {
  const SteadyWindow& window = explanation.window;
  const StallReport& report = explanation.stalls;
  if (report.idle_ns == 0) return "gpu never idle\n";
  const std::int64_t whole_ns = report.busy_ns + report.idle_ns;
  return fmt::format("gpu idle {} a step, {:.1f} % of it, while it waits for\n",
                     format_seconds(static_cast<double>(report.idle_ns) * 1e-9 / window.steps),
                     100 * static_cast<double>(report.idle_ns) / static_cast<double>(whole_ns)) +
         table(
             report.stalls, report.idle_ns, whole_ns, window.steps,
             [](const Stall& stall) { return to_string(stall.running); },
             [](const Stall& stall) { return in_words(stall.wait); });
}

std::string longest_stall_text(const Explanation& explanation) {
  const StallReport& report = explanation.stalls;
  if (report.stalls.empty()) return "-";
  const Stall& longest = report.stalls.front();
  const auto whole = static_cast<double>(report.busy_ns + report.idle_ns);
  return fmt::format("{} {:.0f} %", to_string(longest.running),
                     100 * static_cast<double>(longest.ns) / whole);
}

}  // namespace spillway::cli
