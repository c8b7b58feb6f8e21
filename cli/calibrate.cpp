// spillway calibrate: measures this computer and writes a machine file.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/io_option.hpp"
#include "cli/text/output.hpp"
#include "cli/train/measure_machine.hpp"
#include "exec/ranks/mpi_module.hpp"
#include "experiments/calibrate/calibrate.hpp"
#include "experiments/calibrate/calibrate_ranks.hpp"
#include "experiments/calibrate/gpu_under_test.hpp"
#include "experiments/train/train_checks.hpp"
#include "policies/cost/link_rates.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string out = "machine.toml";
  std::string device = "cpu", model, precision, micro_batches;
  std::optional<std::int64_t> batch, sequence;
  std::int64_t sequences_at_once = 0;
  std::optional<int> gpu;
  SsdTexts ssd = {"."};
  IoOption io;
  int threads = 1, samples = 11;
  bool quiet = false;
};

// Of a micro-batch; more is a slip of the keyboard.
constexpr std::int64_t most_sequences_at_once = 1'000'000;

// What is measured where nothing is said: the models that the devices are for.
struct Defaults {
  const char* model;
  const char* precision;
  std::int64_t batch, sequence;
};
constexpr Defaults cpu_defaults{"gpt-small", "fp32", 8, 256},
    cuda_defaults{"gpt2-124m", "bf16", 16, 1024};

const std::string first_line = "# Measured by `spillway calibrate`, which replaces this file.\n";

const ReplaceOnly& only_a_calibration() {
  static const ReplaceOnly only = {
      "a machine file of `spillway calibrate`", [](std::span<const std::byte> head) {
        return head.size() >= first_line.size() &&
               std::memcmp(head.data(), first_line.data(), first_line.size()) == 0;
      }};
  return only;
}

// Half of the bytes read, half written.
std::string both_text(const Machine::Ssd& ssd) {
  const DriveRates rates = drive_rates(ssd, ssd.at_queue_depth());
  return format_bytes_per_second(1 / rates.seconds(0.5, 0.5));
}

void print_summary(const Machine& m, const IoChoice& io, const std::string& out) {
  fmt::print("{}: {:.0f} cores, kernels up to {}\n", m.name, m.host.cores,
             format_flops_per_second(m.gpu.flops));
  fmt::print("  copies       to the gpu tier {}, back {}; memory {}\n",
             format_bytes_per_second(m.pcie.h2d), format_bytes_per_second(m.pcie.d2h),
             format_bytes_per_second(m.host.bandwidth));
  fmt::print("  optimizer    {:.2f} Gparam/s\n", m.host.adam_params_per_second / 1e9);
  if (m.backend() == Backend::cuda) {
    fmt::print("  gpu          {} usable, optimizer {:.2f} Gparam/s, {} from task to task\n",
               format_bytes(static_cast<double>(m.gpu.memory)), m.gpu.adam_params_per_second / 1e9,
               format_seconds(static_cast<double>(m.gpu.launch_ns) / 1e9));
  }
  for (int set = 0; set < m.drive_sets(); ++set) {
    const Machine::Ssd& drives = m.drives(set);
    fmt::print("  {:<12} read {}, write {}, both {}\n", drive_set_name(set),
               format_bytes_per_second(drives.read), format_bytes_per_second(drives.write),
               both_text(drives));
  }
  if (m.ssd.count > 0) fmt::print("  {}\n", io_line(io));
  for (const TrialTime& trial : m.trials) {
    fmt::print(
        "  trial        {}, batch {}: predicted {}, took {}: {:+.1f} %\n", trial.policy,
        trial.batch, format_seconds(static_cast<double>(trial.predicted_ns) / 1e9),
        format_seconds(static_cast<double>(trial.median_ns) / 1e9),
        100 * (static_cast<double>(trial.predicted_ns) / static_cast<double>(trial.median_ns) - 1));
  }
  fmt::print("{} measurements with their samples are in {}\n", m.kernels.size(), out);
}

std::vector<std::int64_t> micro_batches_of(const Options& options, std::int64_t batch) {
  std::vector<std::int64_t> all;
  if (options.micro_batches.empty()) {
    if (batch < 1)
      throw InputError("--batch must be at least 1", "sequences per step, e.g. --batch 8");
    for (std::int64_t b = 1; b <= batch; ++b) {
      if (batch % b == 0) all.push_back(b);
    }
    return all;
  }
  std::istringstream list(options.micro_batches);
  for (std::string item; std::getline(list, item, ',');) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), value);
    if (error != std::errc() || end != item.data() + item.size() || value < 1) {
      throw InputError(fmt::format("--micro-batches {}: {} is not a number of sequences",
                                   options.micro_batches, item),
                       "numbers separated by commas, e.g. --micro-batches 1,2,4,8");
    }
    all.push_back(value);
  }
  return all;
}

// What to measure on which device, with the device's defaults for what was not said.
CalibrationOptions calibration_of(const Options& options) {
  const bool is_cuda = options.device == "cuda";
  const Defaults& defaults = is_cuda ? cuda_defaults : cpu_defaults;
  const std::string precision = options.precision.empty() ? defaults.precision : options.precision;
  CalibrationOptions calibration;
  calibration.model = load_model(options.model.empty() ? defaults.model : options.model);
  calibration.sequence = options.sequence.value_or(defaults.sequence);
  calibration.samples = options.samples;
  calibration.threads = options.threads;
  calibration.precision = precision == "bf16" ? Precision::bf16 : Precision::fp32;
  calibration.sequences_at_once = options.sequences_at_once;
  if (!is_cuda && options.gpu)
    throw InputError(fmt::format("--gpu {} does not go with --device cpu", *options.gpu),
                     "leave it out, or use --device cuda");
  if (!is_cuda && options.sequences_at_once > 1)
    throw InputError("--sequences-at-once: the CPU backend works on one sequence at a time",
                     "leave it out, or use --device cuda");
  if (options.samples < 10)
    throw InputError("--samples must be at least 10", "fewer do not make a median to rely on");
  calibration.micro_batches = micro_batches_of(options, options.batch.value_or(defaults.batch));
  calibration.io = options.io.choose();
  return calibration;
}

void run(const Options& options) {
  CalibrationOptions calibration = calibration_of(options);
  const DriveFolders drives = ssd_directories(options.ssd);
  calibration.ssd = drives.all;
  calibration.ssd_sets = drives.sets;
  const std::optional<LaunchedRank> launched = launched_rank();
  if (launched && options.device == "cuda")
    throw InputError("several ranks calibrate the CPU backend",
                     "leave out mpirun, or --device cuda");
  if (!launched || launched->rank == 0)
    check_output_path("--out", options.out, &only_a_calibration());
  if (options.device == "cuda") calibration.gpu = open_gpu(options.gpu, options.threads);

  const auto note = [&](const std::string& text) {
    if (!options.quiet) print_error(fmt::format("note: {}\n", text));
  };
  Machine machine;
  if (launched) {
    RankTeam team(start_mpi());
    try {
      machine = calibrate_ranks(team, calibration,
                                measuring_progress(options.quiet || launched->rank > 0),
                                launched->rank > 0 ? CalibrationNote() : note);
    } catch (...) {
      team.fail(std::current_exception());
      throw;
    }
    if (launched->rank > 0) return;
  } else {
    machine = calibrate(calibration, measuring_progress(options.quiet), note);
  }
  write_file(options.out, first_line + machine_to_toml(machine), &only_a_calibration());
  if (!options.quiet) print_summary(machine, calibration.io, options.out);
}

}  // namespace

void add_calibrate(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("calibrate", "measure this machine and write a machine file");
  auto options = std::make_shared<Options>();
  command->add_option("--out", options->out, "the machine file to write")->capture_default_str();
  command->add_option("--device", options->device, "cpu | cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option(
      "--gpu", options->gpu,
      "number of the GPU, as nvidia-smi lists them; default: the first that can be used");
  command->add_option("--model", options->model,
                      "measure the kernels of this model (gpt-small; cuda: gpt2-124m)");
  CLI::Option* const batch = command->add_option(
      "--batch", options->batch, "... at all micro-batches that divide this batch (8; cuda: 16)");
  command->add_option("--micro-batches", options->micro_batches, "... at these: B[,B]")
      ->excludes(batch);
  command->add_option("--sequence", options->sequence,
                      "... and sequences of this length (256; cuda: 1024)");
  command->add_option("--precision", options->precision, "bf16 | fp32 (fp32; cuda: bf16)")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  command
      ->add_option("--sequences-at-once", options->sequences_at_once,
                   "sequences that kernels of the GPU work on at once (as many as in training)")
      ->check(CLI::Range(std::int64_t{1}, most_sequences_at_once));
  command
      ->add_option("--ssd", options->ssd[0],
                   "directories on the drives to measure, separated by commas")
      ->capture_default_str();
  for (int set = 1; set < most_drive_sets; ++set)
    command->add_option(std::string("--") + drive_set_name(set),
                        options->ssd[static_cast<std::size_t>(set)],
                        "directories on drives of another speed, a set of its own");
  options->io.add_to(*command);
  command->add_option("--threads", options->threads, "as `train` will be given")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--samples", options->samples, "samples per figure, at least 10")
      ->capture_default_str();
  command->add_flag("--quiet", options->quiet, "print errors only");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
