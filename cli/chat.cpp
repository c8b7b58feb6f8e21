// spillway chat: talk with a model.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/commands.hpp"
#include "cli/options/speaker_options.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"

namespace spillway::cli {

namespace {

struct Options {
  SpeakerOptions speaker;
  std::string system;
  std::int64_t context = 4096;
};

// Tokens that are in the decoder already stay there: what follows them is computed.
std::vector<Token> news(Decoder& decoder, std::vector<Token>& said, std::vector<Token> all) {
  const auto [mine, its] = std::mismatch(said.begin(), said.end(), all.begin(), all.end());
  // At least one token has to be computed for there to be logits.
  const auto known =
      std::min<std::ptrdiff_t>({mine - said.begin(), static_cast<std::ptrdiff_t>(decoder.length(0)),
                                static_cast<std::ptrdiff_t>(all.size()) - 1});
  decoder.cut(0, known);
  std::vector<Token> rest(all.begin() + known, all.end());
  said = std::move(all);
  return rest;
}

// The next line; false at the end, and where a signal comes first.
bool read_line(std::string& line) {
  constexpr int a_moment_ms = 100;
  while (std::cin.rdbuf()->in_avail() <= 0 && !StopSignals::came()) {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, a_moment_ms) > 0) break;
  }
  return !StopSignals::came() && std::getline(std::cin, line);
}

void run_chat(Options& options, int& exit_code) {
  StopSignals::enter(StopSignals::Phase::exporting);
  StopSignals signals;
  SpeakerRequest request = options.speaker.chosen();
  request.talks = true;
  Speaker speaker(request);
  if (!speaker.has_template()) speaker.chat_tokens({});  // says why, and what to give
  GenerateOptions& how = options.speaker.generate;
  how.stops = speaker.stops(true);
  how.vocabulary = speaker.tokenizer().size();
  Decoder& decoder = speaker.open(1, options.context);
  const bool talks = ::isatty(STDIN_FILENO) != 0;
  if (talks)
    print_error(fmt::format("{}\n/reset begins anew, /exit or Ctrl-D ends\n", speaker.describe()));
  ChatRecord chat;
  const auto reset = [&] {
    chat = {};
    if (!options.system.empty()) chat.messages.push_back({"system", options.system, {}});
  };
  reset();
  std::vector<Token> said;
  while (!StopSignals::came()) {
    if (talks) print_error("> ");
    std::string line;
    if (!read_line(line) || line == "/exit") break;
    if (line == "/reset") {
      reset();
      continue;
    }
    if (line.empty()) continue;
    chat.messages.push_back({"user", line, {}});
    std::vector<Token> all = speaker.chat_tokens(chat);
    // The oldest turns go where the context is full.
    const std::size_t first = options.system.empty() ? 0 : 1;
    while (static_cast<std::int64_t>(all.size()) + how.tokens > decoder.positions() &&
           chat.messages.size() > first + 2) {
      chat.messages.erase(chat.messages.begin() + static_cast<std::ptrdiff_t>(first),
                          chat.messages.begin() + static_cast<std::ptrdiff_t>(first) + 2);
      all = speaker.chat_tokens(chat);
    }
    if (static_cast<std::int64_t>(all.size()) >= decoder.positions()) {
      print_error(fmt::format("the message is longer than the {} tokens of --context\n",
                              decoder.positions()));
      chat.messages.pop_back();
      continue;
    }
    std::string waiting, answer;
    how.take = [&](std::int64_t, Token token) {
      const std::string piece = speaker.tokenizer().decode(std::span(&token, 1), false);
      answer += piece;
      waiting += piece;
      const std::size_t ready = whole_characters(waiting);
      fmt::print("{}", waiting.substr(0, ready));
      flush_output();
      waiting.erase(0, ready);
      return !StopSignals::came();
    };
    const auto tokens = generate(decoder, {news(decoder, said, std::move(all))}, how).front();
    said.insert(said.end(), tokens.begin(), tokens.end());
    fmt::print("{}\n", waiting);
    flush_output();
    chat.messages.push_back({"assistant", answer, {}});
  }
  if (StopSignals::came()) exit_code = StopSignals::exit_code();
}

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("chat", "talk with a model");
  auto options = std::make_shared<Options>();
  options->speaker.add_to(*command);
  command->add_option("--system", options->system, "the system's message");
  command
      ->add_option("--context", options->context,
                   "most tokens of a conversation; the oldest turns are left out beyond")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, &exit_code] { run_chat(*options, exit_code); });
}

}  // namespace spillway::cli
