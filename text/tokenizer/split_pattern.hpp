// The regular expressions by which tokenizers cut a text into words, as Hugging Face's tokenizers
// understand them (Oniguruma's syntax), matched by PCRE2.
//
// The two differ in signs that these expressions do not use; a pattern that has one is refused.
// Letters, digits and spaces are those of PCRE2's version of Unicode (14.0 in PCRE2 10.42).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace spillway {

class SplitPattern {
 public:
  // Throws InputError, naming `origin`, for a pattern that is malformed or not supported. A pattern
  // that could match nothing is none to cut by, and refused too.
  SplitPattern(const std::string& pattern, const std::string& origin);
  // Matches just this text.
  static SplitPattern literal(const std::string& text, const std::string& origin);
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  ~SplitPattern();

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  // What one thread matches with.
  class Matcher {
   public:
    explicit Matcher(const SplitPattern& pattern);
    Matcher(Matcher&&) noexcept;
    ~Matcher();
    // The first match at `from` or later in `text`, which is valid UTF-8. What lies before `from`
    // is seen by what looks behind. Throws InputError where the search takes too many steps.
    bool find(std::string_view text, std::size_t from, Match& match);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit SplitPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// The patterns of the models that the names say, to train tokenizers like theirs.
inline constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace spillway
