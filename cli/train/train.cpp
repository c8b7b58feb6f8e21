// spillway train: train for real, under the memory limits given.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/io_option.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/progress.hpp"
#include "cli/train/dry_run.hpp"
#include "cli/train/given_settings.hpp"
#include "cli/train/measure_machine.hpp"
#include "cli/train/preparation.hpp"
#include "cli/train/stopped_run.hpp"
#include "cli/train/train_events.hpp"
#include "cli/train/train_notes.hpp"
#include "cli/train/train_options.hpp"
#include "cli/train/train_report.hpp"
#include "exec/ranks/mpi_module.hpp"
#include "experiments/train/training_job.hpp"
#include "experiments/train/training_wear.hpp"
#include "experiments/watch/closing_table.hpp"
#include "experiments/watch/drive_health.hpp"
#include "experiments/watch/gpu_meter.hpp"
#include "policies/cost/commit_interval.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

void tell_start(const TrainingJob& job, const std::string& other_machine) {
  const Training& training = job.training();
  announce(job);
  if (training.store()) fmt::print("  {}\n", io_line(job.io()));
  if (const auto& initial = job.initial_state())
    fmt::print("  weights: {}, {}\n", initial->folder.string(), initial->text);
  fmt::print("  {} steps, {}\n", job.settings().steps, assumptions_text(job.plan().problem, 0));
  if (job.rates().known) fmt::print("  {}\n", rates_text(job.rates()));
  if (const std::string text = training.host_memory_text(); !text.empty())
    fmt::print("  {}\n", text);
  const bool worth_a_reason = !job.chose_device() || cuda_driver_present();
  if (!other_machine.empty())
    fmt::print("  {}\n", other_machine);
  else if (worth_a_reason && !job.device().why.empty())
    fmt::print("  on the CPU: {}\n", job.device().why);
  fmt::print("{}", wear_text(wear_of(training, job.plan(), job.settings().steps),
                             job.plan().problem.machine, "  "));
  if (training.first_step() > 0) fmt::print("  going on from step {}\n", training.first_step());
  flush_output();
}

TrainingUse complete(TrainingUse use, const Training& training, const WriteCount& written) {
  for (const Tier tier : memories_of(training.schedule().problem().machine))
    use.memory.push_back({to_string(tier), static_cast<double>(training.highest_use(tier)),
                          static_cast<double>(training.schedule().use(tier).peak_bytes)});
  use.rated_bytes = rated_bytes(training.schedule().problem().machine);
  use.bytes_written = static_cast<double>(written.all());
  return use;
}

// Returns what goes on with the run where it is planned anew.
std::optional<TrainRequest> train(const TrainRequest& request, const TrainOptions& options,
                                  StopSignals& signals, int& exit_code) {
  StopSignals::go_on_with_run(request.resume);
  Preparation preparation(options.quiet, options.json);
  TrainingJob job(request, preparation.listener());
  preparation.end();
  if (request.dry_run) {
    const TrainingOutlook outlook = job.look_ahead();
    preparation.end();
    if (options.json)
      fmt::print("{}\n", to_text(outlook_json(job, outlook)));
    else
      fmt::print("{}a dry run: nothing was written\n", outlook_text(job, outlook));
    return {};
  }
  job.open();
  preparation.end();
  Training& training = job.training();
  const TrainPlan& plan = job.plan();
  const RunFolder& folder = job.folder();
  const TrainSettings& settings = job.settings();
  StopSignals::check("before the first step");

  const fs::path trace_shown = !request.trace.empty()
                                   ? fs::path(request.trace)
                                   : folder.file(job.trace_place().path.filename().string());
  Events events(folder.directory(), options.json, training.first_step(),
                training.commit_interval() > 0);
  const std::string other_machine =
      settings.problem.machine.empty()
          ? ""
          : other_machine_note(plan.problem.machine, job.device().gpu.has_value(),
                               job.device().why);
  ordered_json start = start_event(job);
  start["io"] = training.store() ? io_json(job.io()) : ordered_json();
  if (!other_machine.empty()) start["note"] = other_machine;
  if (job.rates().known) start["rates"] = rates_json(job.rates());
  TrainingUse use;
  if (training.store()) {
    use.before = read_drives_health(training.store_location().directories);
    start["smart"] = drives_json(use.before);
  }
  events.write(start);
  const bool talks = !options.json && !options.quiet;
  if (talks) tell_start(job, other_machine);
  std::set<std::string> warned;
  // Also after training, whose lanes open the drives and meet what is wrong with them.
  const auto warn = [&] {
    for (const std::string& warning : events.warnings())
      if (warned.insert(warning).second) print_error("warning: " + warning + "\n");
    for (const std::string& warning : training.warnings())
      if (warned.insert(warning).second) print_error("warning: " + warning + "\n");
  };
  warn();

  WriteCount written(training);
  job.begin();
  StopSignals::enter(training.commit_interval() > 0 ? StopSignals::Phase::training_with_commits
                                                    : StopSignals::Phase::training);
  const StopSignals::Listening listening(signals, [&] { job.request_stop(); });
  StepLine line(talks);
  std::optional<GpuMeter> meter;
  if (job.device().gpu) meter.emplace(job.device().gpu->pci_bus);
  // As soon as it is known; what it is due to, as soon as that is.
  std::string prediction_told;
  const auto tell_prediction = [&] {
    if (!talks || !job.prediction_check()) return;
    const std::string text = prediction_text(*job.prediction_check(), job.rates().known);
    const bool says_more = prediction_told.empty() || !job.prediction_check()->holds();
    if (!says_more || text == prediction_told) return;
    prediction_told = text;
    line.finish();
    fmt::print("{}", text);
    flush_output();
  };
  const auto tell_kept = [&] {
    for (const KeptStep& kept : job.kept_news()) {
      if (!kept.error.empty())
        print_error(fmt::format("warning: no checkpoint of step {}: {}\n", kept.step, kept.error));
      events.write(kept_event(kept));
    }
  };
  const auto tell = [&](const std::string& text) {
    if (!talks) return;
    line.finish();
    fmt::print("{}", text);
    flush_output();
  };
  TrainReports reports;
  reports.step = [&](const StepResult& step) {
    tell_prediction();
    tell_kept();
    events.write(step_event(step, job, meter ? meter->read() : GpuReading()));
    written.add(step);
    line.show(events.history());
  };
  reports.committed = [&](std::int64_t step) {
    events.write({{"event", "commit"}, {"step", step}, {"bytes_written", written.by_commit()}});
  };
  reports.evaluated = [&](const EvaluationResult& evaluation) {
    events.write(evaluation_event(evaluation));
    tell(evaluation_text(evaluation));
  };
  reports.best = [&](const Best& best) { events.write(best_event(best, job.best_path())); };
  reports.sampled = [&](std::int64_t step, const std::vector<TrainingSample>& samples) {
    for (const TrainingSample& sample : samples) {
      events.write(sample_event(step, sample));
      tell(sample_text(step, sample));
    }
  };
  const TrainingResult result = job.train(reports);
  signals.on_stop({});
  StopSignals::enter(StopSignals::Phase::finishing);
  line.finish();
  tell_kept();
  tell_prediction();
  warn();
  if (training.throttle()) {
    for (const std::string& warning : training.throttle()->warnings())
      print_error("warning: " + warning + "\n");
  }
  if (const auto& spike = job.spike()) {
    events.write(spike_event(*spike));
    job.finish();
    print_error(spike_text(*spike));
    if (StopSignals::came()) {
      exit_code = StopSignals::exit_code();
      return {};
    }
    return job.next();
  }
  if (job.retunes() && !StopSignals::came()) {
    events.write({{"event", "retune"},
                  {"step", result.steps},
                  {"prediction", prediction_json(*job.prediction_check())}});
    job.finish();
    if (talks) fmt::print("choosing anew how to train, at the rates that were measured\n");
    return job.next();
  }
  job.export_weights();
  const StoppedRun left = stopped_run(result, training, settings.steps, folder.path(),
                                      settings.no_export ? fs::path() : job.weights_path());
  ordered_json end = {{"event", "end"}, {"steps", result.steps}};
  if (result.steps > training.first_step())
    end["final_loss"] = result.final_loss;
  else if (!events.history().steps().empty())  // the steps were done before
    end["final_loss"] = events.history().steps().back().loss;
  end["weights_hash"] = fmt::format("{:016x}", result.weights_hash);
  if (job.stopped()) {
    end["interrupted"] = true;
    end["committed_step"] = left.committed ? ordered_json(*left.committed) : ordered_json();
  }
  if (job.ended_early()) end["ended_early"] = true;
  if (job.skipped_steps() > 0) end["skipped_steps"] = job.skipped_steps();
  if (training.commit_interval() > 0)
    end["commit_bytes_written"] = training.bytes_written_by_commits();
  end["ssd_bytes_written"] = written.all();
  if (training.store()) {
    use.after = read_drives_health(training.store_location().directories);
    end["smart"] = drives_json(use.after);
  }
  if (job.prediction_check()) end["prediction"] = prediction_json(*job.prediction_check());
  events.write(end);
  warn();
  job.finish();
  if (talks) fmt::print("{}", best_text(job));
  if (talks)
    announce_end(training, result, folder, trace_shown,
                 settings.no_export ? fs::path() : job.weights_path(),
                 closing_table(events.history(), complete(use, training, written)), job.stopped(),
                 job.ended_early());
  if (!job.stopped()) return {};
  print_error(what_was_kept(left));
  exit_code = StopSignals::exit_code();
  return {};
}

// What a rank other than 0 does, which says nothing.
void train_beside(const TrainRequest& request, StopSignals& signals, int& exit_code) {
  StopSignals::go_on_with_run(request.resume);
  Preparation preparation(true, false);
  TrainingJob job(request, preparation.listener());
  if (request.dry_run) return;
  job.open();
  preparation.end();
  StopSignals::check("before the first step");
  job.begin();
  StopSignals::enter(job.training().commit_interval() > 0
                         ? StopSignals::Phase::training_with_commits
                         : StopSignals::Phase::training);
  const StopSignals::Listening listening(signals, [&] { job.request_stop(); });
  job.train({});
  signals.on_stop({});
  StopSignals::enter(StopSignals::Phase::finishing);
  job.export_weights();
  job.finish();
  if (job.stopped()) exit_code = StopSignals::exit_code();
}

// Among the ranks that mpirun has started: all of them end where one fails.
void train_on_ranks(TrainRequest request, const TrainOptions& options, StopSignals& signals,
                    int& exit_code) {
  RankTimes times;
  times.silence = std::chrono::milliseconds(static_cast<std::int64_t>(1000 * request.rank_timeout));
  RankTeam team(start_mpi(), times);
  request.team = &team;
  try {
    if (team.leads())
      train(request, options, signals, exit_code);
    else
      train_beside(request, signals, exit_code);
  } catch (...) {
    team.fail(std::current_exception());
    throw;
  }
}

void run(CLI::App& command, TrainOptions& options, int& exit_code) {
  outlive_reader();  // `train ... | head` trains to its end
  StopSignals signals;
  GivenSettings of_file;
  try {
    std::optional<TrainRequest> request = train_request(command, options, of_file);
    if (launched_rank()) return train_on_ranks(std::move(*request), options, signals, exit_code);
    while (request) request = train(*request, options, signals, exit_code);
  } catch (const InputError& error) {
    if (of_file.empty()) throw;
    throw InputError(as_given(error.message(), of_file, options.config),
                     as_given(error.advice(), of_file, options.config));
  }
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("train", "train for real under the memory limits given");
  auto options = std::make_shared<TrainOptions>();
  add_train_options(*command, *options);
  command->callback([options, command, &exit_code] { run(*command, *options, exit_code); });
}

}  // namespace spillway::cli
