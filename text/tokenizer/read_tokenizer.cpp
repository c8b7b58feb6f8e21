#include "text/tokenizer/read_tokenizer.hpp"

#include <fmt/format.h>

#include <functional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/tokenizer/json_object.hpp"
#include "text/tokenizer/model_files.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_file_bytes = 256u << 20;

std::string contents(const fs::path& path) {
  return read_whole_file(path.string(), most_file_bytes);
}

// The token that a key names: "<s>", or {"content": "<s>", ...}; nothing: null or left out.
std::optional<Token> named_token(
    const JsonObject& keys, const char* key,
    const std::function<std::optional<Token>(std::string_view)>& find) {
  if (!keys.given(key)) return {};
  const std::string& name =
      keys.at(key).is_object() ? keys.object(key).text("content") : keys.text(key);
  return find(name);  // a name without a token is one that the model does not use
}

// What is read, with what the files beside it say.
std::unique_ptr<Tokenizer> with_named_tokens(BpeParts parts, const fs::path& folder) {
  std::unordered_map<std::string_view, Token> numbers;
  for (const auto& [name, token] : parts.vocabulary) numbers.emplace(name, token);
  const auto find = [&](std::string_view name) {
    const auto found = numbers.find(name);
    return found == numbers.end() ? std::nullopt : std::optional(found->second);
  };
  read_named_tokens(folder, find, parts.named);
  return make_bpe_tokenizer(std::move(parts));
}

std::unique_ptr<Tokenizer> from_json(const fs::path& path) {
  return with_named_tokens(read_tokenizer_json(contents(path), path.string()), path.parent_path());
}

std::unique_ptr<Tokenizer> from_gpt2(const fs::path& vocabulary, const fs::path& merges) {
  return with_named_tokens(
      read_gpt2_files(contents(vocabulary), contents(merges), vocabulary.string(), merges.string()),
      vocabulary.parent_path());
}

// The file beside that makes a pair of GPT-2's with `path`; nothing: it is none of them.
std::optional<std::pair<fs::path, fs::path>> pair_of(const fs::path& path) {
  for (const auto& [vocabulary, merges] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    if (path.filename() == vocabulary || path.filename() == merges)
      return std::pair(path.parent_path() / vocabulary, path.parent_path() / merges);
  }
  return {};
}

std::unique_ptr<Tokenizer> from_file(const fs::path& path) {
  if (const auto files = pair_of(path)) return from_gpt2(files->first, files->second);
  if (path.extension() == ".json") return from_json(path);
  if (path.extension() == ".model")
    return make_sentencepiece_tokenizer(contents(path), path.string());
  throw InputError(
      fmt::format("{} is no tokenizer's file", path.string()),
      "tokenizer.json, vocab.json, encoder.json or tokenizer.model, or a folder with one");
}

}  // namespace

void read_named_tokens(const fs::path& folder,
                       const std::function<std::optional<Token>(std::string_view)>& find,
                       NamedTokens& named) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    const nlohmann::json file = parse_json(contents(path), path.string());
    const JsonObject keys(file, path.string(), "");
    // A configuration says null for a token that the model does not have.
    named.begin = named_token(keys, "bos_token", find);
    named.end = named_token(keys, "eos_token", find);
    named.padding = named_token(keys, "pad_token", find);
    named.adds_begin = named.begin && keys.flag("add_bos_token", named.adds_begin);
    return;
  }
}

std::unique_ptr<Tokenizer> read_tokenizer(const fs::path& path) {
  if (!fs::exists(path))
    throw InputError(fmt::format("there is no tokenizer {}", printable(path.string())),
                     "name a tokenizer.json, a tokenizer.model, or the folder of a model");
  if (!fs::is_directory(path)) return from_file(path);
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json", "tokenizer.model"}) {
    if (!fs::exists(path / name)) continue;
    return from_file(path / name);
  }
  throw InputError(
      fmt::format("{} holds no tokenizer", path.string()),
      "it is a tokenizer.json, vocab.json and merges.txt, encoder.json and vocab.bpe, or "
      "a tokenizer.model");
}

}  // namespace spillway
