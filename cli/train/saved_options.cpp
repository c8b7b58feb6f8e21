#include "cli/train/saved_options.hpp"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/errors.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

// Of one path or several, separated by commas; what is not there is no path (a built-in name).
std::string absolute_paths(const std::string& text) {
  std::string result;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::error_code error;
    const fs::path canonical = fs::canonical(part, error);
    result += (result.empty() ? "" : ",") + (error ? part : canonical.string());
  }
  return result;
}

bool among(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_kept(const std::string& option) {
  static const std::vector<std::string> never = {
      "help",  "resume",    "run",          "json", "quiet",        "overwrite",
      "trace", "take-over", "remove-store", "io",   "retune-matmul"};
  return !among(never, option);
}

}  // namespace

SavedOptions options_given(const CLI::App& command, const std::vector<std::string>& paths) {
  SavedOptions given;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (option->count() == 0 || !is_kept(name)) continue;
    std::vector<std::string> values = option->results();
    for (std::string& value : values) {
      if (among(paths, name)) value = absolute_paths(value);
    }
    given[name] = std::move(values);
  }
  return given;
}

void apply_saved(CLI::App& command, const SavedOptions& saved) {
  for (const auto& [name, values] : saved) {
    CLI::Option* const option = command.get_option_no_throw("--" + name);
    if (option == nullptr || !is_kept(name) || option->count() > 0 || values.empty()) continue;
    option->add_result(values);
    try {
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      throw InputError("run.json is damaged: " + std::string(error.what()),
                       "restore it from a backup");
    }
  }
}

}  // namespace spillway::cli
