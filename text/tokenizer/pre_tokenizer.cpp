#include "text/tokenizer/pre_tokenizer.hpp"

#include <algorithm>
#include <utility>

namespace spillway {

namespace {

struct Part {
  std::size_t begin = 0, end = 0;
  bool matched = false;
};

// Matches and what lies between them: all of the text, in order.
std::vector<Part> parts_of(std::string_view text, SplitPattern::Matcher& matcher, bool invert) {
  std::vector<Part> parts;
  SplitPattern::Match match;
  std::size_t at = 0;
  while (at < text.size() && matcher.find(text, at, match)) {
    if (match.begin > at) parts.push_back({at, match.begin, invert});
    parts.push_back({match.begin, match.end, !invert});
    at = match.end;
  }
  if (at < text.size()) parts.push_back({at, text.size(), invert});
  return parts;
}

// Joins parts as the behaviour says; what is removed is left out.
std::vector<Part> join(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<Part> result;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    const bool matched_before = i > 0 && parts[i - 1].matched;
    bool joined = false;
    switch (behavior) {
      case SplitBehavior::removed:
        if (part.matched) continue;
        break;
      case SplitBehavior::isolated:
        break;
      case SplitBehavior::contiguous:
        joined = i > 0 && part.matched == matched_before;
        break;
      case SplitBehavior::merged_with_previous:
        joined = i > 0 && part.matched && !matched_before;
        break;
      case SplitBehavior::merged_with_next:
        // A match that follows another one stays alone, counted from the end of a run of matches.
        joined = matched_before && !part.matched;
        break;
    }
    if (joined)
      result.back().end = part.end;
    else
      result.push_back(part);
  }
  return result;
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps, const std::string& origin)
    : steps_(std::move(steps)) {
  std::erase(steps_, PreTokenizerStep{});
  for (const PreTokenizerStep& step : steps_) {
    if (step.pattern.empty()) continue;
    patterns_.push_back(step.literal ? SplitPattern::literal(step.pattern, origin)
                                     : SplitPattern(step.pattern, origin));
  }
}

PreTokenizer::Cutter::Cutter(const PreTokenizer& of)
    : steps_(of.steps_), changed_(of.steps_.size()) {
  auto pattern = of.patterns_.begin();
  for (const PreTokenizerStep& step : steps_) {
    if (!step.pattern.empty()) matchers_.emplace_back(*pattern++);
  }
}

void PreTokenizer::Cutter::cut_by(std::size_t step, Piece piece, const WordFunction& word) {
  if (piece.text.empty()) return;
  if (step == steps_.size()) return word(piece.text);
  const PreTokenizerStep& how = steps_[step];
  std::string& changed = changed_[step];
  if (!how.space_becomes.empty()) {
    changed.clear();
    for (const char sign : piece.text) {
      if (sign == ' ')
        changed += how.space_becomes;
      else
        changed += sign;
    }
    piece.text = changed;
  }
  const bool prefixes = how.prefix == PreTokenizerStep::Prefix::always ||
                        (how.prefix == PreTokenizerStep::Prefix::first && piece.first);
  if (prefixes && piece.may_prefix && !piece.text.starts_with(how.prefix_text)) {
    if (piece.text.data() == changed.data())
      changed.insert(0, how.prefix_text);
    else
      changed = how.prefix_text + std::string(piece.text);
    piece.text = changed;
  }
  if (how.pattern.empty()) return cut_by(step + 1, piece, word);
  split(step, piece, word);
}

void PreTokenizer::Cutter::split(std::size_t step, const Piece& piece, const WordFunction& word) {
  const PreTokenizerStep& how = steps_[step];
  const auto number = static_cast<std::size_t>(
      std::count_if(steps_.begin(), steps_.begin() + static_cast<std::ptrdiff_t>(step),
                    [](const PreTokenizerStep& before) { return !before.pattern.empty(); }));
  SplitPattern::Matcher& matcher = matchers_[number];
  const bool last = step + 1 == steps_.size();
  const auto pass = [&](std::size_t begin, std::size_t end) {
    if (begin == end) return;
    const std::string_view text = piece.text.substr(begin, end - begin);
    if (last) return word(text);
    cut_by(step + 1, {text, piece.first && begin == 0, piece.may_prefix}, word);
  };
  if (how.behavior != SplitBehavior::isolated) {
    for (const Part& part : join(parts_of(piece.text, matcher, how.invert), how.behavior))
      pass(part.begin, part.end);
    return;
  }
  SplitPattern::Match match;
  std::size_t at = 0;
  while (at < piece.text.size() && matcher.find(piece.text, at, match)) {
    pass(at, match.begin);
    pass(match.begin, match.end);
    at = match.end;
  }
  pass(at, piece.text.size());
}

}  // namespace spillway
