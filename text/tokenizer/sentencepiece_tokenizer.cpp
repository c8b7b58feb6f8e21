// tokenizer.model: encoded by libsentencepiece; decoded here, so that bytes stay what they are.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "text/tokenizer/added_tokens.hpp"
#include "text/tokenizer/content_hash.hpp"
#include "text/tokenizer/model_files.hpp"
#include "text/tokenizer/pool.hpp"
#include "text/tokenizer/sentencepiece_model.hpp"
#include "text/tokenizer/utf8.hpp"
#include "text/tokenizer/vocabulary.hpp"
#include "text/tokenizer/word_cache.hpp"

namespace spillway {

namespace {

using Type = SentencePieceModel::Type;

constexpr std::string_view blank = "\u2581";
constexpr std::size_t most_text = std::size_t{1} << 30;
// normalizer_spec { add_dummy_prefix: false }: of two messages for one field the library reads the
// second one over the first.
constexpr std::string_view without_prefix("\x1a\x02\x18\x00", 4);

std::vector<AddedTokenFinder::Entry> special_entries(const SentencePieceModel& model) {
  std::vector<AddedTokenFinder::Entry> entries;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type != Type::control) continue;
    const std::string name(model.pieces[i].text);
    entries.push_back({name, {.token = static_cast<Token>(i), .content = name, .special = true}});
  }
  return entries;
}

Vocabulary vocabulary_of(const SentencePieceModel& model, const std::string& origin) {
  std::vector<std::pair<std::string, Token>> names;
  for (std::size_t i = 0; i < model.pieces.size(); ++i)
    names.emplace_back(model.pieces[i].text, static_cast<Token>(i));
  return {std::move(names), origin};
}

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& bytes, const std::string& origin)
      : origin_(origin),
        model_(read_sentencepiece_model(bytes, origin)),
        vocabulary_(vocabulary_of(model_, origin)),
        special_(special_entries(model_)) {
    load(bytes, at_start_);
    if (model_.add_dummy_prefix) load(bytes + std::string(without_prefix), within_);
    by_words_ = words_are_apart();
    byte_tokens_.fill(static_cast<Token>(at_start_.unk_id()));
    for (std::size_t i = 0; i < model_.pieces.size(); ++i) {
      if (model_.pieces[i].type != Type::byte) continue;
      const std::string digits(model_.pieces[i].text.substr(3, 2));
      byte_tokens_[std::stoul(digits, nullptr, 16)] = static_cast<Token>(i);
    }
    ContentHash hash;
    hash.text("sentencepiece 1");
    hash.text(bytes);
    hash_ = hash.value();
    decoded_.reserve(model_.pieces.size());
    for (std::size_t i = 0; i < model_.pieces.size(); ++i) decoded_.push_back(bytes_of(i));
    model_.pieces = {};  // texts in `bytes`
  }

  void encode(std::string_view text, SpecialTokens special,
              std::vector<Token>& tokens) const override {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t valid = valid_utf8(text.substr(at));
      encode_valid(text.substr(at, valid), at == 0, special, tokens);
      at += valid;
      if (at < text.size()) tokens.push_back(byte_tokens_[static_cast<unsigned char>(text[at++])]);
    }
  }

  std::string decode(std::span<const Token> tokens, bool with_special) const override {
    const bool strips = model_.add_dummy_prefix || model_.remove_extra_whitespaces;
    std::string text;
    bool at_start = true;
    for (const Token token : tokens) {
      if (!vocabulary_.holds(token))
        throw InputError(fmt::format("{} is no token of {}", token, origin_),
                         fmt::format("its tokens are 0 to {}", size() - 1));
      const Decoded& piece = decoded_[static_cast<std::size_t>(token)];
      if (piece.type == Type::control && !with_special) continue;
      std::string_view bytes = piece.bytes;
      if (strips && at_start && piece.begins_with_blank) {
        bytes.remove_prefix(1);
        at_start = model_.remove_extra_whitespaces && bytes.empty();
      } else if (piece.type != Type::control) {
        at_start = false;
      }
      text += bytes;
    }
    return text;
  }

  std::int64_t size() const override { return vocabulary_.size(); }
  std::optional<Token> find(std::string_view name) const override { return vocabulary_.find(name); }
  std::optional<Token> begin_of_text() const override { return known(at_start_.bos_id()); }
  std::optional<Token> end_of_text() const override { return known(at_start_.eos_id()); }
  std::optional<Token> padding() const override { return known(at_start_.pad_id()); }
  bool adds_begin_of_text() const override { return begin_of_text().has_value(); }
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override {
    return fmt::format("SentencePiece {}, {} tokens", model_.unigram ? "unigram" : "BPE", size());
  }

 private:
  struct Decoded {
    std::string bytes;
    Type type = Type::normal;
    bool begins_with_blank = false;
  };

  void load(const std::string& bytes, sentencepiece::SentencePieceProcessor& processor) const {
    const auto status = processor.LoadFromSerializedProto(bytes);
    if (!status.ok())
      throw InputError(origin_, 0, fmt::format("SentencePiece: {}", status.ToString()));
  }

  static std::optional<Token> known(int id) {
    return id < 0 ? std::nullopt : std::optional<Token>(id);
  }

  Decoded bytes_of(std::size_t token) const {
    const SentencePieceModel::Piece& piece = model_.pieces[token];
    if (piece.type == Type::unknown) return {model_.unknown_surface, piece.type};
    if (piece.type == Type::control) return {std::string(piece.text), piece.type};
    if (piece.type == Type::byte) {
      const std::string digits(piece.text.substr(3, 2));
      return {std::string(1, static_cast<char>(std::stoul(digits, nullptr, 16))), piece.type};
    }
    Decoded decoded{std::string(piece.text), piece.type, piece.text.starts_with(blank)};
    for (std::size_t at = 0; (at = decoded.bytes.find(blank, at)) != std::string::npos; ++at)
      decoded.bytes.replace(at, blank.size(), " ");
    return decoded;
  }

  // Text without invalid bytes; `first`: begins the whole text. Nothing is put before what follows
  // a special token or bytes that are no text.
  void encode_valid(std::string_view text, bool first, SpecialTokens special,
                    std::vector<Token>& tokens) const {
    for (std::size_t at = 0; at < text.size();) {
      const auto found =
          special == SpecialTokens::parsed ? special_.find(text, at, special) : std::nullopt;
      const std::size_t end = found ? found->begin : text.size();
      if (end > at) encode_plain(text.substr(at, end - at), first && at == 0, tokens);
      if (!found) break;
      tokens.push_back(found->token);
      at = found->end;
    }
  }

  // Whether blanks part words for good: BPE of texts as they are, in which no piece has a blank
  // behind anything else. Then each word has its tokens, whatever stands around it.
  bool words_are_apart() const {
    const std::optional<Token> known_blank = vocabulary_.find(blank);
    if (model_.unigram || model_.changes_characters || model_.remove_extra_whitespaces ||
        !known_blank || model_.pieces[static_cast<std::size_t>(*known_blank)].type != Type::normal)
      return false;
    return std::none_of(model_.pieces.begin(), model_.pieces.end(),
                        [](const SentencePieceModel::Piece& piece) {
                          const std::size_t begin = blanks_end(piece.text, 0);
                          return blank_begins(piece.text, begin) != piece.text.size();
                        });
  }

  static bool is_blank(std::string_view text, std::size_t at) {
    return text[at] == ' ' || text.substr(at).starts_with(blank);
  }
  static std::size_t blanks_end(std::string_view text, std::size_t at) {
    while (at < text.size() && is_blank(text, at)) at += utf8_length(text[at]);
    return at;
  }
  static std::size_t blank_begins(std::string_view text, std::size_t at) {
    while (at < text.size() && !is_blank(text, at)) at += utf8_length(text[at]);
    return at;
  }

  void encode_words(std::string_view text, bool first, std::vector<Token>& tokens) const {
    const Pool<WordCache>::Lease cache(caches_, [] { return std::make_unique<WordCache>(); });
    std::string prefixed;
    if (first && model_.add_dummy_prefix) {
      const std::size_t end = blank_begins(text, blanks_end(text, 0));
      prefixed = " " + std::string(text.substr(0, end));
      encode_word(prefixed, *cache, tokens);
      text.remove_prefix(end);
    }
    while (!text.empty()) {
      const std::size_t end = blank_begins(text, blanks_end(text, 0));
      encode_word(text.substr(0, end), *cache, tokens);
      text.remove_prefix(end);
    }
  }

  void encode_word(std::string_view word, WordCache& cache, std::vector<Token>& tokens) const {
    const bool keep = word.size() <= WordCache::longest_word;
    if (keep) {
      const std::span<const Token> known = cache.find(word);
      tokens.insert(tokens.end(), known.begin(), known.end());
      if (!known.empty()) return;
    }
    const std::size_t before = tokens.size();
    encode_by_library(word, false, tokens);
    const std::span<const Token> made = std::span(tokens).subspan(before);
    if (keep && made.size() <= WordCache::most_tokens) cache.keep(word, made);
  }

  void encode_plain(std::string_view text, bool first, std::vector<Token>& tokens) const {
    if (by_words_)
      encode_words(text, first, tokens);
    else
      encode_by_library(text, first, tokens);
  }

  void encode_by_library(std::string_view text, bool first, std::vector<Token>& tokens) const {
    if (text.size() > most_text)
      throw InputError("a text of more than 1 GiB is too long for SentencePiece",
                       "cut it into documents");
    std::vector<int> ids;
    const auto& processor = first || !model_.add_dummy_prefix ? at_start_ : within_;
    const auto status = processor.Encode(text, &ids);
    if (!status.ok())
      throw InputError(fmt::format("SentencePiece cannot encode a text: {}", status.ToString()));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }

  std::string origin_;
  SentencePieceModel model_;
  Vocabulary vocabulary_;
  AddedTokenFinder special_;
  sentencepiece::SentencePieceProcessor at_start_, within_;
  mutable Pool<WordCache> caches_;
  bool by_words_ = false;
  std::array<Token, 256> byte_tokens_{};
  std::vector<Decoded> decoded_;
  std::uint64_t hash_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model,
                                                        const std::string& origin) {
  return std::make_unique<SentencePieceTokenizer>(model, origin);
}

}  // namespace spillway
