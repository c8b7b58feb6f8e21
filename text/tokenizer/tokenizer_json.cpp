#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "text/tokenizer/json_object.hpp"
#include "text/tokenizer/model_files.hpp"

namespace spillway {

namespace {

using nlohmann::json;

constexpr const char* supported_models =
    "byte-level BPE is read as GPT-2, Llama 3, Qwen and SmolLM have it, and SentencePiece's BPE";

// Reads the parts in the order in which a text goes through them.
class TokenizerFile {
 public:
  TokenizerFile(const json& file, const std::string& origin) : file_(file, origin, "") {
    parts_.origin = origin;
  }

  BpeParts read() {
    file_.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                "post_processor", "decoder", "model"});
    if (file_.given("pre_tokenizer")) pre_tokenizer(file_.object("pre_tokenizer"));
    if (file_.given("normalizer")) normalizer(file_.object("normalizer"));
    parts_.of_bytes = byte_level_;
    model(file_.object("model"));
    decoder();
    if (file_.given("added_tokens")) added_tokens();
    parts_.named.end = added_number("<|endoftext|>");  // unless something says otherwise
    if (file_.given("post_processor")) post_processor(file_.object("post_processor"));
    return std::move(parts_);
  }

 private:
  void normalizer(const JsonObject& part) {
    const std::string& type = part.text("type");
    if (type == "Sequence") {
      part.only({"type", "normalizers"});
      for (const JsonObject& one : part.objects("normalizers")) normalizer(one);
    } else if (type == "NFC") {
      part.only({"type"});
      parts_.normalizer.push_back({NormalizerStep::Kind::nfc});
    } else if (type == "Prepend") {
      part.only({"type", "prepend"});
      parts_.normalizer.push_back({NormalizerStep::Kind::prepend, "", part.text("prepend")});
    } else if (type == "Replace") {
      part.only({"type", "pattern", "content"});
      parts_.normalizer.push_back(
          {NormalizerStep::Kind::replace, literal_of(part), part.text("content")});
    } else {
      part.refuse("type", printable(type) + " is not supported",
                  "supported: NFC, Prepend, Replace, Sequence");
    }
  }

  // pattern: {"String": ...}.
  std::string literal_of(const JsonObject& part) {
    const JsonObject pattern = part.object("pattern");
    if (pattern.given("Regex")) pattern.refuse("Regex", "is not supported here");
    pattern.only({"String"});
    if (pattern.text("String").empty()) pattern.refuse("String", "is empty");
    return pattern.text("String");
  }

  void pre_tokenizer(const JsonObject& part) {
    const std::string& type = part.text("type");
    if (byte_level_) part.refuse("type", printable(type) + " after ByteLevel is not supported");
    if (type == "Sequence") {
      part.only({"type", "pretokenizers"});
      for (const JsonObject& one : part.objects("pretokenizers")) pre_tokenizer(one);
    } else if (type == "ByteLevel") {
      part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      PreTokenizerStep step;
      if (part.flag("add_prefix_space", true)) {
        step.prefix_text = " ";
        step.prefix = PreTokenizerStep::Prefix::always;
      }
      if (part.flag("use_regex", true)) step.pattern = gpt2_pattern;
      parts_.steps.push_back(step);
      byte_level_ = true;
    } else if (type == "Split") {
      split(part);
    } else if (type == "Digits") {
      part.only({"type", "individual_digits"});
      const bool each = part.flag("individual_digits", false);
      parts_.steps.push_back(
          {.pattern = R"(\p{N})",
           .behavior = each ? SplitBehavior::isolated : SplitBehavior::contiguous});
    } else if (type == "Metaspace") {
      metaspace(part);
    } else {
      part.refuse("type", printable(type) + " is not supported",
                  "supported: ByteLevel, Split, Digits, Metaspace, Sequence");
    }
  }

  void split(const JsonObject& part) {
    part.only({"type", "pattern", "behavior", "invert"});
    PreTokenizerStep step;
    const JsonObject pattern = part.object("pattern");
    if (pattern.given("Regex")) {
      pattern.only({"Regex"});
      step.pattern = pattern.text("Regex");
      if (step.pattern.empty()) pattern.refuse("Regex", "is empty");
    } else {
      step.pattern = literal_of(part);
      step.literal = true;
    }
    const std::vector<std::pair<std::string_view, SplitBehavior>> behaviors = {
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const std::string& name = part.text("behavior");
    const auto found = std::find_if(behaviors.begin(), behaviors.end(),
                                    [&](const auto& one) { return one.first == name; });
    if (found == behaviors.end()) part.refuse("behavior", printable(name) + " is not known");
    step.behavior = found->second;
    step.invert = part.flag("invert", false);
    parts_.steps.push_back(step);
  }

  void metaspace(const JsonObject& part) {
    part.only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
    const std::string& replacement = part.text("replacement");
    if (replacement.empty()) part.refuse("replacement", "is empty");
    PreTokenizerStep step{.space_becomes = replacement, .prefix_text = replacement};
    const std::string scheme =
        part.given("prepend_scheme") ? part.text("prepend_scheme") : std::string("always");
    if (scheme == "always")
      step.prefix = PreTokenizerStep::Prefix::always;
    else if (scheme == "first")
      step.prefix = PreTokenizerStep::Prefix::first;
    else if (scheme != "never")
      part.refuse("prepend_scheme", printable(scheme) + " is not known");
    if (!part.flag("add_prefix_space", true)) step.prefix = PreTokenizerStep::Prefix::never;
    if (part.flag("split", true)) {
      step.pattern = replacement;
      step.literal = true;
      step.behavior = SplitBehavior::merged_with_next;
    }
    parts_.steps.push_back(step);
  }

  void model(const JsonObject& part) {
    if (part.given("type") && part.text("type") != "BPE")
      part.refuse("type", printable(part.text("type")) + " is not supported", supported_models);
    part.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (part.given("dropout") && part.at("dropout") != 0)
      part.refuse("dropout", "is not supported: equal texts would have different tokens");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (part.given(key) && !part.text(key).empty())
        part.refuse(key, "is not supported", supported_models);
    }
    parts_.vocabulary = read_vocabulary(part, "vocab");
    merges(part);
    parts_.fuse_unknown = part.flag("fuse_unk", false);
    parts_.byte_fallback = part.flag("byte_fallback", false);
    parts_.ignore_merges = part.flag("ignore_merges", false);
    if (byte_level_ && parts_.byte_fallback)
      part.refuse("byte_fallback", "is not supported beside the pre-tokenizer ByteLevel");
    if (part.given("unk_token") && !part.text("unk_token").empty()) {
      const std::optional<Token> unknown = number_of(part.text("unk_token"));
      if (!unknown) part.refuse("unk_token", "is no token of the vocabulary");
      parts_.unknown = unknown;
    }
  }

  void merges(const JsonObject& part) {
    const json& list = part.at("merges");
    if (!list.is_array()) part.refuse("merges", "is no list");
    MergeReader reader(parts_.vocabulary, file_.origin() + ": " + part.path_of("merges"));
    for (const json& merge : list) {
      if (merge.is_string()) {
        const std::string& line = merge.get_ref<const std::string&>();
        if (!line.starts_with("#version")) reader.add_line(line);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        reader.add(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
      } else {
        part.refuse("merges", "holds something else than \"a b\" and [\"a\", \"b\"]");
      }
    }
    parts_.merges = reader.take();
  }

  std::optional<Token> number_of(const std::string& name) const {
    const auto found = std::find_if(parts_.vocabulary.begin(), parts_.vocabulary.end(),
                                    [&](const auto& one) { return one.first == name; });
    return found == parts_.vocabulary.end() ? std::nullopt : std::optional(found->second);
  }

  // Only those that undo what has been read so far.
  void decoder() {
    if (!file_.given("decoder")) file_.refuse("decoder", "is missing");
    const JsonObject part = file_.object("decoder");
    const std::string& type = part.text("type");
    if (byte_level_) {
      if (type != "ByteLevel")
        part.refuse("type", printable(type) + " does not go with the pre-tokenizer ByteLevel");
      part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
      return;
    }
    if (type != "Sequence")
      part.refuse("type", printable(type) + " is not supported", supported_models);
    part.only({"type", "decoders"});
    for (const JsonObject& one : part.objects("decoders")) character_decoder(one);
    if (!decodes_spaces_) part.refuse("decoders", "without Replace of \u2581 is not supported");
  }

  void character_decoder(const JsonObject& part) {
    const std::string& type = part.text("type");
    if (type == "Replace") {
      part.only({"type", "pattern", "content"});
      if (literal_of(part) != "\u2581" || part.text("content") != " ")
        part.refuse("pattern", "is supported for \u2581 and a space only");
      decodes_spaces_ = true;
    } else if (type == "Strip") {
      part.only({"type", "content", "start", "stop"});
      if (part.text("content") != " " || part.number("start") != 1 || part.number("stop") != 0)
        part.refuse("type", "Strip is supported for one space at the start only");
      parts_.strip_first_space = true;
    } else if (type == "ByteFallback" || type == "Fuse") {
      part.only({"type"});
    } else {
      part.refuse("type", printable(type) + " is not supported",
                  "supported: Replace, ByteFallback, Fuse, Strip");
    }
  }

  void added_tokens() {
    std::unordered_map<std::string_view, Token> numbers;
    for (const auto& [name, token] : parts_.vocabulary) numbers.emplace(name, token);
    std::vector<std::pair<std::string, Token>> more;
    for (const JsonObject& one : file_.objects("added_tokens")) {
      one.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      AddedToken token{.token = static_cast<Token>(one.number("id")),
                       .content = one.text("content"),
                       .special = one.flag("special", false),
                       .single_word = one.flag("single_word", false),
                       .lstrip = one.flag("lstrip", false),
                       .rstrip = one.flag("rstrip", false),
                       .normalized = one.flag("normalized", !one.flag("special", false))};
      if (token.content.empty()) one.refuse("content", "is empty");
      const auto found = numbers.find(token.content);
      if (found == numbers.end())
        more.emplace_back(token.content, token.token);
      else if (found->second != token.token)
        one.refuse("id",
                   fmt::format("is {}, but in the vocabulary {}", token.token, found->second));
      parts_.added.push_back(std::move(token));
    }
    parts_.vocabulary.insert(parts_.vocabulary.end(), more.begin(), more.end());
  }

  // Only what begins and ends a text is of interest: nothing is put there by encoding.
  void post_processor(const JsonObject& part) {
    const std::string& type = part.text("type");
    if (type == "Sequence") {
      for (const JsonObject& one : part.objects("processors")) post_processor(one);
    } else if (type == "TemplateProcessing") {
      bool before = true;
      for (const JsonObject& one : part.objects("single")) {
        if (one.given("Sequence")) {
          before = false;
        } else if (one.given("SpecialToken")) {
          const std::optional<Token> token = added_number(one.object("SpecialToken").text("id"));
          (before ? parts_.named.begin : parts_.named.end) = token;
          if (before) parts_.named.adds_begin = token.has_value();
        }
      }
    } else if (type != "ByteLevel") {
      part.refuse("type", printable(type) + " is not supported",
                  "supported: ByteLevel, TemplateProcessing, Sequence");
    }
  }

  std::optional<Token> added_number(const std::string& name) const {
    for (const AddedToken& token : parts_.added) {
      if (token.content == name) return token.token;
    }
    return number_of(name);
  }

  JsonObject file_;
  BpeParts parts_;
  bool byte_level_ = false, decodes_spaces_ = false;
};

}  // namespace

std::vector<std::pair<std::string, Token>> read_vocabulary(const JsonObject& of, const char* key) {
  const json& table = of.at(key);
  if (!table.is_object()) of.refuse(key, "is no object of names and numbers");
  std::vector<std::pair<std::string, Token>> result;
  result.reserve(table.size());
  for (const auto& [name, number] : table.items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() > 0x7fffffff)
      of.refuse(key, fmt::format("the number of {} is none of a token", printable(name)));
    result.emplace_back(name, number.get<Token>());
  }
  return result;
}

MergeReader::MergeReader(const std::vector<std::pair<std::string, Token>>& vocabulary,
                         std::string origin)
    : origin_(std::move(origin)) {
  numbers_.reserve(vocabulary.size());
  for (const auto& [name, token] : vocabulary) numbers_.emplace(name, token);
}

Token MergeReader::number_of(std::string_view name) const {
  const auto found = numbers_.find(name);
  if (found == numbers_.end())
    throw InputError(origin_, 0,
                     fmt::format("merge {}: {} is no token of the vocabulary", merges_.size() + 1,
                                 printable(name)));
  return found->second;
}

void MergeReader::add(std::string_view left, std::string_view right) {
  const std::string merged = std::string(left) + std::string(right);
  merges_.push_back({number_of(left), number_of(right), number_of(merged)});
}

void MergeReader::add_line(std::string_view line) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    throw InputError(origin_, 0,
                     fmt::format("merge {}: {} is not two tokens with a space between",
                                 merges_.size() + 1, printable(line)));
  add(line.substr(0, space), line.substr(space + 1));
}

BpeParts read_tokenizer_json(const std::string& text, const std::string& origin) {
  const json file = parse_json(text, origin);
  return TokenizerFile(file, origin).read();
}

BpeParts read_gpt2_files(const std::string& vocabulary, const std::string& merges,
                         const std::string& vocabulary_origin, const std::string& merges_origin) {
  BpeParts parts;
  parts.origin = vocabulary_origin;
  const json table = {{"vocabulary", parse_json(vocabulary, vocabulary_origin)}};
  parts.vocabulary = read_vocabulary(JsonObject(table, vocabulary_origin, ""), "vocabulary");
  MergeReader reader(parts.vocabulary, merges_origin);
  for (std::string_view rest = merges; !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) reader.add_line(line);
  }
  parts.merges = reader.take();
  parts.steps.push_back({.pattern = std::string(gpt2_pattern)});
  for (const auto& [name, token] : parts.vocabulary) {
    if (name != "<|endoftext|>") continue;
    parts.added.push_back({.token = token, .content = name, .special = true});
    parts.named.begin = parts.named.end = token;
  }
  return parts;
}

}  // namespace spillway
