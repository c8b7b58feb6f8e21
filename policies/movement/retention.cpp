#include "policies/movement/retention.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

namespace spillway {

std::string to_text(Retention retention) {
  if (retention == Retention::never()) return "never";
  if (retention == Retention::nearest()) return "nearest";
  return fmt::format("slots({})", retention.most);
}

std::optional<Retention> parse_retention(const std::string& text) {
  if (text == "never") return Retention::never();
  if (text == "nearest") return Retention::nearest();
  const std::string begin = "slots(";
  if (!text.starts_with(begin) || !text.ends_with(")")) return std::nullopt;
  std::uint32_t most = 0;
  const char* const last = text.data() + text.size() - 1;
  const auto [end, error] = std::from_chars(text.data() + begin.size(), last, most);
  if (error != std::errc() || end != last || most == 0 || most == Retention::unlimited)
    return std::nullopt;
  return Retention::slots(most);
}

std::optional<RetentionByKind> parse_retention_by_kind(const std::string& text) {
  RetentionByKind all;
  if (const auto one = parse_retention(text)) {
    for_kinds(all, [&](const char*, Retention& retention) { retention = *one; });
    return all;
  }
  std::istringstream list(text);
  std::string given = "+";
  for (std::string item; std::getline(list, item, '+');) {
    const std::string kind = item.substr(0, item.find(':'));
    if (kind == item || given.find('+' + kind + '+') != std::string::npos) return std::nullopt;
    given += kind + '+';
    const auto one = parse_retention(item.substr(kind.size() + 1));
    bool found = false;
    for_kinds(all, [&](const char* name, Retention& retention) {
      if (kind != name || !one) return;
      retention = *one;
      found = true;
    });
    if (!found) return std::nullopt;
  }
  if (given == "+" || text.ends_with('+')) return std::nullopt;
  return all;
}

std::string retention_syntax() {
  std::string kinds;
  const RetentionByKind any;
  for_kinds(any, [&](const char* name, Retention) {
    kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", name);
  });
  return fmt::format(
      "never, nearest or slots(N) for every kind of tensor, or KIND:RETENTION joined by +, as in "
      "parameters:nearest+checkpoints:slots(4); kinds: {}",
      kinds);
}

bool RetentionDomain::read(const std::string& text, Retention& retention) const {
  const std::optional<Retention> found = parse_retention(text);
  if (found) retention = *found;
  return found.has_value();
}
std::string RetentionDomain::describe() const {
  return "never, nearest, or slots(N): at most N tensors stay beyond their use";
}

bool RetentionByKindDomain::read(const std::string& text, RetentionByKind& retention) const {
  const std::optional<RetentionByKind> found = parse_retention_by_kind(text);
  if (found) retention = *found;
  return found.has_value();
}

}  // namespace spillway
