// What is in a SentencePiece model, looked at before the library gets it: the library takes some
// malformed models for good ones and reads beyond their ends.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct SentencePieceModel {
  enum class Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string_view text;  // in the model's bytes
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  // by number
  bool unigram = true;        // else BPE
  bool byte_fallback = false;
  bool add_dummy_prefix = true;  // a blank before a text
  bool remove_extra_whitespaces = true;
  bool changes_characters = false;           // normalizer_spec.precompiled_charsmap
  std::string unknown_surface = " \u2047 ";  // what the unknown token is decoded to
};

// Reads and checks the model, a message of sentencepiece_model.proto. Throws InputError for one
// that is malformed or of a kind that is not supported.
SentencePieceModel read_sentencepiece_model(std::string_view model, const std::string& origin);

}  // namespace spillway
