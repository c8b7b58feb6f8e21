#include "experiments/validate/name_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <array>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace spillway {

namespace {

constexpr std::size_t longest_expression = 4096;
constexpr std::uint32_t most_steps = 1'000'000;

PCRE2_SPTR units_of(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

NamePattern::NamePattern(const std::string& expression) : expression_(expression) {
  if (expression.size() > longest_expression)
    throw InputError(fmt::format("an expression of {} characters", expression.size()),
                     fmt::format("{} are enough", longest_expression));
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(units_of(expression), expression.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOTALL, &error, &offset, nullptr);
  if (code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    throw InputError(
        fmt::format("the expression {} is wrong at character {}: {}", printable(expression),
                    offset + 1, reinterpret_cast<const char*>(message.data())),
        "a sign that stands for itself takes a backslash, in single quotes of TOML: "
        "'Optimizer\\.step.*'");
  }
  code_ = std::shared_ptr<const void>(code, [code](const void*) { pcre2_code_free(code); });
}

bool NamePattern::matches(const std::string& name) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, void (*)(pcre2_match_context*)> context(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  SPILLWAY_ASSERT(data && context);
  pcre2_set_match_limit(context.get(), most_steps);
  const int result =
      pcre2_match(code, units_of(name), name.size(), 0, 0, data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw InputError(fmt::format("the expression {} takes too many steps on {}",
                               printable(expression_), printable(name.substr(0, 80))),
                   "write it without repetitions inside of repetitions");
}

}  // namespace spillway
