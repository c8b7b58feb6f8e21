// spillway init: a commented config file for this machine, a model and data.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/setting_options.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/train/dry_run.hpp"
#include "cli/train/preparation.hpp"
#include "cli/train/stopped_run.hpp"
#include "experiments/train/starting_config.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

struct InitOptions {
  std::string model = "gpt-tiny", machine, tokenizer, out = "spillway.toml";
  std::vector<std::string> data;
  bool force = false;
};

void require_new_config(const InitOptions& options) {
  check_output_path("--out", options.out);
  std::error_code ignored;
  if (options.force || !fs::exists(options.out, ignored)) return;
  throw InputError(fmt::format("--out {}: it is there already", options.out),
                   "name another file, or replace it: --force");
}

// What `--policy auto` comes to, as comments.
std::string plan_comment(const TrainingJob& job, const TrainingOutlook& outlook) {
  const TrainPlan& plan = job.plan();
  std::string text = fmt::format(
      "  policy {}\n  micro-batches of {}; predicted: {} a step, {} for {} steps\n",
      outlook.start.schedules->usual().policy(), plan.problem.workload.micro_batch,
      plan.predicted_step_seconds ? format_seconds(*plan.predicted_step_seconds) : "unknown time",
      plan.predicted_step_seconds ? long_time(*outlook.wear.run_seconds()) : "unknown time",
      outlook.steps_left());
  text += memory_text(outlook);
  std::string comment = "# With the settings in this file, on this machine, \"auto\" is now:\n";
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    comment += "# " + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return comment;
}

void run(const InitOptions& options) {
  require_new_config(options);
  StopSignals signals;
  Preparation preparation(false, false);
  const TrainListener listener = preparation.listener();
  TrainRequest request;
  request.settings =
      starting_settings(options.model, options.data, options.machine, options.tokenizer,
                        {listener.doing, listener.stop, listener.note});
  request.dry_run = true;
  TrainingJob job(request, listener);
  const TrainingOutlook outlook = job.look_ahead(options.machine.empty());
  preparation.end();
  const fs::path out = fs::absolute(options.out).lexically_normal();
  std::error_code error;
  const fs::path folder = fs::canonical(out.parent_path(), error);
  write_file(FilePlace(options.out),
             starting_config_text(request.settings, folder, plan_comment(job, outlook)));
  fmt::print("{}", outlook_text(job, outlook));
  fmt::print("{} is written\n  to train:        spillway train --config {}\n", options.out,
             shell_word(options.out));
}

}  // namespace

void add_init(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "init", "write a commented config file for `train`: for this machine, a model and data");
  auto options = std::make_shared<InitOptions>();
  command->add_option("--model", options->model, setting_help("model"))->capture_default_str();
  command->add_option("--data", options->data, setting_help("data"));
  command->add_option("--tokenizer", options->tokenizer, setting_help("tokenizer"));
  command->add_option("--machine", options->machine,
                      setting_help("machine") + "; default: this machine is measured, once");
  command->add_option("--out", options->out, "the file to write")->capture_default_str();
  command->add_flag("--force", options->force, "replace a file that is there");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
