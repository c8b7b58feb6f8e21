#include "cli/text/flags.hpp"

#include <algorithm>

namespace spillway::cli {

std::string flag_of(const std::string& setting) {
  std::string flag = "--" + setting;
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string setting_of(const std::string& flag) {
  std::string setting = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::replace(setting.begin(), setting.end(), '-', '_');
  return setting;
}

std::string flag_text(const Setting& setting) {
  const auto& [name, value] = setting;
  const bool is_limit = name == "gpu.memory" || name == "host.memory";
  if (name.find('.') != std::string::npos && !is_limit) return "--set " + name + "=" + value;
  std::string option = name;
  std::replace(option.begin(), option.end(), '.', '_');
  return flag_of(option) + (value.empty() ? "" : " " + value);
}

std::string flags_in(const Message& message) { return message.text(flag_text); }

}  // namespace spillway::cli
