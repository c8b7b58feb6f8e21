#include "experiments/train/training_samples.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/errors.hpp"
#include "base/units.hpp"

namespace spillway {

namespace {

SpeakerRequest request_of(const std::string& tokenizer, const std::string& chat_template,
                          int threads) {
  SpeakerRequest request;
  request.tokenizer = tokenizer;
  request.chat_template = chat_template;
  request.threads = threads;
  return request;
}

}  // namespace

TrainingSamples::TrainingSamples(SampleSettings settings, const ModelSpec& model,
                                 const std::filesystem::path& folder, const std::string& tokenizer,
                                 const std::string& chat_template, int threads)
    : settings_(std::move(settings)),
      model_(model),
      speaker_(request_of(tokenizer, chat_template, threads), model, folder) {
  const auto add = [&](const char* key, const std::string& text, std::vector<Token> tokens) {
    if (static_cast<std::int64_t>(tokens.size()) >= model_.positions)
      throw InputError(
          Setting{key, text.substr(0, 40)} +
              Message(fmt::format(": {} tokens, and model {} has {} positions for them and the "
                                  "answer",
                                  tokens.size(), model_.name, model_.positions)),
          "give a shorter one");
    prompts_.push_back(std::move(tokens));
  };
  for (const std::string& text : settings_.prompts)
    add("sample_prompt", text, speaker_.text_tokens(text));
  for (const std::string& text : settings_.chats)
    add("sample_chat", text, speaker_.chat_tokens({{{"user", text, {}}}, {}}));
  memory_ = chosen_memory();
}

std::int64_t TrainingSamples::positions() const {
  std::size_t longest = 0;
  for (const auto& prompt : prompts_) longest = std::max(longest, prompt.size());
  return std::min(static_cast<std::int64_t>(longest) + settings_.tokens, model_.positions);
}

std::uint64_t TrainingSamples::chosen_memory() const {
  const std::uint64_t beside = Decoder::memory_bytes(model_, count(), positions());
  const std::uint64_t least = beside + UnitWeights::least_bytes(model_);
  const bool chosen = settings_.memory.empty();
  const std::uint64_t wanted = chosen ? usual_memory : parse_bytes(settings_.memory);
  if (!chosen && wanted < least)
    throw InputError(
        Setting{"sample_memory", format_bytes(static_cast<double>(wanted))} +
            Message(fmt::format(": two layers, embedding and head of model {}, and what computing "
                                "needs, take {}",
                                model_.name, format_bytes(static_cast<double>(least)))),
        "give as much, or leave it out");
  return std::max(std::min(wanted, beside + UnitWeights::all_bytes(model_)), least);
}

std::vector<TrainingSample> TrainingSamples::write(const StateValues& weights,
                                                   const std::function<bool()>& stops) {
  Decoder& decoder = speaker_.open(count(), positions(), weights, memory_);
  GenerateOptions how;
  how.tokens = settings_.tokens;
  how.sampling = settings_.sampling;
  how.vocabulary = speaker_.tokenizer().size();
  bool stopped = false;
  how.take = [&](std::int64_t, Token) { return !(stopped = stopped || stops()); };
  std::vector<TrainingSample> samples;
  // Texts and chats end by other tokens.
  const std::vector<std::vector<Token>> prompts = prompts_;
  const auto texts = static_cast<std::ptrdiff_t>(settings_.prompts.size());
  how.stops = speaker_.stops(false);
  auto answers = generate(decoder, {prompts.begin(), prompts.begin() + texts}, how);
  for (std::int64_t sequence = 0; sequence < count(); ++sequence) decoder.cut(sequence, 0);
  how.stops = speaker_.stops(true);
  const auto chats = stopped ? std::vector<std::vector<Token>>()
                             : generate(decoder, {prompts.begin() + texts, prompts.end()}, how);
  answers.insert(answers.end(), chats.begin(), chats.end());
  speaker_.close();
  if (stopped) return samples;
  for (std::size_t k = 0; k < answers.size(); ++k) {
    const bool is_chat = k >= settings_.prompts.size();
    const std::string& prompt =
        is_chat ? settings_.chats[k - settings_.prompts.size()] : settings_.prompts[k];
    samples.push_back({is_chat, prompt, speaker_.tokenizer().decode(answers[k], false),
                       static_cast<std::int64_t>(answers[k].size())});
  }
  return samples;
}

}  // namespace spillway
