// Settings are written as flags in one place, and every setting that is named has its flag.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "experiments/train/train_settings.hpp"
#include "test_paths.hpp"
#include "tests/cli/program.hpp"
#include "tests/workload_values.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

std::string flag_of(std::string setting) {
  std::replace(setting.begin(), setting.end(), '_', '-');
  return "--" + setting;
}

// Of one command.
std::set<std::string> flags_of(const std::string& command) {
  const std::string help = run({command, "--help"}).out;
  const std::regex flag("--[a-z][a-z0-9-]*");
  return {std::sregex_token_iterator(help.begin(), help.end(), flag), {}};
}

}  // namespace

TEST_CASE("every field of a workload is an option, and is in the JSON of what it was given to") {
  const std::set<std::string> of_train = flags_of("train");
  Words arguments = {"simulate", "--model",  "gpt-tiny", "--machine", "testbed",
                     "--policy", "resident", "--json",   "--set",     "gpu.memory=10GB"};
  for (const auto& [key, text] : unusual_workload()) {
    CHECK(of_train.contains(flag_of(key)));
    arguments = arguments + Words{flag_of(key), text};
  }
  const auto workload = run(arguments).json()["workload"];
  for (const auto& [key, text] : unusual_workload()) {
    INFO(key);
    CHECK((workload[key].is_string() ? workload[key].get<std::string>() : workload[key].dump()) ==
          text);
  }
}

TEST_CASE("every setting that a run keeps is an option of train") {
  const std::set<std::string> flags = flags_of("train");
  for (const spillway::TrainSetting& setting : spillway::train_settings()) {
    INFO(setting.key);
    CHECK(flags.contains(flag_of(setting.key)));
  }
}

TEST_CASE("every setting that a message names has a flag") {
  std::set<std::string> flags;
  for (const char* command :
       {"train", "export", "simulate", "calibrate", "sweep", "bench", "knee", "fit"})
    flags.merge(flags_of(command));
  const std::regex named("Setting\\{\"([a-z0-9_]+)\"");
  std::size_t found = 0;
  for (const char* folder : {"base", "traces", "policies", "sim", "exec", "experiments"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             std::filesystem::path(SPILLWAY_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".cpp") continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      const std::string source = text.str();
      for (std::sregex_iterator it(source.begin(), source.end(), named), end; it != end; ++it) {
        INFO(entry.path() << ": " << (*it)[1]);
        CHECK(flags.contains(flag_of((*it)[1])));
        ++found;
      }
    }
  }
  CHECK(found > 50);
}

TEST_CASE("keys of files are overrides on the command line, and limits have flags of their own") {
  const Words tiny = {"simulate", "--model", "gpt-tiny", "--machine", "testbed"};
  check_refusal(run(tiny + Words{"--policy", "resident", "--sequence", "2000"}), 2,
                "sequence 2000 is longer", "--set model.positions=2000");
  const Outcome large =
      run(tiny + Words{"--policy", "resident", "--gpu-memory", "1MB", "--batch", "1"});
  CHECK(large.exit_code == 3);
  CHECK_THAT(large.err, Catch::Contains("--gpu-memory "));
}
