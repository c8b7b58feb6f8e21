#include "experiments/train/starting_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "base/errors.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "experiments/train/kept_settings.hpp"
#include "experiments/train/train_config.hpp"
#include "policies/model/model_folder.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

// Passes over records: few chats are seen more than once; running text is long.
constexpr const char *epochs_of_records = "3", *epochs_of_text = "1";
// Peak learning rate of a model that has learned before.
constexpr const char* gentle_learning_rate = "2e-05";
constexpr double evaluations = 10, fewest_steps_to_learn = 300;
constexpr std::size_t line_length = 100;

// How chats become text where the model's makers do not say it: as the refusal recommends; else
// nothing.
std::optional<std::string> recommended_template(const InputError& error) {
  for (const Setting& setting : error.advice().settings())
    if (setting.name == "chat_template" && !setting.value.empty()) return setting.value;
  return {};
}

struct Look {
  TrainingData data;
  std::string validation, chat_template;
};

// The data, with a part held out where it is large enough for that.
Look look_at(DataRequest request, const DataListener& listener) {
  std::vector<const char*> shares = {"", "10%", "1%"};
  while (!shares.empty()) {
    request.settings.validation = shares.back();
    try {
      auto data = open_training_data(request, listener);
      if (!data) throw MachineError("stopped while the data was prepared");
      return {std::move(*data), shares.back(), request.settings.chat_template};
    } catch (const InputError& error) {
      const std::optional<std::string> other = recommended_template(error);
      if (other && request.settings.chat_template != *other) {
        request.settings.chat_template = *other;
        continue;
      }
      if (shares.size() == 1) throw;
      shares.pop_back();
    }
  }
  SPILLWAY_ASSERT(false);
}

std::string wrapped(const std::string& text) {
  std::string lines, line = "#";
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (line.size() + 1 + word.size() > line_length) {
      lines += line + "\n";
      line = "#";
    }
    line += " " + word;
  }
  return lines + line + "\n";
}

// A path as the file names it: relative where it is below the file's folder.
std::string path_in(const fs::path& folder, const std::string& key, const std::string& text) {
  const fs::path path(text);
  if (!path.is_absolute() || !is_inside(path, folder)) return text;
  const std::string relative = path.lexically_relative(folder).string();
  return key == "data" ? relative : "./" + relative;  // else it could be a name
}

}  // namespace

GivenSettings starting_settings(const std::string& model, const std::vector<std::string>& data,
                                const std::string& machine, const std::string& tokenizer,
                                const DataListener& listener) {
  GivenSettings given = {{"model", {model}}, {"policy", {"auto"}}, {"gradient_clip", {"global=1"}}};
  if (!data.empty()) given["data"] = data;
  if (!machine.empty()) given["machine"] = {machine};
  if (!tokenizer.empty()) given["tokenizer"] = {tokenizer};
  given = kept(given);
  TrainSettings settings = read_train_settings(given);
  const Problem problem = settings.problem.problem();
  const std::optional<ModelFolder> folder = find_model_folder(settings.problem.model);
  const bool learned = folder && SafetensorsFolder::has_weights(folder->path);
  given["batch"] = {std::to_string(problem.workload.batch)};
  given["sequence"] = {std::to_string(problem.workload.sequence)};
  given["learning_rate"] = {learned ? gentle_learning_rate
                                    : find_train_setting("learning_rate")->usual};
  given["warmup"] = {"3%"};
  given["learning_rate_schedule"] = {"cosine"};
  given["seed"] = {find_train_setting("seed")->usual};
  if (data.empty()) {
    given["steps"] = {find_train_setting("steps")->usual};
    return given;
  }
  DataRequest request;
  request.settings = settings.data;
  if (folder) request.model_folder = folder->path;
  request.learned = learned;
  request.vocabulary = problem.model.vocabulary;
  request.sequence = problem.workload.sequence;
  request.sequences_per_step = problem.workload.batch;
  request.seed = settings.seed;
  const Look look = look_at(request, listener);
  const bool records = look.data.summary.packing == "packed";
  given["epochs"] = {records ? epochs_of_records : epochs_of_text};
  // One that has learned nothing before needs more than to see a few records three times.
  if (const double needed = fewest_steps_to_learn / look.data.steps_of_epoch;
      records && !learned && needed > std::stod(given["epochs"].back()))
    given["epochs"] = {fmt::format("{}", std::llround(std::ceil(needed)))};
  if (look.chat_template != settings.data.chat_template)
    given["chat_template"] = {look.chat_template};
  if (look.validation.empty()) return given;
  given["validation"] = {look.validation};
  const double steps = std::stod(given["epochs"].back()) * look.data.steps_of_epoch;
  given["evaluate_every"] = {
      std::to_string(std::max<std::int64_t>(1, std::llround(steps / evaluations)))};
  return given;
}

std::string starting_config_text(const GivenSettings& settings, const fs::path& folder,
                                 const std::string& plan) {
  std::string text =
      "# A training, for `spillway train`. What is commented out is as it is written there, or is\n"
      "# left to Spillway. Paths are relative to this file's folder. docs/config.md says more.\n\n";
  const std::vector<TrainSetting>& all = train_settings();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const TrainSetting& setting = all[i];
    if (setting.key == "set" || setting.key == "data_hash" || setting.key == "weights_hash")
      continue;
    if (i == 0 || all[i - 1].group != setting.group) {
      text += fmt::format("{0:#<{1}}\n# {2}\n\n", "", line_length, title_of(setting.group));
      if (setting.group == SettingGroup::plan) text += plan + "\n";
    }
    text += wrapped(setting.help.text());
    const auto given = settings.find(setting.key);
    if (given == settings.end()) {
      text += setting.usual.empty() ? fmt::format("# {} =\n\n", setting.key)
                                    : "# " + config_line(setting, {setting.usual}) + "\n";
      continue;
    }
    std::vector<std::string> texts = given->second;
    for (std::string& one : texts) one = path_in(folder, setting.key, one);
    text += config_line(setting, texts) + "\n";
  }
  return text + fmt::format(
                    "\n{:#<{}}\n# Keys of the machine and of the model\n\n# [set]\n"
                    "# ssd.count = 6\n# model.layers = 48\n",
                    "", line_length);
}

}  // namespace spillway
