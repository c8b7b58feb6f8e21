// spillway train: train for real, under the memory limits given.
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/problem_options.hpp"
#include "cli/run_folder.hpp"
#include "cli/train_checks.hpp"
#include "cli/train_report.hpp"
#include "exec/cuda_module.hpp"
#include "exec/training.hpp"
#include "experiments/evaluate.hpp"
#include "experiments/train_plan.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct Options {
  ProblemOptions problem;
  std::string policy = "auto";
  std::vector<std::string> data;
  std::string ssd, run, trace, device = "cpu", gradient_clip = "off";
  std::int64_t steps = 100;
  std::uint64_t seed = 1;
  OptimizerSettings optimizer;
  bool json = false, quiet = false, no_export = false;
};

std::atomic<bool> interrupted{false};

// The first Ctrl-C ends training after the running pass over the schedule; the second one ends it
// at once.
void on_interrupt(int signal) {
  constexpr std::string_view message =
      "\ninterrupted: training ends after this pass over the schedule; once more ends it at once\n";
  interrupted = true;
  std::signal(signal, SIG_DFL);
  static_cast<void>(
      !::write(STDERR_FILENO, message.data(), message.size()));  // all that a handler may call
}

ordered_json memory_json(const Schedule& schedule) {
  ordered_json memory;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    memory[to_string(tier)] = {{"peak_bytes", schedule.use(tier).peak_bytes},
                               {"capacity_bytes", schedule.use(tier).capacity_bytes}};
  }
  return memory;
}

void check(const Options& options) {
  if (options.device == "cuda") {
    const CudaDevices devices = find_cuda_devices();
    throw InputError(
        devices.count > 0
            ? "--device cuda: this version trains on the CPU backend only; found " + devices.text
            : "--device cuda: there is no CUDA GPU here: " + devices.text,
        "use --device cpu");
  }
  if (options.device != "cpu")
    throw InputError(fmt::format("--device {} is neither cpu nor cuda", options.device),
                     "use --device cpu");
  if (options.gradient_clip != "off") {
    throw InputError(
        fmt::format("--gradient-clip {}: this version trains without gradient clipping",
                    options.gradient_clip),
        "use --gradient-clip off");
  }
  if (options.steps < 1)
    throw InputError(fmt::format("--steps {}: not a positive number", options.steps),
                     "optimizer steps, e.g. --steps 100");
  check_optimizer(options.optimizer);
  check_output_path("--trace", options.trace);
}

ordered_json start_event(const Training& training, const TrainPlan& plan, const Options& options,
                         const fs::path& run) {
  const Problem& problem = training.schedule().problem();
  return {
      {"event", "start"},
      {"model", problem.model.name},
      {"policy", training.schedule().policy()},
      {"device", training.device_name()},
      {"steps", options.steps},
      {"workload",
       {{"batch", problem.workload.batch},
        {"micro_batch", problem.workload.micro_batch},
        {"micro_batches", problem.workload.micro_batches()},
        {"sequence", problem.workload.sequence}}},
      {"memory", memory_json(training.schedule())},
      {"predicted_step_seconds",
       plan.predicted_step_seconds ? ordered_json(*plan.predicted_step_seconds) : ordered_json()},
      {"seed", options.seed},
      {"run", run.string()}};
}

ordered_json step_event(const StepResult& step, double tokens) {
  return {{"event", "step"},
          {"step", step.step},
          {"loss", step.loss},
          {"tokens_per_second", tokens / step.seconds},
          {"step_seconds", step.seconds},
          {"grad_norm", step.gradient_norm},
          {"ssd_bytes_read", step.ssd_bytes_read},
          {"ssd_bytes_written", step.ssd_bytes_written}};
}

void announce(const Training& training, const TrainPlan& plan, const fs::path& run) {
  const Schedule& schedule = training.schedule();
  fmt::print("{} with policy {} on {}\n", schedule.problem().model.name, schedule.policy(),
             training.device_name());
  fmt::print("  batch {} in micro-batches of {}, {} tokens a sequence; text: {} in {} file{}\n",
             schedule.problem().workload.batch, schedule.problem().workload.micro_batch,
             schedule.problem().workload.sequence,
             format_bytes(static_cast<double>(training.dataset().size())),
             training.dataset().files().size(), training.dataset().files().size() == 1 ? "" : "s");
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    fmt::print("  {:<4} {:>10} of {}\n", to_string(tier),
               format_bytes(static_cast<double>(schedule.use(tier).peak_bytes)),
               format_bytes(static_cast<double>(schedule.use(tier).capacity_bytes)));
  }
  if (plan.predicted_step_seconds)
    fmt::print("  predicted: {} a step\n", format_seconds(*plan.predicted_step_seconds));
  fmt::print("  run folder: {}\n", run.string());
  flush_output();
}

void announce_end(const TrainingResult& result, const RunFolder& run, const std::string& trace,
                  bool exported) {
  fmt::print("{} steps, loss {:.4f} to {:.4f}, weights {:016x}\n", result.steps, result.first_loss,
             result.final_loss, result.weights_hash);
  fmt::print("trace: {}   (opens in https://ui.perfetto.dev; `spillway validate {}`)\n", trace,
             trace);
  if (exported) fmt::print("weights: {}\n", run.file(RunFolder::weights).string());
}

void run(const Options& options) {
  check(options);
  const Problem problem = options.problem.problem();
  check_backend(problem);
  std::vector<fs::path> drives = ssd_directories(options.ssd);
  const bool drives_given = !drives.empty();
  if (!drives_given) {
    drives.push_back(nearest_existing(options.run.empty() ? "." : options.run));
  }
  const TrainPlan plan = plan_training(problem, options.problem.chooses_micro_batch(),
                                       options.policy, options.problem.machine.empty(), drives);
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGTERM, on_interrupt);
  RunFolder run_folder(options.run, plan.problem.model.name);
  if (!drives_given) drives = {run_folder.make_ssd_folder()};
  TrainingOptions training_options{plan.problem, plan.policy, options.steps,    options.seed,
                                   {},           drives,      options.optimizer};
  for (const std::string& path : options.data) training_options.data.emplace_back(path);
  if (options.data.empty()) training_options.data = default_text();
  Training training(training_options);

  if (!options.no_export) require_room(plan.problem.model, run_folder.path());
  if (interrupted)
    throw MachineError("interrupted before the first step",
                       "nothing was trained, and nothing is left behind");

  Events events(run_folder.file(RunFolder::metrics), options.json);
  // Without a machine file there are limits but no rates: nothing that could be read as a machine.
  if (!options.problem.machine.empty())
    write_file(run_folder.file(RunFolder::machine), machine_to_toml(plan.problem.machine));
  write_file(run_folder.file(RunFolder::model), model_to_toml(plan.problem.model));
  events.write(start_event(training, plan, options, run_folder.path()));
  if (!options.json && !options.quiet) announce(training, plan, run_folder.path());
  for (const std::string& warning : training.warnings()) print_error("warning: " + warning + "\n");

  run_folder.keep();
  StepLine line(options.steps, training.schedule(), !options.json && !options.quiet);
  Trace trace;
  const double tokens = static_cast<double>(plan.problem.workload.tokens_per_step());
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        events.write(step_event(step, tokens));
        line.show(step);
      },
      &trace);
  line.finish();
  // The weights first: nothing that follows can lose them.
  if (!options.no_export) training.export_model(run_folder.file(RunFolder::weights));
  ordered_json end = {{"event", "end"},
                      {"steps", result.steps},
                      {"final_loss", result.final_loss},
                      {"weights_hash", fmt::format("{:016x}", result.weights_hash)}};
  if (result.steps < options.steps) end["interrupted"] = true;
  events.write(end);
  const std::string trace_path =
      options.trace.empty() ? run_folder.file(RunFolder::trace).string() : options.trace;
  write_trace(trace, trace_path);
  if (!options.json && !options.quiet)
    announce_end(result, run_folder, trace_path, !options.no_export);
}

}  // namespace

void add_train(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("train", "train for real under the memory limits given");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, false);
  command->add_option("--data", options->data,
                      "text files or folders; default: Spillway's own text");
  command
      ->add_option("--policy", options->policy,
                   "policy and options, or auto: the one predicted fastest")
      ->capture_default_str();
  command->add_option("--steps", options->steps, "optimizer steps")->capture_default_str();
  command->add_option("--ssd", options->ssd,
                      "directories of the ssd tier, separated by commas; default: RUN/ssd");
  command->add_option("--run", options->run,
                      "folder for metrics, trace and weights; default: runs/MODEL-TIME");
  command->add_option("--seed", options->seed, "seed of initial weights and data order")
      ->check(
          [](const std::string& text) {
            return std::string(text.rfind("-", 0) == 0 ? "not a whole number of at least 0" : "");
          },
          "")
      ->capture_default_str();
  command->add_option("--device", options->device, "cpu | cuda")->capture_default_str();
  command->add_option("--trace", options->trace,
                      "where to write the trace; default: RUN/trace.json.gz");
  command->add_option("--learning-rate", options->optimizer.learning_rate, "peak learning rate")
      ->capture_default_str();
  command->add_option("--warmup", options->optimizer.warmup_steps, "steps of linear warm-up")
      ->capture_default_str();
  command
      ->add_option("--decay-steps", options->optimizer.decay_steps,
                   "cosine decay to a tenth at this step; 0: constant")
      ->capture_default_str();
  command->add_option("--weight-decay", options->optimizer.weight_decay, "AdamW weight decay")
      ->capture_default_str();
  command->add_option("--beta1", options->optimizer.beta1, "AdamW beta1")->capture_default_str();
  command->add_option("--beta2", options->optimizer.beta2, "AdamW beta2")->capture_default_str();
  command->add_option("--gradient-clip", options->gradient_clip, "off")->capture_default_str();
  command->add_flag("--no-export", options->no_export, "do not write model.safetensors at the end");
  command->add_flag("--json", options->json, "print one JSON object a line");
  command->add_flag("--quiet", options->quiet, "print errors only");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
