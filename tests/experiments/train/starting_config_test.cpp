// The config file that `init` writes: every setting is in it, and what is commented out can be
// taken in.
#include "experiments/train/starting_config.hpp"

#include <catch2/catch.hpp>
#include <sstream>

#include "experiments/train/train_config.hpp"

namespace spillway {

TEST_CASE("a config file to begin with has every setting, given or commented out") {
  const GivenSettings given = {{"model", {"gpt-tiny"}}, {"data", {"/here/chats.jsonl", "/b"}},
                               {"epochs", {"3"}},       {"machine", {"/here/machine.toml"}},
                               {"warmup", {"3%"}},      {"policy", {"auto"}}};
  const std::string text = starting_config_text(given, "/here", "# the plan\n");
  CHECK(parse_train_config(text, "mine.toml", "/here") == given);
  CHECK(text.find("data = [\"chats.jsonl\", \"/b\"]") != std::string::npos);
  CHECK(text.find("# the plan\n") != std::string::npos);
  for (const TrainSetting& setting : train_settings()) {
    if (setting.key == "set" || setting.key == "data_hash" || setting.key == "weights_hash")
      continue;
    INFO(setting.key);
    const std::string line = setting.key + " =";
    const bool is_given = text.find("\n" + line) != std::string::npos;
    CHECK(is_given == given.contains(setting.key));
    if (!is_given) CHECK(text.find("\n# " + line) != std::string::npos);
  }
}

TEST_CASE("every default in a config file to begin with is one that it takes") {
  std::istringstream lines(starting_config_text({}, "/here", ""));
  int taken = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (!line.starts_with("# ") || equals == std::string::npos) continue;
    const std::string key = line.substr(2, equals - 2);
    if (find_train_setting(key) == nullptr) continue;
    INFO(line);
    const GivenSettings given = parse_train_config(line.substr(2), "mine.toml", "/here");
    CHECK(given.at(key).back() == find_train_setting(key)->usual);
    ++taken;
  }
  CHECK(taken > 30);
}

}  // namespace spillway
