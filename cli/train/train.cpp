// spillway train: train for real, under the memory limits given.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "cli/commands.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/progress.hpp"
#include "cli/train/stopped_run.hpp"
#include "cli/train/train_checks.hpp"
#include "cli/train/train_events.hpp"
#include "cli/train/train_report.hpp"
#include "cli/train/train_setup.hpp"
#include "cli/train/train_wear.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// From here on it is known where the state is now.
void remember_store(Training& training, RunFolder& folder) {
  if (training.commit_interval() == 0) return;
  folder.remember_store(training.store_location());
  training.remove_previous_store();
}

// All is written. The state stays, so that the run can go on, unless it is not wanted any more:
// then it goes only after it is known that nobody needs it.
void finish(Training& training, RunFolder& folder, bool stopped, bool remove_store) {
  const bool durable = training.commit_interval() > 0;
  SavedRun& saved = folder.saved();
  saved.complete = !stopped;
  folder.save();
  if (stopped || (durable && !remove_store)) return;
  // First, so that `store remove` can end what is broken off.
  saved.not_resumable = durable ? "its store was removed on purpose (--remove-store)"
                                : "its last steps were made with --durability off";
  folder.save();
  if (!durable) training.remove_previous_store();  // kept until now
  training.discard_store();
}

void run(CLI::App& command, TrainOptions& options, int& exit_code) {
  outlive_reader();  // `train ... | head` trains to its end
  StopSignals signals;
  auto [plan, run_folder, training_options, why_cpu, other_machine, rates, listener, io] =
      prepare(command, options);
  if (!options.no_export) require_new_file(run_folder.place(RunFolder::weights), &only_an_export());
  std::optional<Activity> activity(std::in_place, "setting up memory and store");
  *listener = [&activity](const std::string& text) { activity->say(text); };
  Training training(training_options);
  *listener = {};
  activity.reset();
  if (!options.no_export) require_room(plan.problem.model, run_folder.path());
  StopSignals::check(
      "before the first step",
      options.resume ? "the run is as it was" : "nothing was trained, and nothing is left behind");

  const FilePlace trace_place =
      !options.trace.empty() ? FilePlace(options.trace)
      : training.first_step() == 0
          ? run_folder.place(RunFolder::trace)
          : run_folder.place(fmt::format("trace-from-step-{}.json.gz", training.first_step()));
  require_new_file(trace_place, &only_a_trace());  // not only after all steps
  const fs::path trace_shown = !options.trace.empty()
                                   ? fs::path(options.trace)
                                   : run_folder.file(trace_place.path.filename().string());
  Events events(run_folder.directory(), RunFolder::metrics, options.json, training.first_step(),
                training.commit_interval() > 0);
  // Without a machine file there are limits but no rates: nothing that could be read as a machine.
  if (!options.problem.machine.empty() || rates->known)
    write_file(run_folder.place(RunFolder::machine), machine_to_toml(plan.problem.machine));
  write_file(run_folder.place(RunFolder::model), model_to_toml(plan.problem.model));
  ordered_json start = start_event(training, plan, options, run_folder.path());
  start["io"] = training.store() ? io_json(io) : ordered_json();
  if (!other_machine.empty()) start["note"] = other_machine;
  if (rates->known) start["rates"] = rates->json();
  events.write(start);
  const bool talks = !options.json && !options.quiet;
  if (talks) {
    announce(training, plan, run_folder.path());
    if (training.store()) fmt::print("  {}\n", io_line(io));
    fmt::print("  {} steps, {}\n", options.steps, assumptions_text(plan.problem, 0));
    if (rates->known) fmt::print("  {}\n", rates->text());
    if (const std::string text = training.host_memory_text(); !text.empty())
      fmt::print("  {}\n", text);
    if (!other_machine.empty())
      fmt::print("  {}\n", other_machine);
    else if (!why_cpu.empty())
      fmt::print("  on the CPU: {}\n", why_cpu);
    fmt::print("{}", wear_text(wear_of(training, plan, options.steps), plan.problem.machine, "  "));
    if (training.first_step() > 0) fmt::print("  going on from step {}\n", training.first_step());
    flush_output();
  }
  std::set<std::string> warned;
  // Also after training, whose lanes open the drives and meet what is wrong with them.
  const auto warn = [&] {
    for (const std::string& warning : training.warnings())
      if (warned.insert(warning).second) print_error("warning: " + warning + "\n");
  };
  warn();

  WriteCount written(training);
  run_folder.keep();
  remember_store(training, run_folder);
  StopSignals::enter(training.commit_interval() > 0 ? StopSignals::Phase::training_with_commits
                                                    : StopSignals::Phase::training);
  signals.on_stop([&] { training.request_stop(); });
  StepLine line(options.steps, training.schedule(), talks);
  Trace trace;
  const double tokens = static_cast<double>(plan.problem.workload.tokens_per_step());
  std::int64_t skipped_steps = 0, skipped_in_a_row = 0;
  constexpr std::int64_t most_skipped_in_a_row = 100;
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        if (step.skipped_unit >= 0) ++skipped_steps;
        skipped_in_a_row = step.skipped_unit >= 0 ? skipped_in_a_row + 1 : 0;
        if (skipped_in_a_row == most_skipped_in_a_row) {
          throw MachineError(
              fmt::format("{} steps in a row had a gradient that is not finite, up to "
                          "step {}: nothing is learned any more",
                          most_skipped_in_a_row, step.step),
              "use a smaller --learning-rate, a longer --warmup, or look at the text");
        }
        events.write(step_event(step, tokens, plan.problem.model));
        written.add(step);
        line.show(step);
      },
      &trace,
      [&](std::int64_t step) {
        events.write({{"event", "commit"}, {"step", step}, {"bytes_written", written.by_commit()}});
      });
  signals.on_stop({});
  StopSignals::enter(StopSignals::Phase::finishing);
  line.finish();
  warn();
  if (training.throttle()) {
    for (const std::string& warning : training.throttle()->warnings())
      print_error("warning: " + warning + "\n");
  }
  // The weights first: nothing that follows can lose them.
  if (!options.no_export) training.export_model(run_folder.place(RunFolder::weights));
  const bool stopped = result.steps < options.steps;
  const StoppedRun left =
      stopped_run(result, training, options.steps, run_folder.path(),
                  options.no_export ? fs::path() : run_folder.file(RunFolder::weights));
  ordered_json end = {{"event", "end"}, {"steps", result.steps}};
  if (result.steps > training.first_step()) end["final_loss"] = result.final_loss;
  end["weights_hash"] = fmt::format("{:016x}", result.weights_hash);
  if (stopped) {
    end["interrupted"] = true;
    end["committed_step"] = left.committed ? ordered_json(*left.committed) : ordered_json();
  }
  if (skipped_steps > 0) end["skipped_steps"] = skipped_steps;
  if (training.commit_interval() > 0)
    end["commit_bytes_written"] = training.bytes_written_by_commits();
  end["ssd_bytes_written"] = written.all();
  events.write(end);
  write_trace(trace, trace_place);
  finish(training, run_folder, stopped, options.remove_store);
  if (talks) {
    announce_end(training, result, run_folder, trace_shown, !options.no_export, stopped);
  }
  if (!stopped) return;
  print_error(what_was_kept(left));
  exit_code = StopSignals::exit_code();
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "train for real under the memory limits given");
  auto options = std::make_shared<TrainOptions>();
  add_train_options(*command, *options);
  command->callback([options, command, &exit_code] { run(*command, *options, exit_code); });
}

}  // namespace spillway::cli
