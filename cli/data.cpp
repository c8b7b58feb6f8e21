// spillway data: what the model will see, and the tokens that are kept for it.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/data_options.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "cli/train/train_notes.hpp"
#include "text/chat/preview.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct ShowOptions {
  DataSettings data;
  std::string model;  // a folder, for its tokenizer and template
  std::int64_t sequence = 256, sequences = 3;
  std::uint64_t seed = 1;
  bool json = false;
};

// One sequence as the model is given it.
struct Row {
  std::vector<std::int32_t> tokens, targets, starts;

  explicit Row(std::size_t length) : tokens(length), targets(length), starts(length) {}
  // Places [begin, end) of each document; what is filled up at the end is none.
  std::vector<TokenRun> documents() const {
    std::size_t filled = tokens.size();
    while (filled > 0 && tokens[filled - 1] == 0 && targets[filled - 1] == no_target) --filled;
    std::vector<TokenRun> runs;
    for (std::size_t i = 0; i < filled; ++i) {
      if (runs.empty() || starts[i] != starts[i - 1]) runs.push_back({i, i});
      runs.back().end = i + 1;
    }
    return runs;
  }
  std::int64_t counted() const {
    return static_cast<std::int64_t>(targets.size()) -
           std::count(targets.begin(), targets.end(), no_target);
  }
  // With the token that is a target only.
  Document document(const TokenRun& run) const {
    Document document;
    for (std::size_t i = run.first; i < run.end; ++i) {
      document.tokens.push_back(tokens[i]);
      if (targets[i] == no_target) continue;
      const std::size_t target = i - run.first + 1;
      if (!document.trained.empty() && document.trained.back().end == target)
        ++document.trained.back().end;
      else
        document.trained.push_back({target, target + 1});
    }
    if (targets[run.end - 1] != no_target) document.tokens.push_back(targets[run.end - 1]);
    return document;
  }
};

std::string numbers_of(const Document& document) {
  return fmt::format("{}\n", fmt::join(document.tokens, " "));
}

ordered_json row_json(const Row& row) {
  ordered_json documents = ordered_json::array();
  for (const TokenRun& run : row.documents())
    documents.push_back({{"begin", run.first}, {"end", run.end}});
  return {{"tokens", row.tokens},
          {"targets", row.targets},
          {"starts", row.starts},
          {"documents", documents},
          {"counted", row.counted()}};
}

void print_row(std::int64_t number, const Row& row, const Tokenizer* tokenizer) {
  const std::vector<TokenRun> documents = row.documents();
  const std::size_t filled = documents.empty() ? 0 : documents.back().end;
  fmt::print("sequence {}: {} of {} places filled, {} trained on, {} document{}\n", number, filled,
             row.tokens.size(), row.counted(), documents.size(), documents.size() == 1 ? "" : "s");
  PreviewStyle style;
  style.colour = ::isatty(STDOUT_FILENO) != 0;
  for (const TokenRun& run : documents) {
    fmt::print("  places {} to {}:\n", run.first, run.end - 1);
    const Document document = row.document(run);
    fmt::print("{}\n", tokenizer ? preview(document, *tokenizer, style) : numbers_of(document));
  }
}

void run_show(const ShowOptions& options, int& exit_code) {
  StopSignals::enter(StopSignals::Phase::exporting);
  StopSignals signals;
  DataRequest request;
  request.settings = options.data;
  if (!options.model.empty()) {
    if (!fs::is_directory(options.model))
      throw InputError("--model " + options.model + " is not a folder",
                       "name one with a tokenizer, or give --tokenizer");
    request.model_folder = options.model;
  }
  const auto tokenizer = open_tokenizer(options.data.tokenizer, request.model_folder);
  request.vocabulary = tokenizer ? tokenizer->size() : any_vocabulary;
  request.sequence = options.sequence;
  request.seed = options.seed;
  std::optional<Activity> activity;
  const auto say = [&](const std::string& what) {
    if (options.json) return;
    if (!activity) activity.emplace(what);
    activity->say(what);
  };
  const auto note = [&](const Message& text) {
    activity.reset();
    print_error(flags_in(text) + "\n");
  };
  const auto data = open_training_data(request, {say, StopSignals::came, note});
  activity.reset();
  if (!data) {
    exit_code = StopSignals::exit_code();
    return;
  }
  // Of text as bytes no tokenizer need be named.
  const auto bytes = make_byte_tokenizer();
  const bool is_bytes = data->summary.tokenizer == bytes->describe();
  const Tokenizer* const shown_by = is_bytes ? bytes.get() : tokenizer.get();
  ordered_json sequences = ordered_json::array();
  if (!options.json && data->summary.counts.sequences > 0)
    fmt::print("{}\n\n", packing_text(data->summary));
  for (std::int64_t i = 0; i < options.sequences; ++i) {
    Row row(static_cast<std::size_t>(options.sequence));
    data->batches->batch(i, 0, 1, options.sequence, row.tokens.data(), row.targets.data(),
                         row.starts.data());
    if (options.json)
      sequences.push_back(row_json(row));
    else
      print_row(i, row, shown_by);
  }
  if (options.json)
    fmt::print("{}\n", to_text({{"data", data_json(data->summary)}, {"sequences", sequences}}));
}

struct CacheOptions {
  std::vector<std::string> remove;
  bool json = false;
};

void run_cache(const CacheOptions& options) {
  const TokenCache cache(token_cache_folder());
  for (const std::string& name : options.remove) {
    if (name == "unfinished")
      cache.remove_unfinished(true);
    else if (name != "all")
      cache.remove(name);
    else
      for (const TokenCache::Entry& entry : cache.entries()) cache.remove(entry.name);
  }
  ordered_json all = ordered_json::array();
  for (const TokenCache::Entry& entry : cache.entries()) {
    all.push_back({{"name", entry.name},
                   {"finished", entry.finished},
                   {"bytes", entry.bytes},
                   {"tokens", entry.tokens},
                   {"documents", entry.documents},
                   {"made_from", entry.made_from},
                   {"used", entry.used}});
    if (options.json) continue;
    fmt::print("{}  {:>9}  used {:%Y-%m-%d}  {}{}\n", entry.name,
               format_bytes(static_cast<double>(entry.bytes)), fmt::localtime(entry.used),
               printable(entry.made_from), entry.finished ? "" : " (not finished)");
  }
  if (options.json)
    fmt::print("{}\n", to_text({{"folder", cache.folder().string()}, {"entries", all}}));
  else
    fmt::print("{} in {}\n", all.empty() ? "nothing" : fmt::format("{} in all", all.size()),
               cache.folder().string());
}

}  // namespace

void add_data(CLI::App& app, int& exit_code) {
  CLI::App* data =
      app.add_subcommand("data", "what the model will see, and the tokens kept for it");
  data->require_subcommand(1);
  CLI::App* show = data->add_subcommand(
      "show", "print sequences as training sees them, with what is trained on and their borders");
  auto options = std::make_shared<ShowOptions>();
  show->add_option("sources", options->data.data, "as those of train --data")->required();
  show->add_option("--model", options->model, "a model's folder, for its tokenizer and template");
  add_data_options(*show, options->data);
  show->add_flag("--binary-data", options->data.binary_data,
                 "take files that are no text as bytes");
  show->add_option("--sequence", options->sequence, "tokens of a sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  show->add_option("--sequences", options->sequences, "how many to print")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str();
  show->add_option("--seed", options->seed, "as that of train")->capture_default_str();
  show->add_flag("--json", options->json, "print one JSON object");
  show->callback([options, &exit_code] { run_show(*options, exit_code); });

  CLI::App* cache = data->add_subcommand(
      "cache", "list the tokens that train has kept, those used last first, or remove some");
  auto cached = std::make_shared<CacheOptions>();
  cache->add_option("--remove", cached->remove,
                    "names of entries, all, or unfinished: those that no program writes to now");
  cache->add_flag("--json", cached->json, "print one JSON object");
  cache->callback([cached] { run_cache(*cached); });
}

}  // namespace spillway::cli
