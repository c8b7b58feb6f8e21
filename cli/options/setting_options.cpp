#include "cli/options/setting_options.hpp"

#include "base/errors.hpp"
#include "cli/text/flags.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway::cli {

std::string setting_help(const std::string& key) {
  if (const TrainSetting* const setting = find_train_setting(key)) return flags_in(setting->help);
  // What a training takes from mpirun: it can be asked about all the same.
  const WorkloadField* const field = find_workload_field(key);
  SPILLWAY_ASSERT(field != nullptr, key);
  return field->help;
}

void add_setting_option(CLI::App& command, const TrainSetting& setting) {
  const std::string flag = flag_of(setting.key), help = flags_in(setting.help);
  CLI::Option* option = nullptr;
  switch (setting.form) {
    case SettingForm::flag:
      option = command.add_flag(flag, help);
      break;
    case SettingForm::list:
      option = command.add_option_function<std::vector<std::string>>(
          flag, [](const std::vector<std::string>&) {}, help);
      break;
    default:
      option = command.add_option_function<std::string>(
          flag, [](const std::string&) {}, help);
      option->type_name(setting.form == SettingForm::whole    ? "INT"
                        : setting.form == SettingForm::large  ? "UINT"
                        : setting.form == SettingForm::number ? "FLOAT"
                                                              : "TEXT");
      option->default_str(setting.usual);
  }
  if (!setting.choices.empty()) option->check(CLI::IsMember(setting.choices));
  option->group(title_of(setting.group));
}

}  // namespace spillway::cli
