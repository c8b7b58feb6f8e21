// Config files of `train`: any text, read as TOML. What is taken is written and read again.
#include "experiments/train/train_config.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(train_config) {
  GivenSettings given;
  if (!fuzz::accepted(
          [&] { given = parse_train_config(fuzz::text_of(input), "config.toml", "/nowhere"); }))
    return;
  std::string text;
  for (const auto& [key, texts] : given) {
    fuzz::require(!texts.empty(), "every setting that is given has a text");
    if (key == "set") continue;
    const TrainSetting* const setting = find_train_setting(key);
    fuzz::require(setting != nullptr, "every key is a setting");
    text += config_line(*setting, texts);
  }
  if (const auto set = given.find("set"); set != given.end()) {
    text += "[set]\n";
    for (const std::string& one : set->second) text += override_line(one);
  }
  fuzz::require(fuzz::accepted([&] { read_train_settings(given); }), "the settings are taken");
  GivenSettings again;
  fuzz::require(fuzz::accepted([&] { again = parse_train_config(text, "again.toml", "/nowhere"); }),
                "what is written is read");
  // Numbers may be spelled otherwise.
  for (const auto& [key, texts] : given) {
    const SettingForm form = find_train_setting(key)->form;
    const bool number =
        form == SettingForm::number || form == SettingForm::whole || form == SettingForm::large;
    fuzz::require(number || again[key] == texts, "a setting read again is the same");
  }
  fuzz::require(fuzz::accepted([&] {
                  above_file(with_assignments({{"set", given["set"]}}), again);
                }),
                "overrides of a file are assignments");
}
