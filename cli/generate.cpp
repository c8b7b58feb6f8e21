// spillway generate: what a model says after a text, or to a message.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/speaker_options.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "exec/run/executor.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  SpeakerOptions speaker;
  std::vector<std::string> prompts;
  std::string system;
  bool chat = false, json = false;
};

void run_generate(Options& options, int& exit_code) {
  StopSignals::enter(StopSignals::Phase::exporting);
  StopSignals signals;
  Speaker speaker(options.speaker.chosen());
  std::vector<std::vector<Token>> prompts;
  for (const std::string& prompt : options.prompts) {
    if (!options.chat) {
      prompts.push_back(speaker.text_tokens(prompt));
      continue;
    }
    ChatRecord chat;
    if (!options.system.empty()) chat.messages.push_back({"system", options.system, {}});
    chat.messages.push_back({"user", prompt, {}});
    prompts.push_back(speaker.chat_tokens(chat));
  }
  std::size_t longest = 0;
  for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
  if (const auto positions = static_cast<std::size_t>(speaker.model().positions);
      longest > positions)
    throw InputError(
        fmt::format("a prompt of {} tokens is longer than the {} positions of model {}", longest,
                    positions, speaker.model().name),
        "give a shorter one");
  GenerateOptions& how = options.speaker.generate;
  how.stops = speaker.stops(options.chat);
  how.vocabulary = speaker.tokenizer().size();
  Decoder& decoder = speaker.open(static_cast<std::int64_t>(prompts.size()),
                                  static_cast<std::int64_t>(longest) + how.tokens);
  // One answer is shown while it grows.
  const bool shows = !options.json && prompts.size() == 1;
  if (shows && !options.chat) fmt::print("{}", options.prompts.front());
  std::string waiting;
  std::int64_t count = 0;
  how.take = [&](std::int64_t, Token token) {
    ++count;
    if (!shows) return !StopSignals::came();
    waiting += speaker.tokenizer().decode(std::span(&token, 1), false);
    const std::size_t ready = whole_characters(waiting);
    fmt::print("{}", waiting.substr(0, ready));
    flush_output();
    waiting.erase(0, ready);
    return !StopSignals::came();
  };
  const std::int64_t began = now_ns();
  const auto answers = generate(decoder, prompts, how);
  const double seconds = static_cast<double>(now_ns() - began) * 1e-9;
  if (StopSignals::came()) exit_code = StopSignals::exit_code();
  if (options.json) {
    ordered_json all = ordered_json::array();
    for (std::size_t k = 0; k < answers.size(); ++k)
      all.push_back({{"prompt", options.prompts[k]},
                     {"prompt_tokens", prompts[k].size()},
                     {"text", speaker.tokenizer().decode(answers[k], false)},
                     {"tokens", answers[k]}});
    fmt::print("{}\n", to_text({{"model", speaker.model().name},
                                {"weights", speaker.weights()},
                                {"answers", all},
                                {"seconds", seconds},
                                {"layers_in_memory", speaker.layers_in_memory()}}));
    return;
  }
  if (shows) {
    fmt::print("{}\n", waiting);
  } else {
    for (std::size_t k = 0; k < answers.size(); ++k)
      fmt::print("--- {}{}\n", options.prompts[k] + (options.chat ? "\n" : ""),
                 speaker.tokenizer().decode(answers[k], false));
  }
  flush_output();
  std::string rest;
  if (speaker.layers_in_memory() < speaker.model().layers)
    rest = fmt::format("; {} of {} layers in memory, the others read for every token",
                       speaker.layers_in_memory(), speaker.model().layers);
  print_error(fmt::format("{}; {} tokens, {:.1f} tokens/s{}\n", speaker.describe(), count,
                          static_cast<double>(count) / seconds, rest));
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("generate", "what a model says after a text, or to a message");
  auto options = std::make_shared<Options>();
  options->speaker.add_to(*command);
  command->add_option("--prompt", options->prompts, "a text to go on from; may be given again")
      ->required();
  command->add_flag("--chat", options->chat,
                    "each prompt is a message, which the model answers by its chat template");
  command->add_option("--system", options->system, "with --chat: the system's message");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &exit_code] { run_generate(*options, exit_code); });
}

}  // namespace spillway::cli
