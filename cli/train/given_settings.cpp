#include "cli/train/given_settings.hpp"

#include "base/errors.hpp"
#include "cli/options/io_option.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/train/train_notes.hpp"
#include "experiments/train/train_config.hpp"
#include "traces/perfetto.hpp"

namespace spillway::cli {

namespace {

GivenSettings settings_given(const CLI::App& command) {
  GivenSettings given;
  for (const CLI::Option* option : command.get_options()) {
    const std::string setting = setting_of(option->get_single_name());
    if (option->count() > 0 && find_train_setting(setting) != nullptr)
      given[setting] = option->results();
  }
  return with_assignments(std::move(given));
}

GivenSettings with_file(const GivenSettings& given, const TrainOptions& options) {
  GivenSettings of_file = load_train_config(options.config);
  if (!options.resume) return above_file(given, std::move(of_file));
  const GivenSettings all = above_file(given, of_file);
  const std::string run = read_train_settings(all).start.run;
  if (run.empty()) return all;  // refused, where a run is looked for
  GivenSettings changed = changed_since(of_file, SavedRun::load(Directory(run)));
  return above_file(given, std::move(changed));
}

}  // namespace

TrainRequest train_request(const CLI::App& command, const TrainOptions& options) {
  const GivenSettings by_options = settings_given(command);
  const GivenSettings given =
      options.config.empty() ? above_file(by_options, {}) : with_file(by_options, options);
  const TrainSettings settings = read_train_settings(given);
  if (!options.resume && settings.problem.model.empty()) throw CLI::RequiredError("--model");
  if (!options.resume && by_options.contains("model")) refuse_model_of_run(settings.problem.model);
  check_output_path("--trace", settings.start.trace, &only_a_trace());
  TrainRequest request;
  for (const auto& [key, texts] : given)
    if (is_train_setting(key)) request.settings[key] = texts;
  request.run = settings.start.run;
  request.trace = settings.start.trace;
  request.remove_store = settings.start.remove_store;
  request.retune = settings.start.retune;
  request.io = choose_named_io(settings.start.io);
  request.resume = options.resume;
  request.take_over = options.take_over;
  request.retune_matmul = options.retune_matmul;
  request.overwrite = options.overwrite;
  request.dry_run = options.dry_run;
  return request;
}

}  // namespace spillway::cli
