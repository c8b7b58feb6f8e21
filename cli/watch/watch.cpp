// spillway watch: follows a run until it ends, by what it writes to metrics.jsonl. The run knows
// nothing of it: Ctrl-C ends the watching alone.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/run_lock.hpp"
#include "experiments/watch/run_events.hpp"
#include "experiments/watch/run_list.hpp"
#include "experiments/watch/terminal_curve.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

struct WatchOptions {
  std::string run;
  bool json = false;
};

constexpr std::chrono::milliseconds look_every{500};
constexpr std::size_t curve_rows = 10;
constexpr int most_waits = 120;  // for a run that is planned anew to go on

// A few lines at the bottom of the terminal, drawn again in place; off a terminal the last of them,
// as Progress does.
class Screen {
 public:
  Screen() : terminal_(isatty(STDERR_FILENO) != 0) {}

  void show(const RunHistory& history) {
    if (history.steps().empty()) return;
    if (!terminal_) return progress_.show(training_line(history), history.steps_done() == 1);
    const std::size_t width = progress_.width();
    std::vector<std::string> lines = loss_curve(history, width, curve_rows);
    lines.push_back(printable(training_line(history, width)));
    // Up to the first of the lines drawn before, and each line cleared before it is written.
    std::string text = drawn_ > 1 ? fmt::format("\r\x1b[{}A", drawn_ - 1) : "\r";
    text += "\x1b[J";
    for (std::size_t i = 0; i < lines.size(); ++i) text += (i == 0 ? "" : "\n") + lines[i];
    print_error_as_is(text);
    drawn_ = lines.size();
  }
  void finish() {
    progress_.finish();
    if (drawn_ > 0) print_error("\n");
    drawn_ = 0;
  }

 private:
  bool terminal_;
  std::size_t drawn_ = 0;  // lines
  Progress progress_{true};
};

std::string closing_line(const RunHistory& history, RunState state) {
  std::string text = to_string(state);
  if (history.begun())
    text += fmt::format(", {} of {} steps", history.steps_done(), history.start().steps);
  if (!history.steps().empty()) text += fmt::format(", loss {:.4f}", history.steps().back().loss);
  if (!history.evaluations().empty())
    text += fmt::format(", evaluation {:.4f}", history.evaluations().back().loss);
  return text;
}

// Whether there is nothing more to wait for.
bool is_over(RunState state) { return state != RunState::running && state != RunState::elsewhere; }

class Watch {
 public:
  explicit Watch(const WatchOptions& options)
      : json_(options.json), folder_(options.run), metrics_(folder_) {
    if (!folder_.status(saved_run_file) && !folder_.status(RunLock::file_name)) {
      throw InputError(options.run + ": there is no run in this folder",
                       "name the folder of a run; `spillway runs` lists those in a folder");
    }
  }

  void follow() {
    for (;;) {
      // Asked first: what a run writes before it ends is read after it has.
      const bool over = is_over(state_of(folder_, history_));
      read();
      if (!json_) screen_.show(history_);
      if (over && !(is_between_plans_ && waited_++ < most_waits)) return finish();
      std::this_thread::sleep_for(look_every);
    }
  }

 private:
  void read() {
    const std::vector<std::string> lines = metrics_.read();
    // A run that goes on from an earlier step begins its file anew, with the lines that stay.
    const bool anew = !begun_ || metrics_.replaced() != replaced_;
    const int starts_before = starts_;
    if (anew) {
      replaced_ = metrics_.replaced();
      history_ = {};
      starts_ = 0;
      begun_ = true;
    }
    std::vector<std::string> told;
    bool is_told = !anew;
    for (const std::string& line : lines) {
      const auto event = read_event(line);
      if (!event) continue;
      history_.take(*event);
      is_between_plans_ = event_name(*event) == "retune";
      if (event_name(*event) == "start" && ++starts_ > starts_before) {
        if (anew) told.clear();
        is_told = true;
      }
      if (is_told) told.push_back(line);
    }
    starts_ = std::max(starts_, starts_before);
    if (!json_) return;
    for (const std::string& line : told) fmt::print("{}\n", line);
    flush_output();
  }
  void finish() {
    screen_.finish();
    if (!json_) fmt::print("{}\n", closing_line(history_, state_of(folder_, history_)));
  }

  bool json_;
  Directory folder_;
  MetricsReader metrics_;
  bool begun_ = false;
  int replaced_ = 0, starts_ = 0;
  bool is_between_plans_ = false;  // it is planned anew, and goes on at once
  int waited_ = 0;
  RunHistory history_;
  Screen screen_;
};

}  // namespace

void add_watch(CLI::App& app) {
  CLI::App* command = app.add_subcommand("watch", "follow a run until it ends");
  auto options = std::make_shared<WatchOptions>();
  command->add_option("run", options->run, "the folder of the run")->required();
  command->add_flag(
      "--json", options->json,
      "pass on the events since the run's last start, and new ones as they come, one JSON "
      "object a line");
  command->callback([options] { Watch(*options).follow(); });
}

}  // namespace spillway::cli
