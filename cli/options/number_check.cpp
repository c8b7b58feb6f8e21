#include "cli/options/number_check.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>

namespace spillway::cli {

namespace {

// Why the text is no number of this type; empty: it is one.
template <class Number>
std::string why_not(const std::string& text, const char* what) {
  const std::size_t sign = text.size() > 1 && text[0] == '+' ? 1 : 0;
  const char* end = text.data() + text.size();
  Number number{};
  if constexpr (std::is_integral_v<Number>) {
    const std::size_t first = text.find_first_not_of("+-");
    if (first != std::string::npos && text[first] == '0' && text.size() > first + 1 &&
        text[first + 1] >= '0' && text[first + 1] <= '9')
      return fmt::format("{} is not {}: leave out the zeros before it", text, what);
  }
  const auto [stop, error] = std::from_chars(text.data() + sign, end, number);
  if (error == std::errc::result_out_of_range)
    return fmt::format("{} is out of range: it is too large", text);
  if (error != std::errc() || stop != end) return fmt::format("{} is not {}", text, what);
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return fmt::format("{} is not {}", text, what);
  }
  return "";
}

}  // namespace

void check_numbers(CLI::Option& option) {
  // The parser's names of types; one with a check of its own has more behind it.
  const std::string type = option.get_type_name();
  const auto is = [&](const char* name) { return type.rfind(name, 0) == 0; };
  if (is("INT")) {
    option.check(
        [](const std::string& text) { return why_not<std::int64_t>(text, "a whole number"); }, "");
  } else if (is("UINT")) {
    option.check(
        [](const std::string& text) {
          return why_not<std::uint64_t>(text, "a whole number of at least 0");
        },
        "");
  } else if (is("FLOAT")) {
    option.check([](const std::string& text) { return why_not<double>(text, "a number"); }, "");
  }
}

}  // namespace spillway::cli
