// Config files of a training: what they take, what is refused and where, and what holds above them.
#include "experiments/train/train_config.hpp"

#include <catch2/catch.hpp>
#include <fstream>

#include "experiments/train/kept_settings.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

using Texts = std::vector<std::string>;

GivenSettings parsed(const std::string& text, const std::filesystem::path& folder = "/nowhere") {
  return parse_train_config(text, "mine.toml", folder);
}

// A text that the setting takes, in TOML.
std::string value_of(const TrainSetting& setting) {
  static const std::map<std::string, std::string> special = {
      {"micro_batch", "4"},
      {"sequence", "64"},
      {"sequences_at_once", "1"},
      {"precision", "\"fp32\""},
      {"gradient_clip", "\"global=1\""},
      {"gpu", "0"},
      {"train_layers", "1"},
      {"epochs", "2"},
      {"tokens", "1000"},
      {"decay_steps", "50"},
      {"warmup", "\"3%\""},
      {"learning_rate_schedule", "\"cosine\""}};
  if (const auto found = special.find(setting.key); found != special.end()) return found->second;
  if (setting.form == SettingForm::list) return "[\"1\", \"2\"]";
  const bool quoted = setting.form == SettingForm::text || setting.form == SettingForm::mixed ||
                      setting.form == SettingForm::parts;
  const std::string text = setting.usual.empty() ? "a" : setting.usual;
  return quoted ? "\"" + text + "\"" : text;
}

}  // namespace

TEST_CASE("every setting of a training is a key of a config file") {
  for (const TrainSetting& setting : train_settings()) {
    if (setting.key == "set") continue;
    INFO(setting.key << " = " << value_of(setting));
    const GivenSettings given = parsed(setting.key + " = " + value_of(setting));
    REQUIRE(given.size() == 1);
    CHECK(given.contains(setting.key));
    CHECK_NOTHROW(read_train_settings(given));
    // Written and read again, it is the same.
    CHECK(parsed(config_line(setting, given.at(setting.key))) == given);
  }
}

TEST_CASE("every setting says what it is, and its default is one that it takes") {
  for (const TrainSetting& setting : train_settings()) {
    INFO(setting.key);
    CHECK(setting.help.text().size() > 8);
    if (setting.usual.empty()) continue;
    CHECK_NOTHROW(read_train_settings({{setting.key, {setting.usual}}}));
  }
}

TEST_CASE("strings, numbers, booleans and arrays of a config file become texts of settings") {
  const GivenSettings given = parsed(
      "model = \"gpt-tiny\"\ndata = [\"/a\", \"/b=0.5\"]\nlearning_rate = 3e-4\n"
      "seed = \"18446744073709551615\"\nwarmup = 10\nvalidation = \"1%\"\nno_export = true\n"
      "epochs = 2\ngradient_bits = 32\nssd = [\"/d0\", \"/d1\"]\n"
      "[set]\nssd.count = 6\nmodel.layers = 4\n");
  CHECK(given.at("data") == Texts{"/a", "/b=0.5"});
  CHECK(given.at("ssd") == Texts{"/d0,/d1"});
  CHECK(given.at("warmup") == Texts{"10"});
  CHECK(given.at("set") == Texts{"model.layers=4", "ssd.count=6"});
  const TrainSettings settings = read_train_settings(given);
  CHECK(settings.optimizer.learning_rate == 3e-4);
  CHECK(settings.seed == 18446744073709551615u);
  CHECK(settings.no_export);
  CHECK(settings.epochs == 2);
}

TEST_CASE("what a config file cannot mean is refused at its line, with the nearest known key") {
  const auto refused = [](const std::string& text, const std::string& what,
                          const std::string& hint) {
    INFO(text);
    const InputError error = input_error([&] { parsed(text); });
    CHECK_THAT(error.what(), Catch::Contains(what));
    CHECK_THAT(error.hint(), Catch::Contains(hint));
  };
  refused("model = \"m\"\nlearning-rate = 1", "mine.toml:2:1: unknown key learning-rate",
          "did you mean learning_rate");
  refused("stepz = 1", "mine.toml:1:1: unknown key stepz", "steps");
  refused("resume = true", "mine.toml:1:1: resume is no setting", "command line");
  refused("steps = \"10\"", "mine.toml:1:9: steps is a string", "steps = 100");
  refused("steps = 1.5", "steps is a number", "steps = 100");
  refused("model = 5", "model is an integer", "model = ");
  refused("no_export = 1", "no_export is an integer", "no_export = true");
  refused("\n\nlearning_rate = nan", "mine.toml:3:17: learning_rate = nan is not a number", "");
  refused("tune_matmul = \"maybe\"", "mine.toml:1:15: tune_matmul = maybe is none of on, off", "");
  refused("data = []", "data is empty", "leave it out");
  refused("data = [[\"a\"]]", "data is an array", "data = [");
  refused("ssd = { count = 6 }", "ssd is a table", "[set]");
  refused("steps = 1\nsteps = 2", "mine.toml:2", "docs/config.md");
  refused("steps = ", "mine.toml:1", "docs/config.md");
  refused("steps = 1\nepochs = 2", "each say how long", "one of them");
  refused("set = 1", "set is an integer", "[set]");
  refused("[set]\nssd.cuont = 6", "mine.toml:2:5: unknown key ssd.cuont in [set]", "ssd.count");
  refused("[set]\nmodel.layer = 6", "unknown key model.layer in [set]", "model.layers");
  refused("[set]\nlearning_rate = 1", "unknown key learning_rate in [set]", "above [set]");
  refused("[set]\nssd.count = \"many\"", "mine.toml:2:13: ssd.count: \"many\" is not a whole", "");
  refused("model = \"a\\u0000b\"", "zero byte", "without");
}

TEST_CASE("paths of a config file are below its folder, names stay names") {
  const test::TemporaryFolder folder;
  std::ofstream(folder / "chats.jsonl") << "{}\n";
  std::ofstream(folder / "gpt-tiny") << "a file of a built-in model's name\n";
  std::filesystem::create_directory(folder / "mine");
  const std::filesystem::path here = folder / "";
  const auto one = [&](const std::string& line) {
    return parsed(line, here.parent_path()).begin()->second.front();
  };
  CHECK(one("data = \"chats.jsonl\"") == (here / "chats.jsonl").string());
  CHECK(one("data = \"chats.jsonl=2\"") == (here / "chats.jsonl=2").string());
  CHECK(one("data = \"missing\"") == (here / "missing").string());
  CHECK(one("data = \"/a/b\"") == "/a/b");
  CHECK(one("model = \"gpt-tiny\"") == "gpt-tiny");
  CHECK(one("model = \"mine\"") == (here / "mine").string());
  CHECK(one("model = \"org/name\"") == "org/name");  // of Hugging Face
  CHECK(one("model = \"other.toml\"") == (here / "other.toml").string());
  CHECK(one("machine = \"testbed\"") == "testbed");
  CHECK(one("machine = \"m.toml\"") == (here / "m.toml").string());
  CHECK(one("tokenizer = \"bytes\"") == "bytes");
  CHECK(one("chat_template = \"chatml\"") == "chatml");
  CHECK(one("validation = \"1%\"") == "1%");
  CHECK(one("validation = 20") == "20");
  CHECK(one("validation = \"held.jsonl\"") == (here / "held.jsonl").string());
  CHECK(one("ssd = \"d0,/d1\"") == (here / "d0").string() + ",/d1");
  CHECK(one("ssd = [\",d0\", \",\"]") == (here / "d0").string());
  CHECK(one("run = \"runs/first\"") == (here / "runs/first").string());
}

TEST_CASE("assignments are settings, or keys of the machine and the model") {
  const GivenSettings given =
      with_assignments({{"model", {"gpt-tiny"}},
                        {"set",
                         {"learning_rate=1e-4", "ssd.count=6", "steps=10", "steps=20", "data=a",
                          "data=b", "keep=", "model.layers=2"}}});
  CHECK(given.at("set") == Texts{"ssd.count=6", "model.layers=2"});
  CHECK(given.at("learning_rate") == Texts{"1e-4"});
  CHECK(given.at("steps") == Texts{"20"});
  CHECK(given.at("data") == Texts{"a", "b"});
  CHECK(given.at("keep").empty());
  check_error(
      [] {
        with_assignments({{"steps", {"1"}}, {"set", {"steps=2"}}});
      },
      "steps and set = steps=2 both say the same setting", "one of them");
  check_error(
      [] {
        with_assignments({{"set", {"stepz=2"}}});
      },
      "set = stepz=2: unknown setting stepz", "steps");
}

TEST_CASE("what is given holds above a file") {
  const GivenSettings file = {{"steps", {"100"}},     {"learning_rate", {"1e-3"}},
                              {"keep", {"3"}},        {"set", {"ssd.count=6", "gpu.memory=1GB"}},
                              {"data_hash", {"abc"}}, {"batch", {"4"}}};
  const GivenSettings all = above_file({{"epochs", {"2"}},
                                        {"learning_rate", {"1e-4"}},
                                        {"keep", {}},
                                        {"set", {"gpu.memory=2GB", "pcie.h2d=1GB/s"}}},
                                       file);
  CHECK_FALSE(all.contains("steps"));  // one of them says how long
  CHECK(all.at("epochs") == Texts{"2"});
  CHECK(all.at("learning_rate") == Texts{"1e-4"});
  CHECK_FALSE(all.contains("keep"));
  CHECK(all.at("set") == Texts{"ssd.count=6", "gpu.memory=2GB", "pcie.h2d=1GB/s"});
  CHECK(all.contains("data_hash"));
  CHECK(all.at("batch") == Texts{"4"});
  CHECK_FALSE(above_file({{"sequence", {"8"}}}, file).contains("data_hash"));
}

TEST_CASE("of a file a resumed run is given anew what has changed since") {
  SavedRun saved;
  const GivenSettings given = {{"warmup", {"3%"}}, {"steps", {"100"}}, {"keep", {"1"}}};
  GivenSettings settled = given;
  settled["warmup"] = {"3"};
  saved.options = to_save(settled, given, {});
  CHECK(settings_in(saved) == settled);
  CHECK(changed_since(given, saved).empty());
  GivenSettings edited = given;
  edited["steps"] = {"200"};
  edited["batch"] = {"4"};
  CHECK(changed_since(edited, saved) == GivenSettings{{"steps", {"200"}}, {"batch", {"4"}}});
  edited = given;
  edited["warmup"] = {"5%"};
  CHECK(changed_since(edited, saved) == GivenSettings{{"warmup", {"5%"}}});
  // What was given otherwise stays known after another start.
  saved.options = to_save(settled, {{"keep", {"2"}}}, saved.options);
  CHECK_FALSE(changed_since(given, saved).contains("warmup"));
}

}  // namespace spillway
