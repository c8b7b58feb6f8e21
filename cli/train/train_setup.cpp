#include "cli/train/train_setup.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "cli/train/saved_options.hpp"
#include "cli/train/train_algorithms.hpp"
#include "cli/train/train_checks.hpp"
#include "cli/train/train_notes.hpp"
#include "exec/run/cuda_module.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/plan/train_device.hpp"
#include "experiments/testbed/throttled_machine.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

// What `--resume` goes on from: the options of the run where none are given now, and its last
// commit, if there is one yet.
std::optional<ResumePoint> resume(CLI::App& command, TrainOptions& options, RunFolder& folder,
                                  const IoChoice& io) {
  const SavedRun& saved = folder.saved();
  if (!saved.not_resumable.empty()) {
    throw InputError(fmt::format("--resume: there is nothing to go on from in {}: {}", options.run,
                                 saved.not_resumable),
                     "start another run, in a folder of its own");
  }
  const bool policy_given = command.count("--policy") > 0, data_given = command.count("--data") > 0;
  const bool micro_batch_given = command.count("--micro-batch") > 0;
  const bool precision_given = command.count("--precision") > 0;
  const bool sequences_given = command.count("--sequences-at-once") > 0;
  const bool device_given = command.count("--device") > 0 && options.device != "auto";
  Progress progress(!options.json && !options.quiet);
  ResumeState state =
      folder.resume({ssd_directories(options.ssd), options.take_over,
                     [&](std::uint64_t done, std::uint64_t total) {
                       progress.show(fmt::format("checking the copy: {} of {}",
                                                 format_bytes(static_cast<double>(done)),
                                                 format_bytes(static_cast<double>(total))),
                                     done == total);
                     },
                     io.make_ring});
  progress.finish();
  apply_saved(command, saved.options);
  if (!state.note.empty() && !options.quiet) {
    // A copy may come from somebody else.
    const std::string text =
        options.data.empty() ? "" : fmt::format("; its text: {}", fmt::join(options.data, ", "));
    print_error(state.note + text + "\n");
  }
  if (!state.point) return {};  // it ended before its first commit: from the beginning
  const ResumePoint& point = *state.point;
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
  std::vector<std::string> directories;
  for (const fs::path& directory : state.ssd) directories.push_back(directory.string());
  options.ssd = fmt::format("{}", fmt::join(directories, ","));
  return point;
}

// Where to train. A GPU computes in bf16 unless told otherwise, the CPU in fp32.
DeviceChoice choose_device(TrainOptions& options, const ThrottleRates& throttle,
                           const std::optional<ResumePoint>& point) {
  const bool began_on_gpu =
      point && TrainingRecord::parse(point->record.identity.training).backend ==
                   TrainingRecord::cuda_backend;
  const DeviceChoice choice =
      spillway::choose_device({options.device, options.gpu, throttle.any(),
                               options.problem.machine_backend(), began_on_gpu});
  if (options.problem.precision.empty()) options.problem.precision = choice.gpu ? "bf16" : "fp32";
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

// What a later --resume is to know: not how this run reports.
SavedOptions given(const CLI::App& command) {
  return options_given(command, {"data", "model", "machine", "ssd"});
}

}  // namespace

Preparation prepare(CLI::App& command, TrainOptions& options) {
  std::optional<RunFolder> resumed;
  std::optional<ResumePoint> point;
  SavedOptions saved_options = given(command);
  const IoChoice io = options.io.choose();
  if (options.resume) {
    if (options.run.empty())
      throw InputError("--resume needs to know which run to go on with", "--run DIR");
    check(options);
    resumed.emplace(RunFolder::open(options.run, options.take_over));
    point = resume(command, options, *resumed, io);
    // What is given anew holds from here on, also for a later --resume.
    saved_options.merge(SavedOptions(resumed->saved().options));
  }
  if (options.problem.model.empty()) throw CLI::RequiredError("--model");
  if (!options.resume) refuse_model_of_run(options.problem.model);
  check(options);
  const Durability durability = parse_durability(options.durability);
  const ThrottleRates throttle = parse_throttle(options.throttle);
  const DeviceChoice device = choose_device(options, throttle, point);
  Problem problem = options.problem.problem(device.gpu.has_value());
  check_backend(problem, device.gpu.has_value());
  if (!device.gpu) refuse_without_gpu(command);
  if (!options.problem.machine.empty())
    problem.machine = throttled_machine(problem.machine, throttle);
  std::vector<fs::path> drives = ssd_directories(options.ssd);
  const bool drives_given = !drives.empty();
  if (!drives_given) drives.push_back(nearest_existing(options.run.empty() ? "." : options.run));
  // What can be refused at once is, before anything takes long.
  if (!resumed) RunFolder::require_new(options.run);
  std::vector<fs::path> data(options.data.begin(), options.data.end());
  if (data.empty()) data = default_text();
  auto dataset = std::make_shared<const Dataset>(data, options.seed, Dataset::default_memory_limit,
                                                 options.binary_data);
  dataset->require(problem.workload.sequence, problem.model.vocabulary);
  TrainHardware hardware = hardware_of(device, options.problem);
  const auto rates = std::make_shared<MeasuredRates>();
  hardware.measure =
      [measure = measure_this_machine(
           {drives, io, options.threads, device.gpu, throttle, options.quiet}, rates)](
          const Problem& of, const std::vector<std::int64_t>& micro_batches) {
        StopSignals::enter(StopSignals::Phase::preparing);  // there are files to be removed
        Machine measured = measure(of, micro_batches);
        StopSignals::enter(StopSignals::Phase::planning);
        return measured;
      };
  Activity planning("choosing how to train");
  StopSignals::enter(StopSignals::Phase::planning);
  TrainPlan plan =
      plan_training(problem, options.problem.chooses_micro_batch(), options.policy,
                    options.problem.machine.empty(), drives, hardware, {durability, options.steps});
  StopSignals::enter(StopSignals::Phase::preparing);
  RunFolder folder =
      resumed ? std::move(*resumed) : RunFolder::create(options.run, plan.problem.model.name);
  folder.saved().options = std::move(saved_options);
  if (!drives_given) drives = {folder.make_ssd_folder()};
  TrainingOptions training;
  training.problem = plan.problem;
  training.policy = plan.policy;
  training.steps = options.steps;
  training.seed = options.seed;
  training.ssd = drives;
  training.make_ring = io.make_ring;
  training.optimizer = options.optimizer;
  training.threads = options.threads;
  const auto listener = std::make_shared<std::function<void(const std::string&)>>();
  if (device.gpu) {
    training.place =
        place_beside(numa_node_of_pci(device.gpu->pci_bus), numa_nodes(), options.threads);
    CudaOptions cuda = cuda_options(command, options, plan.problem, *device.gpu, point);
    cuda.say = [listener](const std::string& text) {
      if (*listener) (*listener)(text);
    };
    train_on(cuda, plan.problem, training);
    training.retunes_products = options.retune_matmul;
  }
  training.throttle = throttle;
  training.predicted_step_seconds = plan.predicted_step_seconds.value_or(0);
  training.data = std::move(data);
  training.binary_data = options.binary_data;
  training.dataset = std::move(dataset);
  training.durability = durability;
  training.resume = std::move(point);
  training.overwrite = options.overwrite;
  training.run = folder.identity();
  training.keep_store = true;                       // see finish()
  training.may_be_done = !folder.saved().complete;  // killed between its last commit and its end
  if (!durability.on() && !folder.saved().store)
    folder.saved().not_resumable = "it was made with --durability off";
  if (!options.resume) folder.save();
  return {std::move(plan),
          std::move(folder),
          std::move(training),
          command.count("--device") > 0 || cuda_driver_present() ? device.why : "",
          options.problem.machine.empty()
              ? ""
              : other_machine_note(problem.machine, device.gpu.has_value(), device.why),
          rates,
          listener,
          io};
}

}  // namespace spillway::cli
