#include "experiments/train/train_settings.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace spillway {

const TrainSetting* find_train_setting(const std::string& key) {
  const auto& all = train_settings();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const TrainSetting& s) { return s.key == key; });
  return found == all.end() ? nullptr : &*found;
}

bool is_train_setting(const std::string& key) {
  const TrainSetting* const setting = find_train_setting(key);
  return setting != nullptr && setting->kept;
}

void settle_learning_rate(TrainSettings& settings, GivenSettings& given) {
  OptimizerSettings& o = settings.optimizer;
  if (settings.warmup_share > 0) {
    o.warmup_steps = std::llround(settings.warmup_share * static_cast<double>(settings.steps));
    settings.warmup_share = 0;
    given["warmup"] = {std::to_string(o.warmup_steps)};
  }
  if (!given.contains("learning_rate_schedule") && o.decay_steps > 0)
    o.shape = LearningRateShape::cosine;
  if (o.shape != LearningRateShape::constant && o.decay_steps == 0) {
    o.decay_steps = settings.steps;
    given["decay_steps"] = {std::to_string(o.decay_steps)};
  }
}

TrainSettings read_train_settings(const GivenSettings& given) {
  TrainSettings settings;
  for (const auto& [key, texts] : given) {
    if (key == "framework" && !texts.empty()) require_own_framework(texts.back());
    const TrainSetting* const setting = find_train_setting(key);
    if (setting == nullptr) {
      std::vector<std::string> keys;
      for (const TrainSetting& one : train_settings()) keys.push_back(one.key);
      throw InputError("unknown setting " + key, unknown_name_hint(key, keys));
    }
    if (!texts.empty()) setting->read(settings, texts);
  }
  return settings;
}

}  // namespace spillway
