#include "cli/options/plugin_option.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "base/errors.hpp"
#include "policies/common/plugin_loader.hpp"

namespace spillway::cli {

namespace {

constexpr const char* variable = "SPILLWAY_PLUGINS";

// Commands that have policies without an option --policy: in a file, in a trace, or all there are.
constexpr std::array names_of_others = {"policies", "report", "sweep", "tune", "validate"};

bool has_policies(const CLI::App& command) {
  if (command.get_option_no_throw("--policy") != nullptr) return true;
  return std::find(names_of_others.begin(), names_of_others.end(), command.get_name()) !=
         names_of_others.end();
}

void load_from_environment() {
  const char* const named = std::getenv(variable);
  if (named == nullptr) return;
  std::istringstream list(named);
  for (std::string path; std::getline(list, path, ':');) {
    if (path.empty()) continue;
    try {
      load_plugin(path);
    } catch (const InputError& error) {
      throw InputError(std::string(variable) + " names " + error.message(), error.advice());
    }
  }
}

}  // namespace

void add_plugin_option(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) {
    if (!has_policies(*command)) continue;
    command->preparse_callback([](std::size_t) { load_from_environment(); });
    command
        ->add_option_function<std::vector<std::string>>(
            "--plugin",
            [](const std::vector<std::string>& paths) {
              for (const std::string& path : paths) load_plugin(path);
            },
            "shared library whose policies are known, too (docs/write-a-policy.md); may be "
            "repeated")
        ->type_name("FILE")
        ->allow_extra_args(false);
  }
}

}  // namespace spillway::cli
