// Cuts a text into words: what byte pair encoding merges within, never across.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/split_pattern.hpp"

namespace spillway {

// What becomes of the matches of a pattern, as tokenizer.json names it.
enum class SplitBehavior {
  removed,               // nothing: only what lies between matches are pieces
  isolated,              // each match is a piece
  merged_with_previous,  // each match ends the piece before it
  merged_with_next,      // each match begins the piece after it
  contiguous,            // matches without anything between are one piece
};

// One step, done to every piece that the step before has made.
struct PreTokenizerStep {
  enum class Prefix { never, first, always };

  std::string space_becomes = {};  // Metaspace's "▁" for each space; empty: left as they are
  std::string prefix_text = {};    // put before a piece that does not begin with it ...
  Prefix prefix = Prefix::never;   // ... that begins the text; or before any piece
  std::string pattern = {};        // empty: pieces stay whole
  bool literal = false;            // the pattern is the text itself
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // what lies between the matches counts as matched, and the other way round

  bool operator==(const PreTokenizerStep&) const = default;
};

class PreTokenizer {
 public:
  // Steps that do nothing are left out. Throws InputError, naming `origin`, for patterns that are
  // not supported.
  PreTokenizer(std::vector<PreTokenizerStep> steps, const std::string& origin);

  const std::vector<PreTokenizerStep>& steps() const { return steps_; }

  // What one thread cuts with.
  class Cutter {
   public:
    explicit Cutter(const PreTokenizer& of);

    struct Piece {
      std::string_view text;   // valid UTF-8
      bool first = false;      // begins the text
      bool may_prefix = true;  // false: nothing is put before it
    };
    // Calls `word` for every word of the piece, in order.
    template <typename Word>
    void cut(const Piece& piece, Word&& word) {
      cut_by(0, piece, std::function<void(std::string_view)>(std::ref(word)));
    }

   private:
    using WordFunction = std::function<void(std::string_view)>;
    void cut_by(std::size_t step, Piece piece, const WordFunction& word);
    void split(std::size_t step, const Piece& piece, const WordFunction& word);

    const std::vector<PreTokenizerStep>& steps_;
    std::vector<SplitPattern::Matcher> matchers_;  // of steps with a pattern
    std::vector<std::string> changed_;             // pieces of steps that change text
  };

 private:
  friend class Cutter;
  std::vector<PreTokenizerStep> steps_;
  std::vector<SplitPattern> patterns_;
};

}  // namespace spillway
