// spillway train: train for real, under the memory limits given.
#include <fmt/format.h>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/problem_options.hpp"
#include "cli/run_folder.hpp"
#include "cli/saved_run.hpp"
#include "cli/stop_signals.hpp"
#include "cli/train_checks.hpp"
#include "cli/train_report.hpp"
#include "exec/cuda_module.hpp"
#include "exec/training.hpp"
#include "exec/training_record.hpp"
#include "experiments/evaluate.hpp"
#include "experiments/throttled_machine.hpp"
#include "experiments/train_device.hpp"
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
  std::string ssd, run, trace, device = "auto", durability, throttle;
  std::optional<int> gpu;
  std::int64_t steps = 100;
  std::uint64_t seed = 1;
  int threads = 1;
  OptimizerSettings optimizer;
  bool json = false, quiet = false, no_export = false;
  bool resume = false, overwrite = false, keep_store = false;
};

ordered_json memory_json(const Schedule& schedule) {
  ordered_json memory;
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    memory[to_string(tier)] = {{"peak_bytes", schedule.use(tier).peak_bytes},
                               {"capacity_bytes", schedule.use(tier).capacity_bytes}};
  }
  return memory;
}

void check(const Options& options) {
  if (options.steps < 1)
    throw InputError(fmt::format("--steps {}: not a positive number", options.steps),
                     "optimizer steps, e.g. --steps 100");
  check_optimizer(options.optimizer);
  check_output_path("--trace", options.trace);
}

ordered_json start_event(const Training& training, const TrainPlan& plan, const Options& options,
                         const fs::path& run) {
  const Problem& problem = training.schedule().problem();
  ordered_json event = {
      {"event", "start"},
      {"model", problem.model.name},
      {"policy", training.schedule().policy()},
      {"device", training.device_name()},
      {"steps", options.steps},
      {"workload",
       {{"batch", problem.workload.batch},
        {"micro_batch", problem.workload.micro_batch},
        {"micro_batches", problem.workload.micro_batches()},
        {"sequence", problem.workload.sequence},
        {"sequences_at_once", problem.workload.sequences_at_once},
        {"precision", problem.workload.precision == Precision::bf16 ? "bf16" : "fp32"},
        {"gradient_clip", to_string(problem.workload.clip)},
        {"on_nonfinite", to_string(problem.workload.on_nonfinite)}}},
      {"memory", memory_json(training.schedule())},
      {"predicted_step_seconds",
       plan.predicted_step_seconds ? ordered_json(*plan.predicted_step_seconds) : ordered_json()},
      {"seed", options.seed},
      {"run", run.string()},
      {"first_step", training.first_step()},
      {"durability",
       {{"commit_every", training.commit_interval()},
        {"bytes_copied_per_commit", training.bytes_copied_per_commit()}}}};
  if (training.throttle()) event["throttle"] = to_text(training.throttle()->rates());
  return event;
}

ordered_json step_event(const StepResult& step, double tokens, const ModelSpec& model) {
  ordered_json event = {{"event", "step"},
                        {"step", step.step},
                        {"loss", step.loss},
                        {"tokens_per_second", tokens / step.seconds},
                        {"step_seconds", step.seconds},
                        {"grad_norm", step.gradient_norm},
                        {"ssd_bytes_read", step.ssd_bytes_read},
                        {"ssd_bytes_written", step.ssd_bytes_written}};
  if (step.skipped_unit >= 0) {
    event["skipped"] = true;
    event["layer"] = unit_name(model, step.skipped_unit);
  }
  return event;
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
  const Workload& workload = schedule.problem().workload;
  if (workload.precision == Precision::bf16)
    fmt::print("  bf16, {} at once\n",
               workload.sequences_at_once == 1
                   ? "1 sequence"
                   : fmt::format("{} sequences", workload.sequences_at_once));
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    fmt::print("  {:<4} {:>10} of {}\n", to_string(tier),
               format_bytes(static_cast<double>(schedule.use(tier).peak_bytes)),
               format_bytes(static_cast<double>(schedule.use(tier).capacity_bytes)));
  }
  if (training.throttle()) fmt::print("  throttled to {}\n", to_text(training.throttle()->rates()));
  if (plan.predicted_step_seconds)
    fmt::print("  predicted: {} a step\n", format_seconds(*plan.predicted_step_seconds));
  fmt::print("  run folder: {}\n", run.string());
  flush_output();
}

void announce_durability(const Training& training) {
  const std::int64_t every = training.commit_interval();
  if (every == 0) return;
  const std::string when = every == 1 ? "every step" : fmt::format("every {} steps", every);
  if (training.bytes_copied_per_commit() == 0) {
    fmt::print("  commits: {}, at no extra writes\n", when);
  } else {
    fmt::print("  commits: {}, each writes {} of optimizer state that rests in memory\n", when,
               format_bytes(static_cast<double>(training.bytes_copied_per_commit())));
  }
}

void announce_end(const TrainingResult& result, const RunFolder& run, const fs::path& trace,
                  bool trained, bool exported, bool stopped, bool committed) {
  const std::string losses =
      trained ? fmt::format("loss {:.4f} to {:.4f}", result.first_loss, result.final_loss)
              : "all of them done before";
  fmt::print("{} steps, {}, weights {:016x}\n", result.steps, losses, result.weights_hash);
  fmt::print("trace: {}   (opens in https://ui.perfetto.dev; `spillway validate {}`)\n",
             trace.string(), trace.string());
  if (exported) fmt::print("weights: {}\n", run.file(RunFolder::weights).string());
  if (stopped && committed)
    fmt::print("to go on: spillway train --resume --run {}\n", run.path().string());
}

// What `--resume` goes on from: the options of the run where none are given now, and its last
// commit, if there is one yet.
std::optional<ResumePoint> resume(CLI::App& command, Options& options, const SavedRun& saved) {
  if (saved.complete && !saved.store) {
    throw InputError(fmt::format("--resume: the run in {} is complete", options.run),
                     "its weights are there; to be able to train on, start with --keep-store");
  }
  if (!saved.not_resumable.empty()) {
    throw InputError(fmt::format("--resume: there is nothing to go on from in {}: {}", options.run,
                                 saved.not_resumable),
                     "start another run, in a folder of its own");
  }
  const bool policy_given = command.count("--policy") > 0, data_given = command.count("--data") > 0;
  const bool ssd_given = command.count("--ssd") > 0;
  const bool micro_batch_given = command.count("--micro-batch") > 0;
  const bool precision_given = command.count("--precision") > 0;
  const bool sequences_given = command.count("--sequences-at-once") > 0;
  const bool device_given = command.count("--device") > 0 && options.device != "auto";
  apply_saved(command, saved);
  if (!saved.store) return {};  // it ended before its first commit: from the beginning
  ResumePoint point = find_resume_point(*saved.store);
  const TrainingRecord record = TrainingRecord::parse(point.record.identity.training);
  if (device_given && options.device != record.backend) {
    throw InputError(fmt::format("--resume: the run in {} is trained on device {}, not {}",
                                 options.run, record.backend, options.device),
                     "leave --device out: what is trained on another device has other numbers");
  }
  if (!policy_given) options.policy = record.policy;
  if (!micro_batch_given) options.problem.micro_batch = record.workload.micro_batch;
  // Chosen where the run began, and part of its numbers since.
  if (!device_given) options.device = record.backend;
  if (!precision_given)
    options.problem.precision = record.workload.precision == Precision::bf16 ? "bf16" : "fp32";
  if (!sequences_given) options.problem.sequences_at_once = record.workload.sequences_at_once;
  if (!data_given) {
    options.data.clear();
    for (const fs::path& path : record.data) options.data.push_back(path.string());
  }
  if (!ssd_given) {
    std::vector<std::string> directories;
    for (const fs::path& directory : saved.store->directories)
      directories.push_back(directory.string());
    options.ssd = fmt::format("{}", fmt::join(directories, ","));
  }
  return point;
}

// Where to train. A GPU computes in bf16 unless told otherwise.
DeviceChoice choose_device(Options& options, const ThrottleRates& throttle,
                           const std::optional<ResumePoint>& point) {
  const bool began_on_gpu =
      point && TrainingRecord::parse(point->record.identity.training).backend ==
                   TrainingRecord::cuda_backend;
  const DeviceChoice choice =
      spillway::choose_device({options.device, options.gpu, throttle.any(),
                               options.problem.machine_is_cpu(), began_on_gpu});
  if (choice.gpu && options.problem.precision.empty()) options.problem.precision = "bf16";
  return choice;
}

TrainHardware hardware_of(const DeviceChoice& choice, const ProblemOptions& options) {
  TrainHardware hardware;
  if (!choice.gpu) return hardware;
  hardware.cuda = true;
  hardware.choose_sequences_at_once = !options.sequences_at_once;
  if (options.gpu_memory.empty()) {
    const std::uint64_t free = cuda_free_bytes(choice.gpu->id);
    hardware.gpu_bytes = [free](const Problem& problem) {
      return gpu_tier_bytes(free, cuda_reserved_bytes(problem));
    };
  }
  return hardware;
}

// Everything that `train` sets up before the first step.
struct Preparation {
  TrainPlan plan;
  RunFolder folder;
  SavedRun saved;
  TrainingOptions training;
  std::string why_cpu;  // where the user left the choice to the program
};

// What a later --resume is to know: not how this run reports.
std::map<std::string, std::vector<std::string>> given(const CLI::App& command) {
  return options_given(command, {"resume", "run", "json", "quiet", "overwrite", "trace"},
                       {"data", "model", "machine", "ssd"});
}

Preparation prepare(CLI::App& command, Options& options) {
  SavedRun saved;
  std::optional<ResumePoint> point;
  if (options.resume) {
    if (options.run.empty())
      throw InputError("--resume needs to know which run to go on with", "--run DIR");
    saved = SavedRun::load(options.run);
    // What is given anew holds from here on, also for a later --resume.
    SavedRun merged = saved;
    for (auto& [name, values] : given(command)) merged.options[name] = std::move(values);
    point = resume(command, options, saved);
    saved = std::move(merged);
  } else {
    saved.options = given(command);
  }
  if (options.problem.model.empty()) throw CLI::RequiredError("--model");
  check(options);
  const Durability durability = parse_durability(options.durability);
  const ThrottleRates throttle = parse_throttle(options.throttle);
  const DeviceChoice device = choose_device(options, throttle, point);
  Problem problem = options.problem.problem();
  check_backend(problem, device.gpu.has_value());
  if (!options.problem.machine.empty())
    problem.machine = throttled_machine(problem.machine, throttle);
  std::vector<fs::path> drives = ssd_directories(options.ssd);
  const bool drives_given = !drives.empty();
  if (!drives_given) drives.push_back(nearest_existing(options.run.empty() ? "." : options.run));
  TrainPlan plan =
      plan_training(problem, options.problem.chooses_micro_batch(), options.policy,
                    options.problem.machine.empty(), drives, hardware_of(device, options.problem));
  RunFolder folder = options.resume ? RunFolder::open(options.run)
                                    : RunFolder(options.run, plan.problem.model.name);
  if (!drives_given) drives = {folder.make_ssd_folder()};
  TrainingOptions training;
  training.problem = plan.problem;
  training.policy = plan.policy;
  training.steps = options.steps;
  training.seed = options.seed;
  training.ssd = drives;
  training.optimizer = options.optimizer;
  training.threads = options.threads;
  if (device.gpu) {
    training.backend = TrainingRecord::cuda_backend;
    training.attention = attention_to_train_with(point);
    training.make_device = [problem = plan.problem,
                            cuda =
                                CudaOptions{device.gpu->id, options.threads, training.attention}](
                               std::uint64_t gpu_bytes, std::uint64_t host_bytes) {
      return make_cuda_device(problem, gpu_bytes, host_bytes, cuda);
    };
  }
  training.throttle = throttle;
  for (const std::string& path : options.data) training.data.emplace_back(path);
  if (options.data.empty()) training.data = default_text();
  training.durability = durability;
  training.resume = std::move(point);
  training.overwrite = options.overwrite;
  training.keep_store = true;              // until nothing needs it any more: see finish()
  training.may_be_done = !saved.complete;  // killed between its last commit and its end
  if (!durability.on() && !saved.store) saved.not_resumable = "it was made with --durability off";
  if (!options.resume) saved.save(folder.path());
  return {std::move(plan), std::move(folder), std::move(saved), std::move(training),
          command.count("--device") > 0 || cuda_driver_present() ? device.why : ""};
}

// From here on it is known where the state is now.
void remember_store(Training& training, SavedRun& saved, const RunFolder& folder) {
  if (training.commit_interval() == 0) return;
  saved.store = training.store_location();
  saved.complete = false;
  saved.not_resumable.clear();
  saved.save(folder.path());
  training.remove_previous_store();
}

// All is written. The store goes only after it is known that nobody needs it.
void finish(Training& training, SavedRun& saved, const RunFolder& folder, bool stopped,
            bool keep_store) {
  saved.complete = !stopped;
  saved.save(folder.path());
  if (stopped || keep_store) return;
  training.remove_previous_store();  // with --durability off it was kept until now
  training.discard_store();
  saved.store.reset();
  saved.save(folder.path());
}

void run(CLI::App& command, Options& options) {
  StopSignals signals;
  auto [plan, run_folder, saved, training_options, why_cpu] = prepare(command, options);
  Training training(training_options);
  if (!options.no_export) require_room(plan.problem.model, run_folder.path());
  if (StopSignals::came())
    throw MachineError("interrupted before the first step",
                       "nothing was trained, and nothing is left behind");

  Events events(run_folder.file(RunFolder::metrics), options.json, training.first_step(),
                training.commit_interval() > 0);
  // Without a machine file there are limits but no rates: nothing that could be read as a machine.
  if (!options.problem.machine.empty())
    write_file(run_folder.file(RunFolder::machine), machine_to_toml(plan.problem.machine));
  write_file(run_folder.file(RunFolder::model), model_to_toml(plan.problem.model));
  events.write(start_event(training, plan, options, run_folder.path()));
  const bool talks = !options.json && !options.quiet;
  if (talks) {
    announce(training, plan, run_folder.path());
    if (!why_cpu.empty()) fmt::print("  on the CPU: {}\n", why_cpu);
    announce_durability(training);
    if (training.first_step() > 0) fmt::print("  going on from step {}\n", training.first_step());
    flush_output();
  }
  for (const std::string& warning : training.warnings()) print_error("warning: " + warning + "\n");

  run_folder.keep();
  remember_store(training, saved, run_folder);
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
        line.show(step);
      },
      &trace,
      [&](std::int64_t step) {
        events.write({{"event", "commit"}, {"step", step}});
      });
  signals.on_stop({});
  line.finish();
  if (training.throttle()) {
    for (const std::string& warning : training.throttle()->warnings())
      print_error("warning: " + warning + "\n");
  }
  // The weights first: nothing that follows can lose them.
  if (!options.no_export) training.export_model(run_folder.file(RunFolder::weights));
  const bool stopped = result.steps < options.steps;
  ordered_json end = {{"event", "end"}, {"steps", result.steps}};
  if (result.steps > training.first_step()) end["final_loss"] = result.final_loss;
  end["weights_hash"] = fmt::format("{:016x}", result.weights_hash);
  if (stopped) end["interrupted"] = true;
  if (skipped_steps > 0) end["skipped_steps"] = skipped_steps;
  if (training.commit_interval() > 0)
    end["commit_bytes_written"] = training.bytes_written_by_commits();
  events.write(end);
  const fs::path trace_path =
      !options.trace.empty() ? fs::path(options.trace)
      : training.first_step() == 0
          ? run_folder.file(RunFolder::trace)
          : run_folder.file(
                fmt::format("trace-from-step-{}.json.gz", training.first_step()).c_str());
  write_trace(trace, trace_path);
  finish(training, saved, run_folder, stopped, options.keep_store);
  if (talks) {
    announce_end(result, run_folder, trace_path, result.steps > training.first_step(),
                 !options.no_export, stopped, training.commit_interval() > 0);
  }
}

}  // namespace

void add_train(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("train", "train for real under the memory limits given");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, false);
  command->get_option("--model")->required(false);  // --resume knows it
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
  command
      ->add_option("--device", options->device,
                   "cpu | cuda | auto: a GPU where there is one, unless --machine describes a CPU "
                   "or --throttle is given")
      ->capture_default_str();
  command->add_option("--gpu", options->gpu,
                      "number of the GPU, as nvidia-smi lists them; default: the first that can be "
                      "used");
  command
      ->add_option("--threads", options->threads,
                   "threads for matrix products, and as many for the optimizer")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--throttle", options->throttle,
                      "make the CPU backend as slow as another machine, e.g. h2d=2GB/s,d2h=2GB/s,"
                      "ssd.read=800MB/s; also ssd.write, ssd.total, gpu=20GFLOPS, gpu.optimizer, "
                      "optimizer=100Mparam/s");
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
  command->add_option("--durability", options->durability,
                      "step: every step can be resumed; interval=N: every N steps; off: none, and "
                      "half the space on the SSD; default: step where all optimizer state rests on "
                      "the SSD, else interval=50");
  command->add_flag(
      "--resume", options->resume,
      "go on with the run in --run from its last commit, bit for bit; policy, limits, "
      "--ssd and a larger --steps may be given anew");
  command->add_flag("--keep-store", options->keep_store,
                    "keep the optimizer state once all steps are done, to train on later");
  command->add_flag("--overwrite", options->overwrite,
                    "replace another unfinished training that lies in the --ssd directories");
  command->add_flag("--no-export", options->no_export, "do not write model.safetensors at the end");
  command->add_flag("--json", options->json, "print one JSON object a line");
  command->add_flag("--quiet", options->quiet, "print errors only");
  command->callback([options, command] { run(*command, *options); });
}

}  // namespace spillway::cli
