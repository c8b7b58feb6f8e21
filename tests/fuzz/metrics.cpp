// metrics.jsonl of a run's folder: any lines, and all that is told from them.
#include <nlohmann/json.hpp>

#include "experiments/watch/closing_table.hpp"
#include "experiments/watch/loss_curve.hpp"
#include "experiments/watch/metrics_table.hpp"
#include "experiments/watch/run_events.hpp"
#include "experiments/watch/run_history.hpp"
#include "experiments/watch/terminal_curve.hpp"
#include "experiments/watch/training_line.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(metrics) {
  const std::string text = fuzz::text_of(input);
  for (const std::int64_t step : {0, 1, 3}) {
    const std::string kept = events_before(text, step);
    fuzz::require(events_before(kept, step) == kept, "what stays stays");
  }
  RunHistory history;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const auto event = read_event(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (!event) continue;
    history.take(*event);
    const std::string row = metrics_row(*event);
    fuzz::require(row.empty() || row.find('\n') == row.size() - 1, "a row is a line");
  }
  const std::string svg = loss_curve_svg(history, "fuzzed");
  for (const char* none : {"\"nan", " nan", "inf ", "-inf"})
    fuzz::require(svg.find(none) == std::string::npos, "the picture has numbers only");
  fuzz::require(svg.size() < 500'000, "the picture is of bounded size");
  for (const std::string& line : loss_curve(history, 60, 8))
    fuzz::require(line.size() <= 60 || history.steps().back().step > 1'000'000, "the curve fits");
  static_cast<void>(closing_table(history, {}));
  if (history.steps().empty()) return;
  fuzz::require(training_line(history, 70).size() <= 70, "the line fits");
  fuzz::require(training_line(history).size() < 3000, "the line is of bounded size");
}
