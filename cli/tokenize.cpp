// spillway tokenize: text and chats as files of tokens.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/data_options.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "text/tokens/source_hash.hpp"
#include "text/tokens/tokenize.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct TokenizeOptions {
  DataSettings data;
  std::string out;
  int threads = 0;  // 0: as many as there are cores
  std::uint64_t shard_tokens = TokenizeSettings::default_shard_tokens;
  bool json = false;
};

std::vector<SourceSettings> sources_of(const DataSettings& data) {
  std::vector<SourceSettings> sources;
  for (const std::string& text : data.data)
    for (SourceSettings& one : parse_sources(text)) sources.push_back(std::move(one));
  return sources;
}

// All paths as one source: a folder of tokens has no weights.
Source open_source(const DataSettings& data) {
  SourceSettings all;
  for (const SourceSettings& one : sources_of(data)) {
    if (one.weight != 1)
      throw InputError("weights say how often training sees a source, not what its tokens are",
                       "tokenize the sources one by one, and give weights to train");
    if (!all.paths.empty() &&
        (one.format != all.format || one.separator != all.separator ||
         one.skip_malformed != all.skip_malformed || one.binary != all.binary))
      throw InputError("sources with different rules cannot be in one folder of tokens",
                       "tokenize them one by one");
    const auto paths = all.paths;
    all = one;
    all.paths.insert(all.paths.begin(), paths.begin(), paths.end());
  }
  if (data.data_format != "auto") all.format = parse_source_format(data.data_format);
  all.binary = all.binary || data.binary_data;
  all.skip_malformed = all.skip_malformed || data.skip_malformed;
  return Source(all, TokenizeSettings::part_bytes);
}

void tell(const TokenizeResult& result, const TokenizeOptions& options, const Source& source,
          const Tokenizer& tokenizer) {
  const TokenCorpus corpus = TokenCorpus::open(options.out);
  const DocumentCounts& counts = result.counts;
  if (options.json) {
    fmt::print("{}\n", to_text({{"folder", options.out},
                                {"tokenizer", tokenizer.describe()},
                                {"files", result.files},
                                {"kept_files", result.kept_files},
                                {"bytes", source.bytes()},
                                {"records", counts.source.records},
                                {"malformed", counts.source.malformed},
                                {"documents", corpus.documents()},
                                {"tokens", corpus.tokens()},
                                {"trained_tokens", corpus.trained()},
                                {"untrained_documents", counts.untrained},
                                {"skipped_files", source.skipped().count},
                                {"hash", fmt::format("{:016x}", corpus.hash())}}));
    return;
  }
  if (source.skipped().count > 0) fmt::print("{}\n", source.skipped().text());
  fmt::print("{}: {} tokens of {} documents in {} file{}, {:.2f} bytes a token ({})\n", options.out,
             corpus.tokens(), corpus.documents(), result.files, result.files == 1 ? "" : "s",
             static_cast<double>(source.bytes()) / static_cast<double>(corpus.tokens()),
             tokenizer.describe());
  if (!corpus.all_trained()) fmt::print("  {} of them are trained on\n", corpus.trained());
  if (counts.source.malformed > 0)
    fmt::print("  {} malformed records left out, the first: {}\n", counts.source.malformed,
               counts.source.first_malformed);
  if (result.kept_files > 0)
    fmt::print("  {} file{} there already\n", result.kept_files,
               result.kept_files == 1 ? " was" : "s were");
}

void run_tokenize(const TokenizeOptions& options, int& exit_code) {
  StopSignals::enter(StopSignals::Phase::exporting);
  StopSignals signals;
  if (options.data.tokenizer == "auto")
    throw InputError("there is no tokenizer", "name one: --tokenizer DIR, or --tokenizer bytes");
  const auto tokenizer = open_tokenizer(options.data.tokenizer, {});
  const Source source = open_source(options.data);
  TokenizeSettings settings;
  settings.folder = options.out;
  settings.documents = document_settings(options.data, {});
  settings.shard_tokens = options.shard_tokens;
  settings.threads = options.threads > 0
                         ? options.threads
                         : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::optional<Activity> activity;
  const auto say = [&](const std::string& what) {
    if (options.json) return;
    if (!activity) activity.emplace(what);
    activity->say(what);
  };
  SourceHashListener hashing;
  hashing.stop = StopSignals::came;
  hashing.progress = [&](std::uint64_t done, std::uint64_t all) {
    say(fmt::format("reading: {} of {}", format_bytes(static_cast<double>(done)),
                    format_bytes(static_cast<double>(all))));
  };
  for (const std::string& note : DocumentReader(source, *tokenizer, settings.documents).notes())
    print_error("note: " + note + "\n");
  settings.source_hash = source_hash(source, {}, hashing);
  TokenizeListener listener;
  listener.stop = StopSignals::came;
  const auto begin = std::chrono::steady_clock::now();
  listener.progress = [&](const TokenizeProgress& now) { say(tokenizing_text(now, begin)); };
  listener.waiting = [&] { say("waiting: another program writes to " + options.out); };
  const TokenizeResult result =
      StopSignals::came() ? TokenizeResult{} : tokenize(source, *tokenizer, settings, listener);
  activity.reset();
  if (result.finished) return tell(result, options, source, *tokenizer);
  print_error("stopped: the same command goes on with what is missing\n");
  exit_code = StopSignals::exit_code();
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "tokenize", "turn text, JSONL and chats into files of tokens, which train takes");
  auto options = std::make_shared<TokenizeOptions>();
  command->add_option("sources", options->data.data, "files and folders")->required();
  add_document_options(*command, options->data);
  command->add_option("--out", options->out, "the folder of the token files")->required();
  command
      ->add_option("--threads", options->threads,
                   "0: as many as the machine has cores; the files do not depend on it")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      ->add_option("--shard-size", options->shard_tokens,
                   "tokens in a file, at least: it ends with the part of the text in which it "
                   "gets there")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 40))
      ->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &exit_code] { run_tokenize(*options, exit_code); });
}

}  // namespace spillway::cli
