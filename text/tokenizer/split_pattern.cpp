#include "text/tokenizer/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace spillway {

namespace {

constexpr std::size_t longest_pattern = 16384;
constexpr std::size_t most_jit_stack = 16 << 20;
constexpr std::uint32_t steps_per_byte = 64, least_steps = 10'000'000;

// Rewrites a pattern of Oniguruma's syntax for PCRE2, sign by sign; what would mean something else
// there, or is not known to mean the same, is refused.
class Translation {
 public:
  Translation(std::string_view pattern, const std::string& origin)
      : pattern_(pattern), origin_(origin) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char sign = pattern_[at_];
      if (sign == '\\')
        escape();
      else if (sign == '[')
        open_class();
      else if (in_class_ && sign == ']')
        close_class();
      else if (in_class_)
        in_class();
      else
        outside();
    }
    if (in_class_) fail("a class [ is not closed");
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(
        origin_, 0, fmt::format("the pattern {}: {}", printable(pattern_.substr(0, 200)), what),
        "patterns are read that GPT-2, Llama 3, Qwen, SmolLM and models like these have");
  }

  bool next_is(std::string_view signs) const { return pattern_.substr(at_).starts_with(signs); }
  void take(std::size_t signs) {
    result_ += pattern_.substr(at_, signs);
    at_ += signs;
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) fail("it ends with a backslash");
    const char sign = pattern_[at_ + 1];
    if (sign == 's' || sign == 'S') {
      // PCRE2 counts U+180E among the spaces for \s.
      result_ += sign == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (sign == 'p' || sign == 'P') {
      const std::size_t end = pattern_.find('}', at_);
      if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || end == std::string_view::npos)
        fail("\\p is not followed by a property in braces");
      take(end + 1 - at_);
    } else if (sign == 'x' || sign == 'u') {
      code_point(sign);
    } else if (std::string_view("dDrntfv").find(sign) != std::string_view::npos) {
      take(2);
    } else if (static_cast<unsigned char>(sign) < 0x80 && !std::isalnum(sign)) {
      take(2);
    } else {
      fail(fmt::format("\\{} is not supported", printable(std::string(1, sign))));
    }
  }

  // \x{10FFFF} or \u10FF.
  void code_point(char sign) {
    const std::size_t begin = at_ + (sign == 'x' ? 3 : 2);
    const std::size_t end = sign == 'x' ? pattern_.find('}', at_) : begin + 4;
    const bool braced = sign == 'u' || pattern_.substr(at_ + 2).starts_with('{');
    if (!braced || end == std::string_view::npos || end > pattern_.size() || end == begin)
      fail(fmt::format("\\{} is not followed by the number of a character", sign));
    const std::string_view digits = pattern_.substr(begin, end - begin);
    if (digits.size() > 6 || !std::all_of(digits.begin(), digits.end(), [](char digit) {
          return std::isxdigit(static_cast<unsigned char>(digit)) != 0;
        }))
      fail(fmt::format("\\{} is not followed by the number of a character", sign));
    result_ += fmt::format("\\x{{{}}}", digits);
    at_ = sign == 'x' ? end + 1 : end;
  }

  void open_class() {
    if (in_class_) fail("a class within a class is not supported");
    in_class_ = true;
    take(1);
    if (next_is("^")) take(1);
    if (next_is("]")) fail("a class that begins with ] is not supported");
  }

  void close_class() {
    in_class_ = false;
    take(1);
  }

  void in_class() {
    if (next_is("&&")) fail("the intersection && of classes is not supported");
    take(1);
  }

  void outside() {
    const char sign = pattern_[at_];
    if (sign == '(') {
      group();
    } else if (sign == '^' || sign == '$') {
      fail(fmt::format("{} is not supported", sign));
    } else if (sign == '}' && at_ + 1 < pattern_.size() && pattern_[at_ + 1] == '+') {
      fail("{...}+ is not supported");  // possessive in PCRE2, a repetition of both in Oniguruma
    } else {
      take(1);
    }
  }

  void group() {
    if (next_is("(*")) fail("(* is not supported");
    if (!next_is("(?")) return take(1);
    for (const std::string_view kind : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (next_is(kind)) return take(kind.size());
    }
    fail(fmt::format("the group {} is not supported", printable(pattern_.substr(at_, 4))));
  }

  std::string_view pattern_;
  const std::string& origin_;
  std::string result_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

std::string reason_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Code {
  pcre2_code* code = nullptr;
  bool jit = false;

  ~Code() { pcre2_code_free(code); }
};

SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

SplitPattern::SplitPattern(const std::string& pattern, const std::string& origin)
    : code_(std::make_unique<Code>()) {
  const auto fail = [&](const std::string& what) {
    throw InputError(origin, 0,
                     fmt::format("the pattern {}: {}", printable(pattern.substr(0, 200)), what));
  };
  if (pattern.size() > longest_pattern) fail(fmt::format("longer than {} bytes", longest_pattern));
  const std::string text = Translation(pattern, origin).run();
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE place = 0;
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &place, context.get());
  if (code_->code == nullptr) fail(reason_of(error));
  std::uint32_t may_match_nothing = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_MATCHEMPTY, &may_match_nothing);
  if (may_match_nothing != 0) fail("it matches a text without any character");
  code_->jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE) == 0;
}

SplitPattern SplitPattern::literal(const std::string& text, const std::string& origin) {
  std::string pattern;
  for (const char sign : text) {
    if (static_cast<unsigned char>(sign) < 0x80 && std::ispunct(sign) != 0) pattern += '\\';
    pattern += sign;
  }
  return SplitPattern(pattern, origin);
}

struct SplitPattern::Matcher::State {
  const Code* code;
  pcre2_match_data* data;
  pcre2_match_context* context;
  pcre2_jit_stack* stack;

  explicit State(const Code& of)
      : code(&of),
        data(pcre2_match_data_create(1, nullptr)),
        context(pcre2_match_context_create(nullptr)),
        stack(pcre2_jit_stack_create(32768, most_jit_stack, nullptr)) {
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
};

SplitPattern::Matcher::Matcher(const SplitPattern& pattern)
    : state_(std::make_unique<State>(*pattern.code_)) {}
SplitPattern::Matcher::Matcher(Matcher&&) noexcept = default;
SplitPattern::Matcher::~Matcher() = default;

bool SplitPattern::Matcher::find(std::string_view text, std::size_t from, Match& match) {
  State& state = *state_;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (state.code->jit) {
    found =
        pcre2_jit_match(state.code->code, subject, text.size(), from, 0, state.data, state.context);
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT || found == PCRE2_ERROR_MATCHLIMIT) {
    const std::size_t steps = least_steps + steps_per_byte * (text.size() - from);
    pcre2_set_match_limit(state.context,
                          static_cast<std::uint32_t>(std::min<std::size_t>(steps, 4'000'000'000)));
    found = pcre2_match(state.code->code, subject, text.size(), from,
                        PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, state.data, state.context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    throw InputError(
        fmt::format("the tokenizer's pattern cannot be searched for: {}", reason_of(found)),
        "a word of the text is too long for this pattern");
  }
  const PCRE2_SIZE* const places = pcre2_get_ovector_pointer(state.data);
  match = {places[0], places[1]};
  return true;
}

}  // namespace spillway
