// spillway tokenizer train | encode | decode | show: tokenizers, made and looked at.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <thread>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "sim/result_json.hpp"
#include "text/tokenizer/read_tokenizer.hpp"
#include "text/tokenizer/train_tokenizer.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  TokenizerTraining training;
  std::string out, tokenizer, text;
  std::vector<std::string> files;
  std::vector<Token> tokens;
  bool special = false, without_special = false, json = false;
};

// A whole file; "-": standard input.
std::string read_all(const std::string& path) {
  struct Closer {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  const std::unique_ptr<std::FILE, Closer> file(path == "-" ? stdin
                                                            : std::fopen(path.c_str(), "rbe"));
  if (!file) throw InputError(fmt::format("cannot read {}", path), "check the path");
  std::string text;
  std::array<char, 65536> part{};
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), file.get()))
    text.append(part.data(), count);
  if (std::ferror(file.get()) != 0) throw InputError(fmt::format("cannot read {}", path));
  return text;
}

void run_train(Options& options) {
  TokenizerTraining& how = options.training;
  if (how.threads == 0) how.threads = std::max(1u, std::thread::hardware_concurrency());
  Progress progress(!options.json);
  how.reading = [&](std::uint64_t bytes, std::uint64_t all) {
    progress.show(fmt::format("counting words: {} of {}", format_bytes(static_cast<double>(bytes)),
                              format_bytes(static_cast<double>(all))));
  };
  how.merging = [&](std::int64_t tokens) {
    progress.show(fmt::format("merging: {} tokens", tokens));
  };
  const TokenizerTrained trained = train_tokenizer(how, options.out);
  progress.clear();
  if (!trained.skipped.empty()) print_error(trained.skipped + "\n");
  if (trained.malformed > 0)
    print_error(fmt::format("{} malformed records left out\n", trained.malformed));
  if (options.json) {
    fmt::print("{}\n", to_text({{"folder", options.out},
                                {"tokens", trained.tokens},
                                {"bytes", trained.bytes},
                                {"files", trained.files},
                                {"words", trained.words}}));
    return;
  }
  fmt::print("{}: {} tokens, trained on {} in {} file{}, {} different words\n", options.out,
             trained.tokens, format_bytes(static_cast<double>(trained.bytes)), trained.files,
             trained.files == 1 ? "" : "s", trained.words);
  if (trained.tokens < how.vocabulary)
    fmt::print("no pair of tokens is left that the text has twice: more text makes more tokens\n");
}

void run_encode(Options& options) {
  const auto tokenizer = read_tokenizer(options.tokenizer);
  if (options.files.empty()) options.files = {"-"};
  std::uint64_t bytes = 0, count = 0;
  double seconds = 0;
  for (const std::string& file : options.files) {
    const std::string text = read_all(file);
    std::vector<Token> tokens;
    const auto begin = std::chrono::steady_clock::now();
    tokenizer->encode(text, options.special ? SpecialTokens::parsed : SpecialTokens::as_text,
                      tokens);
    seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    bytes += text.size();
    count += tokens.size();
    fmt::print("{}\n", fmt::join(tokens, " "));
  }
  print_error(fmt::format("{} tokens, {} bytes, {:.1f} MB/s\n", count, bytes,
                          seconds > 0 ? static_cast<double>(bytes) / 1e6 / seconds : 0.0));
}

// Numbers with blanks or commas between.
std::vector<Token> parse_tokens(const std::string& text) {
  std::vector<Token> tokens;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at != end && std::string_view(" \t\r\n,[]").find(*at) != std::string_view::npos) ++at;
    if (at == end) return tokens;
    Token token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    if (error != std::errc())
      throw InputError(
          fmt::format("{} is no number of a token",
                      printable(std::string(at, std::min<std::size_t>(20, std::size_t(end - at))))),
          "numbers with blanks between, as `spillway tokenizer encode` writes them");
    tokens.push_back(token);
    at = next;
  }
}

void run_decode(const Options& options) {
  const auto tokenizer = read_tokenizer(options.tokenizer);
  std::vector<Token> tokens = options.tokens;
  if (tokens.empty()) {
    for (const std::string& file :
         options.files.empty() ? std::vector<std::string>{"-"} : options.files) {
      const std::vector<Token> more = parse_tokens(read_all(file));
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
  }
  const std::string text = tokenizer->decode(tokens, !options.without_special);
  if (options.out.empty()) {
    fmt::print("{}\n", text);
  } else {
    write_file(options.out, text);
  }
}

std::string token_text(const Tokenizer& tokenizer, const std::optional<Token>& token) {
  if (!token) return "none";
  return fmt::format("{} {}", *token, printable(tokenizer.decode({{*token}})));
}

std::vector<Token> cut(const Tokenizer& tokenizer, const Options& options) {
  std::vector<Token> tokens;
  tokenizer.encode(options.text, options.special ? SpecialTokens::parsed : SpecialTokens::as_text,
                   tokens);
  return tokens;
}

ordered_json show_json(const Tokenizer& tokenizer, const Options& options) {
  const auto number = [](const std::optional<Token>& token) {
    return token ? ordered_json(*token) : ordered_json();
  };
  ordered_json result = {{"tokenizer", tokenizer.describe()},
                         {"size", tokenizer.size()},
                         {"begin_of_text", number(tokenizer.begin_of_text())},
                         {"adds_begin_of_text", tokenizer.adds_begin_of_text()},
                         {"end_of_text", number(tokenizer.end_of_text())},
                         {"padding", number(tokenizer.padding())},
                         {"hash", fmt::format("{:016x}", tokenizer.hash())}};
  if (options.text.empty()) return result;
  auto tokens = ordered_json::array();
  for (const Token token : cut(tokenizer, options))
    tokens.push_back({{"token", token}, {"text", tokenizer.decode({{token}})}});
  result["tokens"] = std::move(tokens);
  return result;
}

void run_show(const Options& options) {
  const auto tokenizer = read_tokenizer(options.tokenizer);
  if (options.json) {
    fmt::print("{}\n", to_text(show_json(*tokenizer, options)));
    return;
  }
  fmt::print("{}: {}\n", options.tokenizer, tokenizer->describe());
  fmt::print("begin of text  {}{}\n", token_text(*tokenizer, tokenizer->begin_of_text()),
             tokenizer->adds_begin_of_text() ? ", before each document" : "");
  fmt::print("end of text    {}\n", token_text(*tokenizer, tokenizer->end_of_text()));
  fmt::print("padding        {}\n", token_text(*tokenizer, tokenizer->padding()));
  fmt::print("hash           {:016x}\n", tokenizer->hash());
  if (options.text.empty()) return;
  const std::vector<Token> tokens = cut(*tokenizer, options);
  fmt::print("\n{} tokens of {} bytes:\n", tokens.size(), options.text.size());
  for (const Token token : tokens)
    fmt::print("{:>8}  \"{}\"\n", token, printable(tokenizer->decode({{token}})));
}

void add_tokenizer_option(CLI::App& command, Options& options) {
  command
      .add_option("--tokenizer", options.tokenizer,
                  "tokenizer.json, vocab.json, encoder.json, tokenizer.model, or the folder of a "
                  "model")
      ->required();
}

void add_training(CLI::App& command, const std::shared_ptr<Options>& options) {
  TokenizerTraining& how = options->training;
  command
      .add_option("files", how.source.paths, "text, JSONL and folders, as those of train --data")
      ->required();
  command.add_flag("--skip-malformed", how.source.skip_malformed,
                   "leave out records that are malformed, and say how many, instead of refusing");
  command.add_flag("--binary-data", how.source.binary, "take files that are no text as bytes");
  command
      .add_option("--vocabulary", how.vocabulary, "tokens, special ones included: 8192, 32000, ...")
      ->required();
  command.add_option("--out", options->out, "a new folder")->required();
  command
      .add_option("--pattern", how.pattern, "how texts are cut into words: gpt2 | llama3 | qwen2")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen2"}))
      ->capture_default_str();
  command.add_option("--special", how.special,
                     "another special token, <|im_start|> say; may be given many times");
  command.add_option("--bos", how.begin, "the token that begins each document; left out: none");
  command.add_option("--eos", how.end, "the token that ends each document")->capture_default_str();
  command.add_option("--pad", how.padding, "the token of padding; left out: that of --eos");
  command.add_option("--threads", how.threads, "that count words; 0: one for each core");
  command.add_flag("--json", options->json, "print one JSON object");
  how.threads = 0;
  command.callback([options] { run_train(*options); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* command = app.add_subcommand("tokenizer", "train a tokenizer, or look at one");
  command->require_subcommand(1);
  add_training(*command->add_subcommand("train", "train byte-level BPE on text"),
               std::make_shared<Options>());

  CLI::App* encode =
      command->add_subcommand("encode", "print the tokens of texts, a line for each file");
  auto encoding = std::make_shared<Options>();
  add_tokenizer_option(*encode, *encoding);
  encode->add_option("files", encoding->files, "files; none or -: standard input");
  encode->add_flag("--special", encoding->special,
                   "names of special tokens in a text become these tokens; else they are letters");
  encode->callback([encoding] { run_encode(*encoding); });

  CLI::App* decode = command->add_subcommand("decode", "print the text of tokens");
  auto decoding = std::make_shared<Options>();
  add_tokenizer_option(*decode, *decoding);
  decode->add_option("files", decoding->files, "files with numbers; none or -: standard input");
  decode->add_option("--tokens", decoding->tokens, "the numbers themselves");
  decode->add_option("--out", decoding->out, "write the bytes to this file as they are");
  decode->add_flag("--without-special", decoding->without_special, "leave special tokens out");
  decode->callback([decoding] { run_decode(*decoding); });

  CLI::App* show = command->add_subcommand("show", "what a tokenizer is, and how it cuts a text");
  auto showing = std::make_shared<Options>();
  add_tokenizer_option(*show, *showing);
  show->add_option("text", showing->text, "a text to cut");
  show->add_flag("--special", showing->special, "names of special tokens become these tokens");
  show->add_flag("--json", showing->json, "print one JSON object");
  show->callback([showing] { run_show(*showing); });
}

}  // namespace spillway::cli
