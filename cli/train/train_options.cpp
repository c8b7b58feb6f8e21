#include "cli/train/train_options.hpp"

#include "cli/options/setting_options.hpp"
#include "policies/framework/framework.hpp"

namespace spillway::cli {

void add_train_options(CLI::App& command, TrainOptions& options) {
  command.add_option("--config", options.config,
                     "a TOML file whose keys are these settings by name (learning_rate = 1e-4), as "
                     "`spillway init` writes it and each run keeps it; options hold above it");
  for (const TrainSetting& setting : train_settings()) add_setting_option(command, setting);
  command.get_option("--set")->description(
      "KEY=VALUE of any setting above --config (learning_rate=1e-4; no value: its default), and of "
      "keys of the machine or the model (ssd.count=6 model.layers=48)");
  // Not listed by --help: it is known here so that its refusal can say why.
  command.add_option_function<std::string>("--framework", require_own_framework)->group("");
  const auto act = [&](const char* name, bool& value, const char* help) {
    command.add_flag(name, value, help);
  };
  act("--resume", options.resume,
      "go on with the run in --run from its last commit, bit for bit; policy, limits, "
      "--ssd and a larger --steps may be given anew");
  act("--take-over", options.take_over,
      "with --resume: also where another run's folder, or a run on another computer, claims the "
      "same state and surely is not at work");
  act("--retune-matmul", options.retune_matmul,
      "with --resume: choose the algorithms of matrix products anew, for another GPU or other CUDA "
      "libraries; from there on numbers agree to rounding only");
  act("--overwrite", options.overwrite,
      "replace another unfinished training that lies in the --ssd directories");
  act("--dry-run", options.dry_run,
      "settle everything, build the schedules, and say what the training comes to: memory, time, "
      "bytes on the SSD; nothing is written");
  act("--json", options.json, "print one JSON object a line");
  act("--quiet", options.quiet, "print errors only");
}

}  // namespace spillway::cli
