// Tokenizers by byte pair encoding: of bytes (GPT-2, Llama 3, Qwen, SmolLM) and of characters (the
// BPE of SentencePiece as Hugging Face writes it: Llama 2, Mistral).
//
// A text goes through: added tokens looked for as they are written; normalizer; added tokens looked
// for in normalized text; cutting into words; merging within each word.
//
// Bytes that are not UTF-8 become the tokens of these bytes, one each, and part the text: what lies
// on either side of them is tokenized as if it were a text of its own, only that nothing is put
// before what follows them. So tokens become the same bytes again.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer/added_tokens.hpp"
#include "text/tokenizer/bpe_merges.hpp"
#include "text/tokenizer/normalizer.hpp"
#include "text/tokenizer/pre_tokenizer.hpp"
#include "text/tokenizer/vocabulary.hpp"

namespace spillway {

// The tokens that models give a meaning to.
struct NamedTokens {
  std::optional<Token> begin, end, padding;
  bool adds_begin = false;  // each document begins with `begin`
};

struct BpeParts {
  std::string origin;  // the file, for messages
  // With the added tokens.
  std::vector<std::pair<std::string, Token>> vocabulary;
  std::vector<Merge> merges;  // in order of rank
  std::vector<AddedToken> added;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> steps;
  bool of_bytes = true;        // names in the vocabulary are written as GPT-2 does; else characters
  bool ignore_merges = false;  // a word that is a token is that token
  bool byte_fallback = false;  // characters without a token become tokens "<0x0A>"
  std::optional<Token> unknown;  // else this token; else nothing
  bool fuse_unknown = false;     // neighbouring unknown characters are one token
  // Decoding, where tokens are of characters: the first blank of a text is left out.
  bool strip_first_space = false;
  NamedTokens named;
};

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeParts parts);

}  // namespace spillway
