#include "cli/train/given_settings.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "cli/options/io_option.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/train/train_notes.hpp"
#include "exec/run/run_folder.hpp"
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

GivenSettings with_file(const GivenSettings& given, const TrainOptions& options,
                        GivenSettings of_file) {
  if (!options.resume) return above_file(given, std::move(of_file));
  const GivenSettings all = above_file(given, of_file);
  const std::string run = read_train_settings(all).start.run;
  if (run.empty()) return all;  // refused, where a run is looked for
  return above_file(given, changed_since(of_file, RunFolder::look(run).saved()));
}

}  // namespace

TrainRequest train_request(const CLI::App& command, const TrainOptions& options,
                           GivenSettings& of_file) {
  const GivenSettings by_options = settings_given(command);
  if (!options.config.empty()) of_file = load_train_config(options.config);
  const GivenSettings given =
      options.config.empty() ? above_file(by_options, {}) : with_file(by_options, options, of_file);
  std::erase_if(of_file, [&](const auto& one) { return by_options.contains(one.first); });
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
  request.rank_timeout = settings.start.rank_timeout;
  request.io = choose_named_io(settings.start.io);
  request.resume = options.resume;
  request.take_over = options.take_over;
  request.retune_matmul = options.retune_matmul;
  request.overwrite = options.overwrite;
  request.dry_run = options.dry_run;
  return request;
}

Message as_given(const Message& message, const GivenSettings& of_file, const std::string& file) {
  return message.text([&](const Setting& setting) {
    const auto found = of_file.find(setting.name);
    const bool is_of_file =
        found != of_file.end() && (setting.value.empty() || setting.value == found->second.back());
    return is_of_file ? fmt::format("{} (in {})", plain_setting(setting), file)
                      : flag_text(setting);
  });
}

}  // namespace spillway::cli
