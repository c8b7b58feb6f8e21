#include "cli/train/preparation.hpp"

#include <fmt/format.h>

#include "base/units.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/train/measure_machine.hpp"

namespace spillway::cli {

TrainListener Preparation::listener() {
  TrainListener listener;
  listener.enter = [](TrainListener::Stage stage) {
    StopSignals::enter(stage == TrainListener::Stage::planning ? StopSignals::Phase::planning
                                                               : StopSignals::Phase::preparing);
  };
  listener.doing = [this](const std::string& what) {
    if (!activity_) activity_.emplace(what);
    activity_->say(what);
  };
  listener.stop = StopSignals::came;
  listener.note = [this](const Message& text) {
    if (!quiet_) print_error(flags_in(text) + "\n");
  };
  listener.checking = [this](std::uint64_t done, std::uint64_t total) {
    checking_.show(
        fmt::format("checking the copy: {} of {}", format_bytes(static_cast<double>(done)),
                    format_bytes(static_cast<double>(total))),
        done == total);
    if (done == total) checking_.finish();
  };
  listener.reading = [this](std::uint64_t done, std::uint64_t total) {
    StopSignals::check("before the first step");
    const auto now = std::chrono::steady_clock::now();
    if (!reading_since_) reading_since_ = now;
    constexpr std::chrono::seconds worth_a_word{2};
    if (now - *reading_since_ < worth_a_word) return;
    end();
    reading_.show(fmt::format("reading the weights: {} of {}",
                              format_bytes(static_cast<double>(done)),
                              format_bytes(static_cast<double>(total))));
    if (done == total) reading_.clear();
  };
  listener.waiting = [](const std::string& what) {
    print_error(fmt::format("waiting for {}\n", what));
  };
  listener.measuring = measuring_progress(quiet_);
  return listener;
}

}  // namespace spillway::cli
