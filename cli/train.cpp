// spillway train: train for real, under the memory limits given.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/problem_options.hpp"
#include "cli/progress.hpp"
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

// The first Ctrl-C ends training after the running pass over the schedule; the second one ends it at once.
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);
}

std::vector<fs::path> split_paths(const std::string& list) {
  std::vector<fs::path> paths;
  std::istringstream stream(list);
  for (std::string item; std::getline(stream, item, ',');) {
    if (!item.empty()) paths.emplace_back(item);
  }
  return paths;
}

// A folder of its own for each run.
fs::path make_run_folder(const Options& options, const std::string& model) {
  fs::path folder = options.run;
  if (folder.empty()) {
    folder = fs::path("runs") / fmt::format("{}-{:%Y%m%d-%H%M%S}", model, fmt::localtime(std::time(nullptr)));
  }
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error)) {
    throw InputError(fmt::format("--run {}: the folder is not empty", folder.string()),
                     "each run has a folder of its own: name a new one, or remove this one");
  }
  fs::create_directories(folder, error);
  if (error) throw InputError(fmt::format("--run {}: {}", folder.string(), error.message()), "name a folder that can be written");
  return folder;
}

std::vector<fs::path> make_ssd_folders(const Options& options, const fs::path& run) {
  std::vector<fs::path> folders = split_paths(options.ssd);
  if (!folders.empty()) return folders;
  folders.push_back(run / "ssd");
  std::error_code error;
  fs::create_directories(folders.front(), error);
  if (error) throw MachineError(fmt::format("cannot create {}: {}", folders.front().string(), error.message()));
  return folders;
}

ordered_json memory_json(const Schedule& schedule) {
  ordered_json memory;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    memory[to_string(tier)] = {{"peak_bytes", schedule.use(tier).peak_bytes},
                               {"capacity_bytes", schedule.use(tier).capacity_bytes}};
  }
  return memory;
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path);
  out << text;
  out.close();
  if (!out) throw MachineError::from_errno(fmt::format("cannot write {}", path.string()), errno);
}

// Writes events to standard output (--json) and to metrics.jsonl of the run.
class Events {
 public:
  Events(const fs::path& file, bool json) : path_(file), file_(file), json_(json) {}
  void write(const ordered_json& event) {
    const std::string line = event.dump();
    file_ << line << '\n';
    file_.flush();
    if (!file_) throw MachineError::from_errno(fmt::format("cannot write {}", path_.string()), errno);
    if (json_) {
      fmt::print("{}\n", line);
      std::fflush(stdout);
    }
  }

 private:
  fs::path path_;
  std::ofstream file_;
  bool json_;
};

// Step, loss, speed, time left, and what each link carries.
class StepLine {
 public:
  StepLine(const Options& options, const Schedule& schedule)
      : steps_(options.steps), tokens_(static_cast<double>(schedule.problem().workload.tokens_per_step())),
        progress_(!options.json && !options.quiet) {
    for (const Task& task : schedule.tasks()) {
      if (task.step == schedule.steps() - 1) bytes_[static_cast<std::size_t>(task.lane)] += static_cast<double>(task.bytes);
    }
  }
  void show(const StepResult& step) {
    // Exponential moving average, so that the time left does not jump about.
    seconds_ = seconds_ == 0 ? step.seconds : 0.9 * seconds_ + 0.1 * step.seconds;
    const std::int64_t left = steps_ - step.step - 1;
    std::string line = fmt::format("step {:>{}}/{}  loss {:.4f}  {:>7.0f} tokens/s  ETA {}", step.step + 1,
                                   fmt::formatted_size("{}", steps_), steps_, step.loss, tokens_ / seconds_,
                                   format_clock(static_cast<double>(left) * seconds_));
    const auto rate = [&](const char* name, Lane lane) {
      const double bytes = bytes_[static_cast<std::size_t>(lane)];
      if (bytes > 0) line += fmt::format("  {} {}", name, format_bytes_per_second(bytes / seconds_));
    };
    rate("h2d", Lane::pcie_h2d);
    rate("d2h", Lane::pcie_d2h);
    rate("ssd r", Lane::ssd_read);
    rate("w", Lane::ssd_write);
    progress_.show(line, step.step == 0 || left == 0);
  }
  void finish() { progress_.finish(); }

 private:
  std::int64_t steps_;
  double tokens_;
  double seconds_ = 0;
  std::array<double, lane_count> bytes_{};
  Progress progress_;
};

void check(const Options& options) {
  if (options.device == "cuda") {
    const CudaDevices devices = find_cuda_devices();
    throw InputError(devices.count > 0 ? "--device cuda: this version trains on the CPU backend only; found " + devices.text
                                       : "--device cuda: there is no CUDA GPU here: " + devices.text,
                     "use --device cpu");
  }
  if (options.device != "cpu") throw InputError(fmt::format("--device {} is neither cpu nor cuda", options.device));
  if (options.gradient_clip != "off") {
    throw InputError(fmt::format("--gradient-clip {}: this version trains without gradient clipping", options.gradient_clip),
                     "use --gradient-clip off");
  }
}

ordered_json start_event(const Training& training, const TrainPlan& plan, const Options& options, const fs::path& run) {
  const Problem& problem = training.schedule().problem();
  return {{"event", "start"},
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
          {"predicted_step_seconds", plan.predicted_step_seconds ? ordered_json(*plan.predicted_step_seconds) : ordered_json()},
          {"seed", options.seed},
          {"run", run.string()}};
}

void announce(const Training& training, const TrainPlan& plan, const fs::path& run) {
  const Schedule& schedule = training.schedule();
  fmt::print("{} with policy {} on {}\n", schedule.problem().model.name, schedule.policy(), training.device_name());
  fmt::print("  batch {} in micro-batches of {}, {} tokens a sequence; text: {} in {} file{}\n",
             schedule.problem().workload.batch, schedule.problem().workload.micro_batch, schedule.problem().workload.sequence,
             format_bytes(static_cast<double>(training.dataset().size())), training.dataset().files().size(),
             training.dataset().files().size() == 1 ? "" : "s");
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    fmt::print("  {:<4} {:>10} of {}\n", to_string(tier), format_bytes(static_cast<double>(schedule.use(tier).peak_bytes)),
               format_bytes(static_cast<double>(schedule.use(tier).capacity_bytes)));
  }
  if (plan.predicted_step_seconds) fmt::print("  predicted: {} a step\n", format_seconds(*plan.predicted_step_seconds));
  fmt::print("  run folder: {}\n", run.string());
  for (const std::string& warning : training.warnings()) fmt::print(stderr, "warning: {}\n", warning);
}

void run(const Options& options) {
  check(options);
  const TrainPlan plan = plan_training(options.problem.problem(), options.problem.chooses_micro_batch(), options.policy,
                                       options.problem.machine.empty(), split_paths(options.ssd));
  const fs::path run_folder = make_run_folder(options, plan.problem.model.name);
  TrainingOptions training_options{plan.problem, plan.policy, options.steps, options.seed, {}, make_ssd_folders(options, run_folder),
                                   options.optimizer};
  for (const std::string& path : options.data) training_options.data.emplace_back(path);
  if (options.data.empty()) training_options.data = default_text();
  Training training(training_options);

  Events events(run_folder / "metrics.jsonl", options.json);
  write_text(run_folder / "machine.toml", machine_to_toml(plan.problem.machine));
  write_text(run_folder / "model.toml", model_to_toml(plan.problem.model));
  events.write(start_event(training, plan, options, run_folder));
  if (!options.json && !options.quiet) announce(training, plan, run_folder);

  std::signal(SIGINT, on_interrupt);
  StepLine line(options, training.schedule());
  Trace trace;
  const double tokens = static_cast<double>(plan.problem.workload.tokens_per_step());
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        events.write({{"event", "step"},
                      {"step", step.step},
                      {"loss", step.loss},
                      {"tokens_per_second", tokens / step.seconds},
                      {"step_seconds", step.seconds},
                      {"grad_norm", step.gradient_norm},
                      {"ssd_bytes_read", step.ssd_bytes_read},
                      {"ssd_bytes_written", step.ssd_bytes_written}});
        line.show(step);
      },
      &trace, [] { return interrupted.load(); });
  line.finish();
  const std::string trace_path = options.trace.empty() ? (run_folder / "trace.json.gz").string() : options.trace;
  write_trace(trace, trace_path);
  if (!options.no_export) training.export_model(run_folder / "model.safetensors");
  events.write({{"event", "end"},
                {"steps", result.steps},
                {"final_loss", result.final_loss},
                {"weights_hash", fmt::format("{:016x}", result.weights_hash)}});
  if (options.json || options.quiet) return;
  fmt::print("{} steps, loss {:.4f} to {:.4f}, weights {:016x}\n", result.steps, result.first_loss, result.final_loss,
             result.weights_hash);
  fmt::print("trace: {}   (opens in https://ui.perfetto.dev; `spillway validate {}`)\n", trace_path, trace_path);
  if (!options.no_export) fmt::print("weights: {}\n", (run_folder / "model.safetensors").string());
}

}  // namespace

void add_train(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("train", "train for real under the memory limits given");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, false);
  command->add_option("--data", options->data, "text files or folders; default: Spillway's own text");
  command->add_option("--policy", options->policy, "policy and options, or auto: the one predicted fastest")->capture_default_str();
  command->add_option("--steps", options->steps, "optimizer steps")->capture_default_str();
  command->add_option("--ssd", options->ssd, "directories of the ssd tier, separated by commas; default: RUN/ssd");
  command->add_option("--run", options->run, "folder for metrics, trace and weights; default: runs/MODEL-TIME");
  command->add_option("--seed", options->seed, "seed of initial weights and data order")->capture_default_str();
  command->add_option("--device", options->device, "cpu | cuda")->capture_default_str();
  command->add_option("--trace", options->trace, "where to write the trace; default: RUN/trace.json.gz");
  command->add_option("--learning-rate", options->optimizer.learning_rate, "peak learning rate")->capture_default_str();
  command->add_option("--warmup", options->optimizer.warmup_steps, "steps of linear warm-up")->capture_default_str();
  command->add_option("--decay-steps", options->optimizer.decay_steps,
                      "cosine decay to a tenth at this step; 0: constant")->capture_default_str();
  command->add_option("--weight-decay", options->optimizer.weight_decay, "AdamW weight decay")->capture_default_str();
  command->add_option("--beta1", options->optimizer.beta1, "AdamW beta1")->capture_default_str();
  command->add_option("--beta2", options->optimizer.beta2, "AdamW beta2")->capture_default_str();
  command->add_option("--gradient-clip", options->gradient_clip, "off")->capture_default_str();
  command->add_flag("--no-export", options->no_export, "do not write model.safetensors at the end");
  command->add_flag("--json", options->json, "print one JSON object a line");
  command->add_flag("--quiet", options->quiet, "print errors only");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
