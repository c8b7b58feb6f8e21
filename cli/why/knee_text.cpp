#include "cli/why/knee_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/units.hpp"
#include "cli/text/assumptions_text.hpp"
#include "cli/text/plan_text.hpp"
#include "experiments/questions/knee_plot.hpp"
#include "policies/machine/machine_sections.hpp"

namespace spillway::cli {

namespace {

std::string percent(double share) {
  const std::string text = fmt::format("{:.1f} %", 100 * share);
  return text == "-0.0 %" ? "0.0 %" : text;
}

// The next value that counts after the point; nothing: there is none.
const KneePoint* next_of(const KneeCurve& curve, std::size_t point) {
  for (std::size_t i = point + 1; i < curve.points.size(); ++i) {
    if (curve.points[i].counts()) return &curve.points[i];
  }
  return nullptr;
}

std::string summary_line(const KneeCurve& curve) {
  const std::string label = resource_label(curve.resource);
  if (!curve.why_not.empty()) return fmt::format("{:<28} {}\n", label, curve.why_not);
  const KneePoint& now = curve.points[curve.now];
  const KneePoint* next = next_of(curve, curve.now);
  std::string text =
      fmt::format("{:<28} {:>10} {:>10} {:>9}", label, now.text, next ? next->text : "-",
                  now.next_gain ? percent(*now.next_gain) : "-");
  if (!curve.knee) return text + fmt::format("   {}\n", no_knee_text(curve));
  const KneePoint& knee = curve.points[*curve.knee];
  const bool is_least = std::none_of(
      curve.points.begin(), curve.points.begin() + static_cast<std::ptrdiff_t>(*curve.knee),
      [](const KneePoint& point) { return point.counts(); });
  return text + fmt::format(" {:>14} {:>10.1f} {:>8}  {}{}\n", knee.text, knee.tokens_per_second,
                            percent(knee.tokens_per_second / curve.most_tokens_per_second),
                            knee.bound_by, is_least ? ", at the least tried that fits" : "");
}

std::string waits_text(const KneePoint& point) {
  if (point.waits_for.empty()) return "-";
  return fmt::format("{} {:.0f} %", point.waits_for, 100 * point.waits_share);
}

// All of a point's line but its value.
std::string columns_of(const KneePoint& point) {
  return fmt::format("{:>6} {:>10} {:>10.1f}", point.micro_batch,
                     format_seconds(point.step_seconds), point.tokens_per_second) +
         fmt::format(" {:>9}  {:<13} {:<36}", point.next_gain ? percent(*point.next_gain) : "",
                     point.bound_by, waits_text(point)) +
         (point.is_extrapolated ? " extrapolated" : "");
}

bool is_marked(const KneeCurve& curve, std::size_t i) { return i == curve.now || curve.knee == i; }

// The last of the points from i on whose lines are that of point i, but for the value.
std::size_t last_alike(const KneeCurve& curve, std::size_t i) {
  const auto is_alike = [&](KneePoint point) {
    if (!point.next_gain) point.next_gain = curve.points[i].next_gain;  // the last of all
    return point.fits() && columns_of(point) == columns_of(curve.points[i]);
  };
  if (!curve.points[i].fits() || is_marked(curve, i)) return i;
  std::size_t last = i;
  while (last + 1 < curve.points.size() && !is_marked(curve, last + 1) &&
         is_alike(curve.points[last + 1]))
    ++last;
  return last;
}

// Of the points first to last, which are alike.
std::string value_text(const KneeCurve& curve, std::size_t first, std::size_t last) {
  const std::string& text = curve.points[first].text;
  return first == last ? text : text + " to " + curve.points[last].text;
}

std::string points_line(const KneeCurve& curve, std::size_t first, std::size_t last,
                        std::size_t width) {
  const KneePoint& point = curve.points[first];
  std::string text = fmt::format("  {:>{}} ", value_text(curve, first, last), width);
  if (!point.fits()) return text + point.why_not + "\n";
  text += columns_of(point);
  if (first == curve.now) text += " <- now";
  if (curve.knee == first) text += " <- stops paying";
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

// Drives, which are counted, between the knee and the value tried before it.
std::string closer_text(const KneeCurve& curve) {
  if (!curve.knee || !curve.resource.ends_with(".count")) return "";
  const KneePoint* before = nullptr;
  for (std::size_t i = 0; i < *curve.knee; ++i)
    if (curve.points[i].counts()) before = &curve.points[i];
  if (!before) return "";
  const auto low = static_cast<std::int64_t>(before->value);
  const auto high = static_cast<std::int64_t>(curve.points[*curve.knee].value);
  if (high - low < 2) return "";
  constexpr std::int64_t most = 8;  // values between the two
  const std::int64_t step = (high - low + most) / (most + 1);
  std::string values;
  for (std::int64_t value = low; value < high; value += step) values += fmt::format("{},", value);
  return fmt::format(
      "  between {} and {} none that fits was tried: `--resource {}={}{},{}` looks closer\n", low,
      high, curve.resource, values, high, high + (high + 3) / 4);
}

std::string curve_text(const KneeCurve& curve) {
  std::size_t width = 10;
  for (std::size_t i = 0; i < curve.points.size(); i = last_alike(curve, i) + 1)
    width = std::max(width, value_text(curve, i, last_alike(curve, i)).size());
  std::string text = fmt::format("\n{}\n  {:>{}} {:>6} {:>10} {:>10} {:>9}  {:<13} {}\n",
                                 resource_label(curve.resource), "value", width, "micro", "step",
                                 "tokens/s", "next step", "bound by", "the gpu waits most for");
  for (std::size_t i = 0; i < curve.points.size(); i = last_alike(curve, i) + 1)
    text += points_line(curve, i, last_alike(curve, i), width);
  text += closer_text(curve);
  if (curve.in_proportion)
    text +=
        "  bandwidths are taken in proportion to the number of drives, which few machines reach; "
        "`--json` has\n  the settings of each row (`set`)\n";
  const bool is_told = curve.knee && !curve.points[curve.now].is_beyond_table;
  if (curve.table_ends > 0 && curve.table_ends < most_scaled_drives && !is_told)
    text += fmt::format(
        "  drives up to {0} are known ({1}.by_count), and what more bring is not; with "
        "{1}.drive_read and\n  {1}.drive_write in place of that table up to {2} are\n",
        curve.table_ends, curve.resource.substr(0, curve.resource.find('.')), most_scaled_drives);
  return text;
}

// Where the best policy is another one from value to value.
std::string policies_text(const Knees& knees) {
  std::vector<std::string> names;
  for (const KneeCurve& curve : knees.curves) {
    for (const KneePoint& point : curve.points) {
      const std::string name = point.policy.substr(0, point.policy.find(':'));
      if (point.fits() && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
    }
  }
  if (names.size() < 2) return "";
  return fmt::format("policies differ from value to value: {} (`--json` names each)\n",
                     fmt::join(names, ", "));
}

}  // namespace

std::string knee_text(const Candidate& now, const Knees& knees) {
  std::string text =
      header_text(now) +
      fmt::format(
          "{:.1f} tokens/s; a resource stops paying where no more of it that was "
          "tried gains {:g} %\n{}\n",
          now.evaluation.result->tokens_per_second, 100 * knees.threshold, policies_text(knees));
  text += fmt::format("{:<28} {:>10} {:>10} {:>9} {:>14} {:>10} {:>8}  {}\n", "resource", "now",
                      "next", "gains", "stops paying", "tokens/s", "of most", "bound by there");
  for (const KneeCurve& curve : knees.curves) text += summary_line(curve);
  for (const KneeCurve& curve : knees.curves) {
    if (curve.why_not.empty()) text += curve_text(curve);
  }
  const std::string note = assumed_note(now.evaluation.schedule.problem().machine);
  return note.empty() ? text : text + "\n" + note;
}

}  // namespace spillway::cli
