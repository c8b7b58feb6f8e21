// spillway calibrate: measures this computer and writes a machine file.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/progress.hpp"
#include "experiments/calibrate.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string out = "machine.toml";
  std::string model = "gpt-small";
  std::int64_t batch = 8, sequence = 256;
  std::string ssd = ".";
  int threads = 1, samples = 11;
  bool quiet = false;
};

void print_summary(const Machine& m, const std::string& out) {
  fmt::print("{}: {:.0f} cores, kernels up to {}\n", m.name, m.host.cores,
             format_flops_per_second(m.gpu.flops));
  fmt::print("  copies       to the gpu tier {}, back {}; memory {}\n",
             format_bytes_per_second(m.pcie.h2d), format_bytes_per_second(m.pcie.d2h),
             format_bytes_per_second(m.host.bandwidth));
  fmt::print("  optimizer    {:.2f} Gparam/s\n", m.host.adam_params_per_second / 1e9);
  fmt::print("  ssd          read {}, write {}, both {}\n", format_bytes_per_second(m.ssd.read),
             format_bytes_per_second(m.ssd.write), format_bytes_per_second(m.ssd.total));
  fmt::print("{} measurements with their samples are in {}\n", m.kernels.size(), out);
}

void run(const Options& options) {
  CalibrationOptions calibration;
  calibration.model = load_model(options.model);
  calibration.sequence = options.sequence;
  calibration.samples = options.samples;
  calibration.threads = options.threads;
  if (options.batch < 1)
    throw InputError("--batch must be at least 1", "sequences per step, e.g. --batch 8");
  if (options.samples < 10)
    throw InputError("--samples must be at least 10", "fewer do not make a median to rely on");
  for (std::int64_t b = 1; b <= options.batch; ++b) {
    if (options.batch % b == 0) calibration.micro_batches.push_back(b);
  }
  std::istringstream list(options.ssd);
  for (std::string item; std::getline(list, item, ',');) calibration.ssd.emplace_back(item);
  for (const fs::path& directory : calibration.ssd) {
    if (!fs::is_directory(directory)) {
      throw InputError(fmt::format("--ssd {}: there is no such directory", directory.string()),
                       "create it, or check that the drive is mounted");
    }
  }
  check_output_path("--out", options.out);

  Progress progress(!options.quiet);
  const auto began = std::chrono::steady_clock::now();
  const Machine machine = calibrate(calibration, [&](const std::string& what, int done, int all) {
    const double used =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const std::string eta = done > 2 ? "  ETA " + format_clock(used / done * (all - done)) : "";
    progress.show(fmt::format("measuring {}/{}: {}{}", done + 1, all, what, eta));
  });
  progress.finish();
  write_file(options.out, machine_to_toml(machine));
  if (!options.quiet) print_summary(machine, options.out);
}

}  // namespace

void add_calibrate(CLI::App& app, int&) {
  CLI::App* command =
      app.add_subcommand("calibrate", "measure this machine and write a machine file");
  auto options = std::make_shared<Options>();
  command->add_option("--out", options->out, "the machine file to write")->capture_default_str();
  command->add_option("--model", options->model, "measure the kernels of this model")
      ->capture_default_str();
  command->add_option("--batch", options->batch, "... at all micro-batches that divide this batch")
      ->capture_default_str();
  command->add_option("--sequence", options->sequence, "... and sequences of this length")
      ->capture_default_str();
  command
      ->add_option("--ssd", options->ssd,
                   "directories on the drives to measure, separated by commas")
      ->capture_default_str();
  command->add_option("--threads", options->threads, "as `train` will be given")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--samples", options->samples, "samples per figure, at least 10")
      ->capture_default_str();
  command->add_flag("--quiet", options->quiet, "print errors only");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
