#include "experiments/watch/metrics_table.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "experiments/watch/run_events.hpp"

namespace spillway {

namespace {

// Keys of both kinds of events; `loss` of an evaluation is in its row.
constexpr const char* columns[] = {"event",
                                   "step",
                                   "loss",
                                   "perplexity",
                                   "learning_rate",
                                   "grad_norm",
                                   "skipped",
                                   "step_seconds",
                                   "tokens_per_second",
                                   "tokens",
                                   "seconds",
                                   "ssd_bytes_read",
                                   "ssd_bytes_written",
                                   "gpu_power_watts",
                                   "gpu_clock_mhz"};

std::string cell(const nlohmann::json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !(found->is_number() || found->is_boolean())) return "";
  if (found->is_number_float()) return fmt::format("{}", found->get<double>());
  return found->dump();
}

}  // namespace

std::string metrics_table_head() {
  std::string line;
  for (const char* column : columns) line += (line.empty() ? "" : ",") + std::string(column);
  return line + "\n";
}

std::string metrics_row(const nlohmann::json& event) {
  std::string row = event_name(event);
  if (row != "step" && row != "evaluation") return "";
  for (const char* column : columns) {
    if (column == columns[0]) continue;
    row += "," + cell(event, column);
  }
  return row + "\n";
}

}  // namespace spillway
