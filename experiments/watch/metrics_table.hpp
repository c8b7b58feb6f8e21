// RUN/metrics.csv: steps and evaluations as rows, for spreadsheets and data frames.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace spillway {

// The first line, with its break.
std::string metrics_table_head();
// The row of an event, with its break: what the event does not have is empty. Empty for events that
// are neither a step nor an evaluation.
std::string metrics_row(const nlohmann::json& event);

}  // namespace spillway
