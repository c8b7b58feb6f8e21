// What is said while this computer is measured, and of the rates that were found.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "experiments/train/measured_rates.hpp"

namespace spillway::cli {

// One line on standard error: what is measured now, how much is done, and how long the rest takes.
// A signal to stop ends it: StopSignals::check().
CalibrationProgress measuring_progress(bool quiet);

// Where rates that are known come from.
std::string rates_text(const MeasuredRates& rates);
nlohmann::ordered_json rates_json(const MeasuredRates& rates);

}  // namespace spillway::cli
