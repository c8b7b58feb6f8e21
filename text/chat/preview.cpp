#include "text/chat/preview.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/text.hpp"

namespace spillway {

namespace {

// Untrained text is dim, or enclosed in signs.
struct Marks {
  const char *begin, *end;
};

Marks marks_of(const PreviewStyle& style) {
  return style.colour ? Marks{"\x1b[2m", "\x1b[0m"} : Marks{"⟦", "⟧"};
}

}  // namespace

std::string preview(const Document& document, const Tokenizer& tokenizer,
                    const PreviewStyle& style) {
  const std::size_t shown = style.most_tokens == 0
                                ? document.tokens.size()
                                : std::min(style.most_tokens, document.tokens.size());
  const auto text = [&](std::size_t first, std::size_t end) {
    first = std::min(first, shown);
    end = std::min(end, shown);
    return printable_lines(
        tokenizer.decode(std::span(document.tokens).subspan(first, end - first)));
  };
  const Marks marks = marks_of(style);
  std::string result;
  std::size_t at = 0;
  const auto untrained = [&](std::size_t end) {
    const std::string passed = text(at, end);
    if (!passed.empty()) result += marks.begin + passed + marks.end;
  };
  for (const TokenRun& run : document.trained) {
    untrained(run.first);
    result += text(run.first, run.end);
    at = run.end;
  }
  untrained(document.tokens.size());
  if (shown < document.tokens.size()) result += " ...";
  if (!result.ends_with('\n')) result += '\n';
  const std::size_t trained = document.trained_tokens();
  result += fmt::format(
      "-- {} tokens, {} trained on ({:.0f} %){}\n", document.tokens.size(), trained,
      document.tokens.empty()
          ? 0.0
          : 100.0 * static_cast<double>(trained) / static_cast<double>(document.tokens.size()),
      document.goes_on ? ", goes on in the next document" : "");
  return result;
}

}  // namespace spillway
