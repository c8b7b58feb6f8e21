#include "text/tokenizer/bpe_tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/errors.hpp"
#include "text/tokenizer/content_hash.hpp"
#include "text/tokenizer/pool.hpp"
#include "text/tokenizer/utf8.hpp"
#include "text/tokenizer/word_cache.hpp"

namespace spillway {

namespace {

constexpr std::string_view meta_space = "\u2581";  // what SentencePiece writes for a blank
constexpr Token no_token = -1;

std::vector<AddedTokenFinder::Entry> entries_of(const BpeParts& parts, bool normalized) {
  std::vector<AddedTokenFinder::Entry> entries;
  for (const AddedToken& token : parts.added) {
    if (token.normalized != normalized) continue;
    std::string text = token.content;
    if (normalized) normalize(parts.normalizer, true, text);
    entries.push_back({text, token});
  }
  return entries;
}

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeParts parts);

  void encode(std::string_view text, SpecialTokens special,
              std::vector<Token>& tokens) const override;
  std::string decode(std::span<const Token> tokens, bool with_special) const override;

  std::int64_t size() const override { return vocabulary_.size(); }
  std::optional<Token> find(std::string_view name) const override { return vocabulary_.find(name); }
  std::optional<Token> begin_of_text() const override { return parts_.named.begin; }
  std::optional<Token> end_of_text() const override { return parts_.named.end; }
  std::optional<Token> padding() const override { return parts_.named.padding; }
  bool adds_begin_of_text() const override { return parts_.named.adds_begin; }
  std::uint64_t hash() const override { return hash_; }
  std::string describe() const override {
    return fmt::format("{} BPE, {} tokens", parts_.of_bytes ? "byte-level" : "SentencePiece's",
                       size());
  }

 private:
  // What one call works with; kept for the next one.
  struct Workspace {
    explicit Workspace(const PreTokenizer& steps) : cutter(steps) {}

    WordCache cache;
    PreTokenizer::Cutter cutter;
    std::string normalized;
    std::vector<Token> word;
    BpeMerges::Scratch scratch;
  };

  struct Target {
    Workspace& workspace;
    SpecialTokens special;
    std::vector<Token>& tokens;
  };

  void fill_tables();
  bool words_end_before_meta_space() const;
  void put_byte(unsigned char byte, std::vector<Token>& tokens) const;
  void encode_valid(std::string_view text, bool first, bool after_bytes, const Target& to) const;
  void encode_piece(const PreTokenizer::Cutter::Piece& piece, const Target& to) const;
  void encode_normalized(const PreTokenizer::Cutter::Piece& piece, const Target& to) const;
  void encode_word(std::string_view word, const Target& to) const;
  void encode_by_spaces(std::string_view word, const Target& to) const;
  void merge_word(std::string_view word, const Target& to) const;
  void first_tokens(std::string_view word, std::vector<Token>& tokens) const;
  std::uint64_t make_hash() const;

  BpeParts parts_;
  Vocabulary vocabulary_;
  BpeMerges merges_;
  AddedTokenFinder written_, normalized_;
  PreTokenizer pre_tokenizer_;
  std::array<Token, 256> byte_tokens_{};
  std::vector<std::string> decoded_;  // the bytes of each token
  std::vector<bool> special_;
  bool cut_at_spaces_ = false;
  std::uint64_t hash_ = 0;

  mutable Pool<Workspace> workspaces_;
};

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : parts_(std::move(parts)),
      vocabulary_(parts_.vocabulary, parts_.origin),
      merges_(parts_.merges),
      written_(entries_of(parts_, false)),
      normalized_(entries_of(parts_, true)),
      pre_tokenizer_(parts_.steps, parts_.origin) {
  fill_tables();
  cut_at_spaces_ = !parts_.of_bytes && words_end_before_meta_space();
  hash_ = make_hash();
  parts_.vocabulary = {};
  parts_.merges = {};
}

void BpeTokenizer::fill_tables() {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char sign = static_cast<char>(byte);
    const std::optional<Token> token = vocabulary_.find(
        parts_.of_bytes ? byte_level_name({&sign, 1}) : fmt::format("<0x{:02X}>", byte));
    byte_tokens_[byte] = token.value_or(no_token);
  }
  decoded_.resize(static_cast<std::size_t>(vocabulary_.size()));
  special_.resize(decoded_.size());
  for (std::size_t i = 0; i < decoded_.size(); ++i) {
    const std::string name(vocabulary_.name(static_cast<Token>(i)));
    if (parts_.of_bytes) {
      decoded_[i] = bytes_of_name(name).value_or(name);
    } else {
      decoded_[i] = name;
      for (std::size_t at = 0; (at = decoded_[i].find(meta_space, at)) != std::string::npos;)
        decoded_[i].replace(at, meta_space.size(), " ");
    }
  }
  if (!parts_.of_bytes) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (byte_tokens_[byte] != no_token)
        decoded_[static_cast<std::size_t>(byte_tokens_[byte])] = static_cast<char>(byte);
    }
  }
  for (const AddedToken& token : parts_.added) {
    decoded_[static_cast<std::size_t>(token.token)] = token.content;
    special_[static_cast<std::size_t>(token.token)] = token.special;
  }
}

// Whether no token has a blank behind anything else than blanks: then nothing is ever merged across
// the place before a blank, and texts that are not cut into words can be cut there.
bool BpeTokenizer::words_end_before_meta_space() const {
  if (!vocabulary_.find(meta_space)) return false;
  return std::none_of(parts_.merges.begin(), parts_.merges.end(), [this](const Merge& merge) {
    const std::string_view name = vocabulary_.name(merge.result);
    std::size_t blanks = 0;
    while (name.substr(blanks).starts_with(meta_space)) blanks += meta_space.size();
    return name.find(meta_space, blanks) != std::string_view::npos;
  });
}

void BpeTokenizer::encode(std::string_view text, SpecialTokens special,
                          std::vector<Token>& tokens) const {
  const Pool<Workspace>::Lease lease(
      workspaces_, [this] { return std::make_unique<Workspace>(pre_tokenizer_); });
  const Target to{*lease, special, tokens};
  bool after_bytes = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid = valid_utf8(text.substr(at));
    if (valid > 0) encode_valid(text.substr(at, valid), at == 0, after_bytes, to);
    at += valid;
    if (at == text.size()) break;
    put_byte(static_cast<unsigned char>(text[at++]), tokens);
    after_bytes = true;
  }
}

void BpeTokenizer::put_byte(unsigned char byte, std::vector<Token>& tokens) const {
  const Token token = byte_tokens_[byte];
  if (token != no_token)
    tokens.push_back(token);
  else if (parts_.unknown)
    tokens.push_back(*parts_.unknown);
}

void BpeTokenizer::encode_valid(std::string_view text, bool first, bool after_bytes,
                                const Target& to) const {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto found = written_.find(text, at, to.special);
    const std::size_t end = found ? found->begin : text.size();
    if (end > at)
      encode_piece({text.substr(at, end - at), first && at == 0, !after_bytes || at > 0}, to);
    if (!found) break;
    to.tokens.push_back(found->token);
    at = found->end;
  }
}

void BpeTokenizer::encode_piece(const PreTokenizer::Cutter::Piece& piece, const Target& to) const {
  if (parts_.normalizer.empty()) return encode_normalized(piece, to);
  std::string& normalized = to.workspace.normalized;
  normalized = piece.text;
  normalize(parts_.normalizer, piece.may_prefix, normalized);
  encode_normalized({normalized, piece.first, piece.may_prefix}, to);
}

void BpeTokenizer::encode_normalized(const PreTokenizer::Cutter::Piece& piece,
                                     const Target& to) const {
  const std::string_view text = piece.text;
  const auto word = [&](std::string_view found) { encode_word(found, to); };
  std::size_t at = 0;
  while (at < text.size()) {
    const auto found = normalized_.empty() ? std::nullopt : normalized_.find(text, at, to.special);
    const std::size_t end = found ? found->begin : text.size();
    to.workspace.cutter.cut(
        {text.substr(at, end - at), piece.first && at == 0, piece.may_prefix || at > 0}, word);
    if (!found) break;
    to.tokens.push_back(found->token);
    at = found->end;
  }
}

void BpeTokenizer::encode_word(std::string_view word, const Target& to) const {
  if (cut_at_spaces_ && word.size() > WordCache::longest_word && !parts_.ignore_merges)
    return encode_by_spaces(word, to);
  merge_word(word, to);
}

void BpeTokenizer::encode_by_spaces(std::string_view word, const Target& to) const {
  std::size_t begin = 0, at = 0;
  while (at < word.size()) {
    while (word.substr(at).starts_with(meta_space)) at += meta_space.size();
    at = std::min(word.find(meta_space, at), word.size());
    merge_word(word.substr(begin, at - begin), to);
    begin = at;
  }
}

void BpeTokenizer::merge_word(std::string_view word, const Target& to) const {
  Workspace& workspace = to.workspace;
  if (word.size() > std::numeric_limits<std::uint32_t>::max())
    throw InputError("a word of the text is longer than 4 GiB", "cut the text into lines");
  const bool keep = word.size() <= WordCache::longest_word;
  if (keep) {
    const std::span<const Token> known = workspace.cache.find(word);
    if (!known.empty()) {
      to.tokens.insert(to.tokens.end(), known.begin(), known.end());
      return;
    }
  }
  workspace.word.clear();
  std::optional<Token> whole;
  if (parts_.ignore_merges)
    whole = vocabulary_.find(parts_.of_bytes ? byte_level_name(word) : std::string(word));
  if (whole) {
    workspace.word.push_back(*whole);
  } else {
    first_tokens(word, workspace.word);
    merges_.merge(workspace.word, workspace.scratch);
  }
  to.tokens.insert(to.tokens.end(), workspace.word.begin(), workspace.word.end());
  if (keep && workspace.word.size() <= WordCache::most_tokens)
    workspace.cache.keep(word, workspace.word);
}

// The tokens of single bytes or characters, which merging begins with.
void BpeTokenizer::first_tokens(std::string_view word, std::vector<Token>& tokens) const {
  bool unknown = false;  // the last character, which is not written yet
  const auto end_unknown = [&] {
    if (unknown) tokens.push_back(*parts_.unknown);
    unknown = false;
  };
  const auto put_unknown = [&] {
    if (!parts_.unknown) return;
    if (!parts_.fuse_unknown) end_unknown();
    unknown = true;
  };
  for (std::size_t at = 0; at < word.size();) {
    if (parts_.of_bytes) {
      const Token token = byte_tokens_[static_cast<unsigned char>(word[at++])];
      if (token == no_token) {
        put_unknown();
        continue;
      }
      end_unknown();
      tokens.push_back(token);
      continue;
    }
    const std::string_view character = word.substr(at, utf8_length(word[at]));
    at += character.size();
    if (const std::optional<Token> token = vocabulary_.find(character)) {
      end_unknown();
      tokens.push_back(*token);
      continue;
    }
    const auto token_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
    if (parts_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
          return token_of(byte) != no_token;
        })) {
      for (const char byte : character) tokens.push_back(token_of(byte));
    } else {
      put_unknown();
    }
  }
  end_unknown();
}

std::string BpeTokenizer::decode(std::span<const Token> tokens, bool with_special) const {
  std::string text;
  for (const Token token : tokens) {
    if (!vocabulary_.holds(token))
      throw InputError(fmt::format("{} is no token of {}", token, parts_.origin),
                       fmt::format("its tokens are 0 to {}", size() - 1));
    const auto at = static_cast<std::size_t>(token);
    if (with_special || !special_[at]) text += decoded_[at];
  }
  if (parts_.strip_first_space && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

std::uint64_t BpeTokenizer::make_hash() const {
  ContentHash hash;
  hash.text("bpe 1");
  for (Token i = 0; i < vocabulary_.size(); ++i) hash.text(vocabulary_.name(i));
  hash.number(parts_.merges.size());
  for (const Merge& merge : parts_.merges) {
    hash.number(merge.left);
    hash.number(merge.right);
  }
  hash.number(parts_.added.size());
  for (const AddedToken& token : parts_.added) {
    hash.number(token.token);
    for (const bool flag :
         {token.special, token.single_word, token.lstrip, token.rstrip, token.normalized})
      hash.number(flag);
  }
  hash.number(parts_.normalizer.size());
  for (const NormalizerStep& step : parts_.normalizer) {
    hash.number(static_cast<int>(step.kind));
    hash.text(step.pattern);
    hash.text(step.content);
  }
  hash.number(pre_tokenizer_.steps().size());
  for (const PreTokenizerStep& step : pre_tokenizer_.steps()) {
    for (const std::string& text : {step.space_becomes, step.prefix_text, step.pattern})
      hash.text(text);
    hash.number(static_cast<int>(step.prefix));
    hash.number(step.literal);
    hash.number(static_cast<int>(step.behavior));
    hash.number(step.invert);
  }
  for (const bool flag : {parts_.of_bytes, parts_.ignore_merges, parts_.byte_fallback,
                          parts_.fuse_unknown, parts_.strip_first_space, parts_.named.adds_begin})
    hash.number(flag);
  for (const std::optional<Token>& token :
       {parts_.unknown, parts_.named.begin, parts_.named.end, parts_.named.padding})
    hash.number(token.value_or(no_token));
  return hash.value();
}

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts) {
  std::sort(parts.added.begin(), parts.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.token < b.token; });
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace spillway
