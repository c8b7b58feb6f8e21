// Names and paths from files and from the command line: shown, never obeyed.
#include <catch2/catch.hpp>

#include "base/text.hpp"
#include "test_paths.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

const std::string escape = "\x1b[2J", turned = "\xe2\x80\xae";

std::string model_named(const std::string& name) {
  return "[[model]]\nname = \"" + name +
         "\"\nlayers = 2\nhidden = 32\nheads = 2\nvocabulary = 256\npositions = 64\n";
}

// Every line of text can be shown.
void check_shown(const std::string& text) {
  for (const std::string& line : lines_of(text)) {
    INFO(line);
    CHECK_FALSE(spillway::find_unprintable(line));
  }
}

}  // namespace

TEST_CASE("Names of models and machines that a terminal would obey or hide are refused") {
  const TemporaryFolder folder;
  const std::string machine =
      read_file(std::string(SPILLWAY_SOURCE_DIR) + "/machines/testbed.toml");
  for (const auto& [name, message] : std::vector<std::pair<std::string, std::string>>{
           {"a\\u001b[2Jb", "the control character U+001B"},
           {"a\\u009b2Jb", "the control character U+009B"},
           {"a\\nb", "the control character U+000A"},
           {"gpt\\u202e31", "the invisible character U+202E"},
           {"gpt\\u200b13b", "the invisible character U+200B"}}) {
    INFO(name);
    const std::string model = folder.write("m.toml", model_named(name));
    const Outcome outcome = run({"estimate", "--model", model, "--machine", "testbed", "--policy",
                                 "resident", "--sequence", "16"});
    CHECK(outcome.exit_code == 2);
    CHECK_THAT(outcome.err,
               Catch::Contains("m.toml:2:8: name: ") && Catch::Contains("holds " + message));
    check_shown(outcome.err);
    std::string other = machine;
    other.replace(other.find("\"testbed\""), 9, "\"" + name + "\"");
    const Outcome refused =
        run(Words{"estimate", "--machine", folder.write("x.toml", other), "--policy", "resident"} +
            tiny_problem());
    CHECK(refused.exit_code == 2);
    check_shown(refused.err);
  }
}

TEST_CASE("Paths and wrong values are shown in errors with what is unprintable spelled out") {
  const TemporaryFolder folder;
  const Words problem = Words{"estimate", "--machine", "testbed", "--policy", "resident"};
  const Outcome missing = run(problem + Words{"--model", folder / ("no" + escape + ".toml")});
  CHECK(missing.exit_code == 2);
  CHECK_THAT(missing.err, Catch::Contains("no\\u001b[2J.toml"));
  check_shown(missing.err);
  const std::string broken =
      folder.write("b" + turned + ".toml", "[[model]]\nname = \"m\"\nx\x1b\n");
  for (const Words& arguments :
       {problem + Words{"--model", broken}, Words{"estimate", "--policy", escape} + tiny_problem(),
        problem + tiny_problem() + Words{"--set", "gpu." + escape + "=1"},
        problem + tiny_problem() + Words{"--precision", "\xff\xfe"}, Words{escape},
        Words{"simulate", "--" + escape}, Words{"validate", folder / ("t" + escape)},
        Words{"train", "--model", "gpt-tiny", "--data", folder / escape},
        Words{"sweep", folder / (escape + ".toml"), "--out", folder / "o"}}) {
    const Outcome outcome = run(arguments);
    CHECK(outcome.exit_code != 0);
    CHECK_FALSE(outcome.err.empty());
    check_shown(outcome.err);
    check_shown(outcome.out);
  }
}

TEST_CASE("Paths are shown on standard output with what is unprintable spelled out") {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / ("runs" + escape + turned));
  Words training = tiny_training(folder);
  for (std::string& word : training) {
    if (word == folder / "run") word = folder / ("runs" + escape + turned + "/r");
  }
  const Outcome told = run(training);
  INFO(told.err);
  CHECK(told.exit_code == 0);
  CHECK_THAT(told.out, Catch::Contains("runs\\u001b[2J\\u202e/r"));
  check_shown(told.out);
}

TEST_CASE("What is JSON stays JSON where characters are spelled out") {
  const TemporaryFolder folder;
  Words training = tiny_training(folder);
  const std::string path = folder / ("r" + turned + "\xf3\xa0\x81\x81");
  for (std::string& word : training) {
    if (word == folder / "run") word = path;
  }
  const Outcome told = run(training + Words{"--json"});
  INFO(told.err);
  REQUIRE(told.exit_code == 0);
  check_shown(told.out);
  CHECK(told.json_lines().front()["run"] == path);
}
