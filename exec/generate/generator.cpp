#include "exec/generate/generator.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

std::vector<std::vector<std::int32_t>> generate(
    Decoder& decoder, const std::vector<std::vector<std::int32_t>>& prompts,
    const GenerateOptions& options) {
  options.sampling.check();
  Sampler sampler(options.sampling);
  std::vector<std::vector<std::int32_t>> answers(prompts.size());
  std::vector<std::int64_t> open;    // prompts whose answers go on
  std::vector<std::int32_t> latest;  // their last tokens, which the decoder does not have yet
  const auto take = [&](std::int64_t prompt, std::span<const float> logits) {
    std::vector<std::int32_t>& answer = answers[static_cast<std::size_t>(prompt)];
    if (static_cast<std::int64_t>(answer.size()) >= options.tokens) return;
    if (options.vocabulary > 0 && static_cast<std::size_t>(options.vocabulary) < logits.size())
      logits = logits.first(static_cast<std::size_t>(options.vocabulary));
    const std::int32_t token = sampler.pick(logits, decoder.length(prompt));
    if (std::find(options.stops.begin(), options.stops.end(), token) != options.stops.end()) return;
    answer.push_back(token);
    if (options.take && !options.take(prompt, token)) return;
    const bool goes_on = static_cast<std::int64_t>(answer.size()) < options.tokens;
    if (!goes_on || decoder.length(prompt) >= decoder.positions()) return;
    open.push_back(prompt);
    latest.push_back(token);
  };
  for (std::size_t k = 0; k < prompts.size(); ++k) {
    const auto prompt = static_cast<std::int64_t>(k);
    SPILLWAY_ASSERT(!prompts[k].empty());
    take(prompt, decoder.append(prompt, prompts[k]));
  }
  while (!open.empty()) {
    const std::vector<std::int64_t> sequences = std::move(open);
    const std::vector<std::int32_t> tokens = std::move(latest);
    open.clear();
    latest.clear();
    const std::span<const float> logits = decoder.append_one(sequences, tokens);
    const std::size_t width = logits.size() / sequences.size();
    for (std::size_t k = 0; k < sequences.size(); ++k)
      take(sequences[k], logits.subspan(k * width, width));
  }
  return answers;
}

}  // namespace spillway
