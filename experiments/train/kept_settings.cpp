#include "experiments/train/kept_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "base/errors.hpp"
#include "experiments/train/training_data.hpp"
#include "text/chat/chat_template.hpp"

namespace spillway {

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

// Of a tokenizer or template that is no file, whatever lies in the folder.
bool is_name(const std::string& text) {
  const std::vector<std::string> templates = built_in_templates();
  return text == "auto" || text == "bytes" ||
         std::find(templates.begin(), templates.end(), text) != templates.end();
}

// How long a training is, in one of these.
constexpr std::array<const char*, 3> lengths = {"steps", "epochs", "tokens"};

std::int64_t lengths_in(const GivenSettings& given) {
  return std::count_if(lengths.begin(), lengths.end(),
                       [&](const char* key) { return given.contains(key); });
}

// What decides how data is read, with what holds where nothing is given.
constexpr std::pair<const char*, const char*> reading[] = {
    {"data_format", "auto"},   {"binary_data", "false"}, {"skip_malformed", "false"},
    {"chat_template", "auto"}, {"template_date", ""},    {"parse_special", "false"},
    {"train_on", "assistant"}, {"pack", "auto"},         {"long_documents", "auto"},
    {"validation", ""}};

std::string text_of(const GivenSettings& given, const std::string& key, const char* otherwise) {
  const auto found = given.find(key);
  return found == given.end() || found->second.empty() ? otherwise : found->second.back();
}

[[noreturn]] void refuse_other_reading(const Setting& setting, const Message& before) {
  throw InputError(setting + ": the training to go on with began " + before,
                   "a resumed training goes on bit for bit: leave the option out, or start another "
                   "run");
}

}  // namespace

void require_same_reading(const GivenSettings& now, const GivenSettings& before,
                          const std::string& data_rules) {
  if (const std::string named = text_of(now, "tokenizer", "auto");
      named != "auto" && named != text_of(before, "tokenizer", "auto")) {
    const std::uint64_t hash = open_tokenizer(named, {})->hash();
    if (!data_rules.starts_with(fmt::format("tokenizer {:016x},", hash)) && !data_rules.empty())
      refuse_other_reading({"tokenizer", named}, "with another tokenizer");
  }
  for (const auto& [key, otherwise] : reading) {
    if (!now.contains(key)) continue;
    const std::string text = text_of(now, key, otherwise), old = text_of(before, key, otherwise);
    const bool is_file = key == std::string("chat_template") && !(is_name(text) && is_name(old));
    if (text == old || is_file) continue;
    const bool was_given = !old.empty() && old != otherwise;
    refuse_other_reading({key, text == "true" ? "" : text},
                         was_given ? "with " + Setting{key, old} : "without " + Setting{key});
  }
}

GivenSettings kept(GivenSettings given) {
  const auto each = [&](const char* key, std::string (*absolute)(const std::string&)) {
    if (const auto texts = given.find(key); texts != given.end())
      std::transform(texts->second.begin(), texts->second.end(), texts->second.begin(), absolute);
  };
  for (const char* key : {"model", "machine", "adapter"}) each(key, absolute_paths);
  for (const char* key : drive_set_names) each(key, absolute_paths);
  for (const char* key : {"data", "tokenizer", "chat_template", "validation"})
    each(key, [](const std::string& text) { return is_name(text) ? text : absolute_source(text); });
  return given;
}

GivenSettings to_save(GivenSettings settled, const GivenSettings& given,
                      const GivenSettings& before) {
  GivenSettings all = settled;
  for (const auto& [key, texts] : before) {
    const std::size_t base = key.size() - std::min(key.size(), std::strlen(as_given_suffix));
    if (key.ends_with(as_given_suffix) && !given.contains(key.substr(0, base))) all[key] = texts;
  }
  for (const auto& [key, texts] : given) {
    const auto found = settled.find(key);
    if (found != settled.end() && found->second != texts) all[key + as_given_suffix] = texts;
  }
  return all;
}

void require_one_length(const GivenSettings& given) {
  if (lengths_in(given) < 2) return;
  throw InputError(Setting{"steps"} + ", " + Setting{"epochs"} + " and " + Setting{"tokens"} +
                       " each say how long to train",
                   "give one of them");
}

GivenSettings added_to(GivenSettings now, GivenSettings before) {
  if (lengths_in(now) > 0)
    for (const char* key : lengths) before.erase(key);
  // Who names drives names all of them.
  const auto is_given = [&](const char* key) { return now.contains(key); };
  if (std::any_of(drive_set_names.begin(), drive_set_names.end(), is_given))
    for (const char* key : drive_set_names) before.erase(key);
  now.merge(before);
  return now;
}

GivenSettings settings_in(const SavedRun& saved) {
  GivenSettings settings;
  for (const auto& [key, texts] : saved.options) {
    if (!is_train_setting(key)) continue;
    try {
      read_train_settings({{key, texts}});
    } catch (const InputError& error) {
      throw InputError(std::string(saved_run_file) + " is damaged: " + error.message(),
                       "restore it from a backup");
    }
    settings[key] = texts;
  }
  return settings;
}

}  // namespace spillway
