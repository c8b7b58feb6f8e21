#include "cli/train/given_settings.hpp"

#include "cli/text/flags.hpp"

namespace spillway::cli {

GivenSettings settings_given(const CLI::App& command) {
  GivenSettings given;
  for (const CLI::Option* option : command.get_options()) {
    const std::string setting = setting_of(option->get_single_name());
    if (option->count() > 0 && is_train_setting(setting)) given[setting] = option->results();
  }
  return given;
}

}  // namespace spillway::cli
