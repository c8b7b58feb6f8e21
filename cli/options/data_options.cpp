#include "cli/options/data_options.hpp"

#include "cli/options/setting_options.hpp"
#include "cli/text/flags.hpp"

namespace spillway::cli {

namespace {

// An option whose text is kept in `value`; help and choices are the setting's.
void add(CLI::App& command, const char* key, std::string& value) {
  CLI::Option* const option = command.add_option(flag_of(key), value, setting_help(key));
  const TrainSetting& setting = *find_train_setting(key);
  if (!setting.choices.empty()) option->check(CLI::IsMember(setting.choices));
  if (!setting.usual.empty()) option->capture_default_str();
}

}  // namespace

void add_document_options(CLI::App& command, DataSettings& settings) {
  add(command, "tokenizer", settings.tokenizer);
  add(command, "data_format", settings.data_format);
  add(command, "chat_template", settings.chat_template);
  add(command, "template_date", settings.template_date);
  for (const auto& [key, value] : {std::pair{"parse_special", &settings.parse_special},
                                   std::pair{"skip_malformed", &settings.skip_malformed}})
    command.add_flag(flag_of(key), *value, setting_help(key));
  add(command, "train_on", settings.train_on);
}

void add_data_options(CLI::App& command, DataSettings& settings) {
  add_document_options(command, settings);
  add(command, "pack", settings.pack);
  add(command, "long_documents", settings.long_documents);
  add(command, "validation", settings.validation);
}

}  // namespace spillway::cli
