// spillway testbed: the simulator's predictions held against runs on machines that are not there.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "exec/run/training.hpp"
#include "experiments/calibrate/calibrate.hpp"
#include "experiments/calibrate/normal_priority.hpp"
#include "experiments/sweep/sweep_journal.hpp"
#include "experiments/sweep/sweep_settings.hpp"
#include "experiments/testbed/testbed_report.hpp"
#include "experiments/train/train_checks.hpp"
#include "experiments/train/train_plan.hpp"
#include "experiments/watch/training_line.hpp"
#include "sim/step_interval.hpp"
#include "text/source/text_files.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::string> regimes;
  std::string machine, out = "testbed", markdown, ssd;
  int steps = 6, rounds = 5, most_rounds = 0;  // 0: usual_most_rounds, or as many as rounds
  bool quick = false, list = false, json = false, quiet = false, commits = false;
};

constexpr int usual_most_rounds = 15;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

// A row belongs to the program that measured it.
std::string this_program() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return hash_of(bytes.str());
}

void list_configurations(const std::vector<TestbedConfiguration>& all, bool json) {
  ordered_json list = ordered_json::array();
  for (const TestbedConfiguration& c : all) {
    if (json) {
      list.push_back({{"regime", c.regime.name},
                      {"throttle", c.regime.throttle},
                      {"batch", c.batch},
                      {"policy", c.policy}});
    } else {
      fmt::print("{:<16} batch {:<3} {}\n", c.regime.name, c.batch, c.policy);
    }
  }
  if (json) {
    fmt::print("{}\n", to_text(ordered_json{{"configurations", list}}));
  } else {
    fmt::print("{} configurations\n", all.size());
  }
}

// Every shape that the regimes train at. They share one model and one length of sequences, for
// which the kernels of the machine file are measured.
Machine calibrate_for(const std::vector<TestbedRegime>& regimes,
                      const std::vector<fs::path>& drives, Progress& progress) {
  CalibrationOptions options;
  options.model = regimes.front().model;
  options.sequence = regimes.front().sequence;
  for (const TestbedRegime& regime : regimes) {
    if (regime.model.name != options.model.name || regime.sequence != options.sequence)
      throw InputError("the regimes differ in model or sequence, and are calibrated for one",
                       "run them one by one: --regime " + regime.name);
    if (std::find(options.micro_batches.begin(), options.micro_batches.end(), regime.micro_batch) ==
        options.micro_batches.end())
      options.micro_batches.push_back(regime.micro_batch);
  }
  options.ssd = drives;
  return calibrate(options, [&](const std::string& what, int done, int all) {
    progress.show(fmt::format("calibrating {}/{}: {}", done + 1, all, what));
  });
}

// The machine of --machine, that of an earlier run into the same folder, or this one, measured now.
Machine base_machine(const Options& options, const std::vector<TestbedRegime>& regimes,
                     const std::vector<fs::path>& drives, Progress& progress) {
  const fs::path kept = fs::path(options.out) / "machine.toml";
  if (!options.machine.empty()) return load_machine(options.machine);
  if (fs::exists(kept)) return load_machine(kept.string());
  const Machine machine = calibrate_for(regimes, drives, progress);
  write_file(kept.string(), machine_to_toml(machine));
  return load_machine(kept.string());
}

// Spillway's own text, as it was when this folder was begun: a testbed that goes on trains on the
// same data, though somebody edited a file meanwhile.
fs::path training_text(const fs::path& out) {
  const fs::path kept = out / "text.txt";
  if (fs::exists(kept)) return kept;
  SkippedFiles skipped;
  std::string text;
  for (const TextFile& file : find_text_files(default_text(), skipped))
    text += read_file(file.path(), file.bytes());
  write_file(kept.string(), text);
  return kept;
}

std::string identity_of(const TestbedConfiguration& c, const Machine& machine,
                        const TestbedOptions& options, const std::string& program, int round) {
  const TestbedRegime& r = c.regime;
  return hash_of(fmt::format(
      "{}\n{} {} {} {} {} {} {} {} {}{} {}\n{}\n{}", program, r.name, to_text(r.rates), r.sequence,
      r.micro_batch, c.batch, c.policy, r.gpu_memory, r.host_memory, options.steps,
      options.durable ? " commits" : "", round, model_to_toml(r.model), machine_to_toml(machine)));
}

void print_row(const TestbedRow& row) {
  fmt::print("{:<16} {:>5}  {:<66} {:>9} {:>9} {:>+7.2f} % {:>7.2f} %", row.regime, row.batch,
             row.policy, format_seconds(row.predicted_seconds),
             format_seconds(row.measured_seconds), 100 * row.error(), 100 * row.scatter);
  if (row.is_corrected()) {
    const std::vector<TestbedRound> runs = row.each_run();
    const auto inside = std::count_if(runs.begin(), runs.end(),
                                      [](const TestbedRound& run) { return run.is_inside(); });
    fmt::print("   corrected {:+.2f} %, {} of {} inside", 100 * row.corrected_error(), inside,
               runs.size());
  }
  fmt::print("\n");
  std::fflush(stdout);  // a row as soon as it is known
}

void print_summary(const TestbedSummary& s) {
  fmt::print("\n{:<16} {:>5} {:>8} {:>8} {:>8} {:>8} {:>6}\n", "regime", "count", "median", "95th",
             "largest", "bias", "tau");
  const auto line = [](const std::string& name, const ErrorSummary& e, const std::string& tau) {
    if (e.count == 0) return;
    fmt::print("{:<16} {:>5} {:>6.2f} % {:>6.2f} % {:>6.2f} % {:>+6.2f} % {:>6}\n", name, e.count,
               100 * e.median, 100 * e.p95, 100 * e.largest, 100 * e.bias, tau);
  };
  for (const RegimeSummary& r : s.regimes)
    line(r.regime, r.errors, fmt::format("{:.3f}", r.order.tau()));
  line("corrected", s.corrected.errors, fmt::format("{:.3f}", s.corrected.order.tau()));
  if (s.corrected.of_runs.count > s.corrected.errors.count)
    line("  single runs", s.corrected.of_runs, "");
  if (s.corrected.of_runs.count > s.corrected.errors.count)
    fmt::print(
        "a prediction without error would show a median of {:.2f} % and a 95th percentile of "
        "{:.2f} %, by the scatter of the runs alone\n",
        100 * s.corrected.noise.median, 100 * s.corrected.noise.p95);
  if (s.corrected.errors.count > 0)
    fmt::print("{} of {} runs lie in the intervals that are to hold {:.0f} %\n", s.corrected.inside,
               s.corrected.of_runs.count, 100 * interval_share);
  line("all throttled", s.throttled, "");
  if (s.complete()) {
    fmt::print("the targets are {}\n", s.held() ? "held" : "missed");
  } else {
    fmt::print("a part of the testbed: the targets are for at least {} throttled configurations\n",
               fewest_configurations);
  }
}

class Testbed {
 public:
  Testbed(const Options& options, std::vector<TestbedRegime> regimes)
      : options_(options),
        regimes_(std::move(regimes)),
        all_(configurations(regimes_, options.quick)),
        runs_(all_.size()),
        program_(this_program()),
        known_(read_journals(options.out)),
        journal_(options.out, "testbed"),
        progress_(!options.quiet) {
    run_options_.steps = options.steps;
    run_options_.durable = options.commits;
    run_options_.data = {training_text(options.out)};
    run_options_.ssd = ssd_directories({options.ssd}).all;
    if (run_options_.ssd.empty()) {
      run_options_.ssd = {fs::path(options.out) / "ssd"};
      fs::create_directories(run_options_.ssd.front());
    }
    circumstances_ = these_circumstances();
  }

  // False where a target of the whole testbed was missed.
  bool run() {
    const double load = load_average();
    machine_ = base_machine(options_, regimes_, run_options_.ssd, progress_);
    if (!options_.json)
      fmt::print("{:<16} {:>5}  {:<66} {:>9} {:>9} {:>9} {:>9}\n", "regime", "batch", "policy",
                 "predicted", "measured", "error", "scatter");
    // What the machine's speed was in one round it is not in the next: runs of a configuration are
    // far apart.
    for (int round = 0; round < most_rounds(); ++round) add_round(round);
    progress_.finish();
    for (const std::vector<TestbedRow>& rounds : runs_) rows_.push_back(joined(rounds));
    circumstances_.machine = machine_;
    circumstances_.load =
        fmt::format("Load average {:.2f} at the start, {:.2f} at the end", load, load_average());
    circumstances_.command += command();
    return write();
  }

 private:
  int most_rounds() const {
    return options_.most_rounds > 0 ? options_.most_rounds
                                    : std::max(options_.rounds, usual_most_rounds);
  }

  bool has_another_round(std::size_t configuration) const {
    const std::vector<TestbedRow>& runs = runs_[configuration];
    return all_[configuration].regime.throttled()
               ? runs.empty()
               : wants_another_round(runs, options_.rounds, most_rounds());
  }

  // A run of every configuration that has so many rounds.
  void add_round(int round) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (std::ssize(runs_[i]) < round || !has_another_round(i)) continue;
      runs_[i].push_back(measured(all_[i], round));
      if (options_.json || has_another_round(i)) continue;
      progress_.finish();
      print_row(joined(runs_[i]));
    }
  }

  TestbedRow measured(const TestbedConfiguration& c, int round) {
    const std::string identity = identity_of(c, machine_, run_options_, program_, round);
    if (const auto row = known_.find(identity); row != known_.end()) {
      ++read_;
      return row_from_json(ordered_json::parse(row->second));
    }
    show(c, round);
    if (!c.regime.throttled() && !machine_.references.empty() && !references_) {
      // For its threads, too, as when the machine was calibrated.
      const NormalPriority normal(true);
      run_options_.references = &references_.emplace(run_options_.ssd);
    }
    const Clock::time_point began = Clock::now();
    TestbedRow row = run_configuration(c, machine_, run_options_);
    seconds_ += seconds_since(began);
    ++made_;
    journal_.append(identity, to_json(row).dump());
    return row;
  }

  void show(const TestbedConfiguration& c, int round) {
    // Runs still to come: at most so many where the mean of a configuration is not known yet.
    const int until = round < options_.rounds ? options_.rounds : most_rounds();
    int all = 0;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      const int done = static_cast<int>(std::ssize(runs_[i]));
      all += done;
      if (has_another_round(i)) all += (all_[i].regime.throttled() ? 1 : until) - done;
    }
    std::string line = fmt::format("{}/{}: {}, batch {}, {}", made_ + read_ + 1, all, c.regime.name,
                                   c.batch, c.policy);
    if (!c.regime.throttled() && until > 1)
      line += fmt::format(", round {} of {}{}", round + 1,
                          round < options_.rounds ? "" : "at most ", until);
    if (made_ > 2)
      line += fmt::format("  ETA {}", format_clock(seconds_ / made_ * (all - made_ - read_)));
    progress_.show(line);
  }

  std::string command() const {
    std::string text = "spillway testbed";
    for (const std::string& regime : options_.regimes) text += " --regime " + regime;
    if (options_.quick) text += " --quick";
    if (options_.commits) text += " --commits";
    if (!options_.machine.empty()) text += " --machine " + options_.machine;
    if (options_.steps != Options{}.steps) text += fmt::format(" --steps {}", options_.steps);
    if (options_.rounds != Options{}.rounds) text += fmt::format(" --rounds {}", options_.rounds);
    if (options_.most_rounds > 0) text += fmt::format(" --most-rounds {}", options_.most_rounds);
    if (!options_.ssd.empty()) text += " --ssd " + options_.ssd;
    if (!options_.markdown.empty()) text += " --markdown " + options_.markdown;
    return text;
  }

  bool write() {
    const TestbedSummary summary = summarize(rows_);
    const fs::path out = options_.out;
    write_file((out / "results.csv").string(), to_csv(rows_));
    const std::string markdown = testbed_markdown(regimes_, rows_, circumstances_);
    write_file((out / "validation.md").string(), markdown);
    if (!options_.markdown.empty()) write_file(options_.markdown, markdown);
    if (options_.json) {
      ordered_json rows = ordered_json::array();
      for (const TestbedRow& row : rows_) rows.push_back(to_json(row));
      fmt::print("{}\n", to_text(ordered_json{{"summary", to_json(summary)}, {"rows", rows}}));
    } else {
      print_summary(summary);
      fmt::print("{} rows: {}\n", rows_.size(), (out / "results.csv").string());
    }
    return !summary.complete() || summary.held();
  }

  const Options& options_;
  std::vector<TestbedRegime> regimes_;
  std::vector<TestbedConfiguration> all_;
  std::vector<std::vector<TestbedRow>> runs_;  // by configuration
  std::vector<TestbedRow> rows_;
  std::string program_;
  SweepResults known_;
  SweepJournal journal_;
  Machine machine_;
  // Made when the first unthrottled configuration comes: a test file on the drives.
  std::optional<ReferenceKernels> references_;
  int made_ = 0, read_ = 0;  // runs
  double seconds_ = 0;       // of those made
  TestbedOptions run_options_;
  TestbedCircumstances circumstances_;
  Progress progress_;
};

// The exit code: failed where the whole testbed was run and a target was missed.
int run(const Options& options) {
  const std::vector<TestbedRegime> regimes = find_regimes(options.regimes);
  if (options.list) {
    list_configurations(configurations(regimes, options.quick), options.json);
    return exit_ok;
  }
  if (options.steps < 3)
    throw InputError("--steps must be at least 3", "the first step of a run does not count");
  if (options.steps > TrainingSchedules::fewest_steps_per_run)
    throw InputError(
        fmt::format("--steps {} is more than a run of the schedule has", options.steps),
        fmt::format("at most {}", TrainingSchedules::fewest_steps_per_run));
  if (options.rounds < 1)
    throw InputError("--rounds must be at least 1", "each is one run of a configuration");
  if (options.most_rounds != 0 && options.most_rounds < options.rounds)
    throw InputError(fmt::format("--most-rounds {} is less than --rounds {}", options.most_rounds,
                                 options.rounds),
                     "give at least as many");
  check_output_path("--markdown", options.markdown);
  std::error_code error;
  fs::create_directories(options.out, error);
  if (error)
    throw InputError(fmt::format("--out {}: {}", options.out, error.message()),
                     "name a folder that can be created");
  return Testbed(options, regimes).run() ? exit_ok : exit_failed;
}

}  // namespace

void add_testbed(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "testbed", "hold the simulator's predictions against throttled runs of every policy");
  auto options = std::make_shared<Options>();
  command
      ->add_option("--regime", options->regimes,
                   "only this regime: a name, or a file of your own; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--quick", options->quick,
                    "the smallest batch and every second policy of each regime");
  command->add_option("--out", options->out, "folder of rows; a run that was ended goes on from it")
      ->capture_default_str();
  command->add_option(
      "--machine", options->machine,
      "this computer, calibrated before; default: OUT/machine.toml, made if missing");
  command->add_option("--ssd", options->ssd,
                      "directories of the ssd tier, separated by commas; default: OUT/ssd");
  command->add_option("--steps", options->steps, "steps of a run; the first does not count")
      ->capture_default_str();
  command
      ->add_option("--rounds", options->rounds,
                   "runs of each unthrottled configuration, over which the mean is taken")
      ->capture_default_str();
  command->add_option(
      "--most-rounds", options->most_rounds,
      fmt::format("most runs of a configuration whose mean --rounds do not tell to one "
                  "per cent; default: {}",
                  usual_most_rounds));
  command->add_option("--markdown", options->markdown,
                      "write the report here, too, e.g. docs/validation.md");
  command->add_flag("--commits", options->commits,
                    "commit steps as `train` does unless told otherwise; the prediction knows of "
                    "the schedule only");
  command->add_flag("--list", options->list, "only name the configurations");
  command->add_flag("--json", options->json, "print one JSON object");
  command->add_flag("--quiet", options->quiet, "no progress");
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace spillway::cli
