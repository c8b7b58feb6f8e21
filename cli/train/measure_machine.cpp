#include "cli/train/measure_machine.hpp"

#include <fmt/format.h>

#include <chrono>

#include "cli/stop_signals.hpp"
#include "cli/text/progress.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

}  // namespace

CalibrationProgress measuring_progress(bool quiet) {
  return [progress = std::make_shared<Progress>(!quiet), began = Clock::now()](
             const std::string& what, int done, int all) {
    StopSignals::check("while measuring this machine");
    const double left = done > 2 ? seconds_since(began) / done * (all - done) : 0;
    const std::string eta = done > 2 ? "  ETA " + format_clock(left) : "";
    progress->show(fmt::format("measuring {}/{}: {}{}", done + 1, all, what, eta));
  };
}

std::string rates_text(const MeasuredRates& rates) {
  const std::string kept = rates.kept_in.empty() ? "" : ", kept in " + rates.kept_in.string();
  return rates.seconds > 0
             ? fmt::format("rates of this machine: measured in {:.1f} s{}", rates.seconds, kept)
             : fmt::format("rates of this machine: measured before{}", kept);
}

nlohmann::ordered_json rates_json(const MeasuredRates& rates) {
  nlohmann::ordered_json json = {{"measured_seconds", rates.seconds}, {"kept_in", nullptr}};
  if (!rates.kept_in.empty()) json["kept_in"] = rates.kept_in.string();
  return json;
}

}  // namespace spillway::cli
