// spillway runs: the runs in a folder, with what they have come to.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "experiments/watch/run_list.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;
using Row = std::vector<std::string>;

struct RunsOptions {
  std::string folder = "runs";
  bool json = false;
};

// "12 s", "3 min", "5 h", "8 days"
std::string age_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 100 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} days", seconds / 86400);
}

// For a table: policies that were found by a search have long texts.
std::string shortened(const std::string& policy) {
  constexpr std::size_t longest = 40;
  return policy.size() <= longest ? policy : policy.substr(0, longest - 3) + "...";
}

Row row_of(const SeenRun& run) {
  const RunHistory& history = run.history;
  Row row = {printable(run.name), to_string(run.state), printable(history.start().model),
             shortened(printable(history.start().policy))};
  row.push_back(history.begun() ? fmt::format("{}/{}", history.steps_done(), history.start().steps)
                                : "");
  row.push_back(history.steps().empty() ? "" : fmt::format("{:.4f}", history.steps().back().loss));
  row.push_back(history.evaluations().empty()
                    ? ""
                    : fmt::format("{:.4f}", history.evaluations().back().loss));
  const auto speed = history.tokens_per_second();
  row.push_back(speed ? brief_number(*speed) : "");
  row.push_back(run.state == RunState::running && speed ? format_clock(history.seconds_left())
                                                        : "");
  row.push_back(run.age_seconds ? age_text(*run.age_seconds) : "");
  return row;
}

void print_table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      constexpr std::size_t texts = 4;  // numbers stand at the right
      if (i > 0) line += "  ";
      line += i < texts ? fmt::format("{:<{}}", row[i], widths[i])
                        : fmt::format("{:>{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

void list_runs(const RunsOptions& options) {
  const std::vector<SeenRun> runs = look_at_runs(options.folder);
  if (options.json) {
    ordered_json json = {{"folder", options.folder}, {"runs", ordered_json::array()}};
    for (const SeenRun& run : runs) json["runs"].push_back(to_json(run));
    fmt::print("{}\n", to_text(json));
    return;
  }
  if (runs.empty()) {
    fmt::print("there are no runs in {}\n", options.folder);
    return;
  }
  std::vector<Row> rows = {{"run", "state", "model", "policy", "steps", "loss", "evaluation",
                            "tokens/s", "left", "changed"}};
  for (const SeenRun& run : runs) rows.push_back(row_of(run));
  print_table(rows);
}

}  // namespace

void add_runs(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("runs", "list the runs in a folder: state, steps, loss, speed");
  auto options = std::make_shared<RunsOptions>();
  command->add_option("folder", options->folder, "the folder that holds the folders of the runs")
      ->capture_default_str();
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options] { list_runs(*options); });
}

}  // namespace spillway::cli
