#include "text/tokenizer/train_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/new_folder.hpp"
#include "base/suggest.hpp"
#include "base/text.hpp"
#include "text/tokenizer/bpe_training.hpp"
#include "text/tokenizer/split_pattern.hpp"
#include "text/tokenizer/vocabulary.hpp"
#include "text/tokenizer/word_counts.hpp"

namespace spillway {

namespace {

using nlohmann::ordered_json;

constexpr std::int64_t most_vocabulary = 4'000'000;

// The special tokens, each once, in the order of their numbers.
std::vector<std::string> special_tokens(const TokenizerTraining& how) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (!name.empty() && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  };
  add(how.begin);
  add(how.end);
  add(how.padding);
  for (const std::string& name : how.special) add(name);
  for (const std::string& name : names) {
    if (const auto found = find_unprintable(name))
      throw InputError(fmt::format("the special token {} has {}", printable(name), *found));
    if (name.size() < 2)
      throw InputError(fmt::format("the special token {} is a single letter", name),
                       "names like <|im_end|> are in no text by accident");
  }
  return names;
}

std::string_view pattern_named(const std::string& name) {
  if (name == "gpt2") return gpt2_pattern;
  if (name == "llama3") return llama3_pattern;
  if (name == "qwen2") return qwen2_pattern;
  throw InputError(fmt::format("{} is no known pattern", printable(name)),
                   unknown_name_hint(name, {"gpt2", "llama3", "qwen2"}));
}

ordered_json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

ordered_json pre_tokenizer(const std::string& pattern) {
  if (pattern == "gpt2") return byte_level(true);
  const ordered_json split = {{"type", "Split"},
                              {"pattern", {{"Regex", pattern_named(pattern)}}},
                              {"behavior", "Isolated"},
                              {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", ordered_json::array({split, byte_level(false)})}};
}

ordered_json model_json(const TrainedBpe& bpe, const std::vector<std::string>& special) {
  std::vector<std::string> names;
  for (const std::string& token : bpe.tokens) names.push_back(byte_level_name(token));
  // By number; ordered_json would look through all names for each new one.
  auto vocabulary = ordered_json::object();
  auto& entries = vocabulary.get_ref<ordered_json::object_t&>();
  std::int64_t number = 0;
  for (const std::string& name : special) entries.emplace_back(name, number++);
  for (const std::string& name : names) entries.emplace_back(name, number++);
  auto merges = ordered_json::array();
  for (const Merge& merge : bpe.merges) {
    merges.push_back(ordered_json::array({names[static_cast<std::size_t>(merge.left)],
                                          names[static_cast<std::size_t>(merge.right)]}));
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocabulary)},
          {"merges", std::move(merges)}};
}

ordered_json tokenizer_json(const TokenizerTraining& how, const TrainedBpe& bpe,
                            const std::vector<std::string>& special) {
  auto added = ordered_json::array();
  for (const std::string& name : special) {
    added.push_back({{"id", added.size()},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", how.pattern == "qwen2" ? ordered_json{{"type", "NFC"}} : ordered_json()},
          {"pre_tokenizer", pre_tokenizer(how.pattern)},
          {"post_processor", byte_level(false)},
          {"decoder", byte_level(true)},
          {"model", model_json(bpe, special)}};
}

ordered_json configuration(const TokenizerTraining& how, const std::vector<std::string>& special) {
  const auto name_or_null = [](const std::string& name) {
    return name.empty() ? ordered_json() : ordered_json(name);
  };
  auto others = ordered_json::array();
  for (const std::string& name : special) {
    if (name != how.begin && name != how.end && name != how.padding) others.push_back(name);
  }
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", name_or_null(how.begin)},
          {"eos_token", name_or_null(how.end)},
          {"pad_token", name_or_null(how.padding.empty() ? how.end : how.padding)},
          {"add_bos_token", !how.begin.empty()},
          {"additional_special_tokens", std::move(others)},
          {"clean_up_tokenization_spaces", false}};
}

void write_json(const Directory& directory, const char* name, const ordered_json& json) {
  const std::string text = json.dump(2) + "\n";
  NewFile file(FilePlace(directory, name));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace

TokenizerTrained train_tokenizer(const TokenizerTraining& how, const std::filesystem::path& out) {
  const std::vector<std::string> special = special_tokens(how);
  const auto least = static_cast<std::int64_t>(special.size()) + 256;
  if (how.vocabulary < least || how.vocabulary > most_vocabulary)
    throw InputError(
        Message("a vocabulary of ") + std::to_string(how.vocabulary) + " tokens is not possible",
        Message("from ") + std::to_string(least) + " (256 bytes and the special tokens) to " +
            std::to_string(most_vocabulary) + ", as " + Setting{"vocabulary", "8192"});
  WordCounting counting;
  counting.source = how.source;
  counting.steps = {{.pattern = std::string(pattern_named(how.pattern))}};
  counting.special = special;
  counting.threads = how.threads;
  counting.progress = how.reading;
  if (how.pattern == "qwen2") counting.normalizer = {{NormalizerStep::Kind::nfc}};
  NewFolder folder(out);
  const WordCounts counts = count_words(counting);
  const auto numbers = static_cast<std::int64_t>(special.size());
  const TrainedBpe bpe = train_bpe(counts.words, how.vocabulary - numbers, how.merging);
  write_json(folder.directory(), "tokenizer.json", tokenizer_json(how, bpe, special));
  write_json(folder.directory(), "tokenizer_config.json", configuration(how, special));
  folder.commit();
  return {static_cast<std::int64_t>(bpe.tokens.size()) + numbers,
          counts.bytes,
          counts.files,
          counts.words.size(),
          counts.skipped,
          counts.malformed};
}

}  // namespace spillway
