// From what was named to sources, tokenizer and tokens.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/calibrate/machine_cache.hpp"
#include "experiments/train/training_data.hpp"
#include "text/chat/chat_template.hpp"
#include "text/tokenizer/read_tokenizer.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

std::optional<TokenFormat> raw_format(const std::string& name) {
  if (name == "uint16") return TokenFormat::uint16;
  if (name == "uint32") return TokenFormat::uint32;
  return {};
}

bool is_token_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> head(1024);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(std::max<std::streamsize>(0, file.gcount())));
  return begins_as_tokens(std::as_bytes(std::span(head)));
}

// A file of tokens with a header, or a folder of such.
bool holds_tokens(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return is_token_file(path);
  if (!fs::is_directory(path, error)) return false;
  if (fs::is_regular_file(path / token_file_name(0), error)) return true;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
    if (entry.path().extension() == ".bin" && entry.is_regular_file(error))
      return is_token_file(entry.path());
  return false;
}

// Progress of both passes over the files, in words.
class Told {
 public:
  explicit Told(const DataListener& listener) : listener_(listener) {}

  TokenCache::Listener listener() {
    TokenCache::Listener of;
    of.hashing.progress = [this](std::uint64_t done, std::uint64_t all) {
      say([&] { return fmt::format("reading the data: {} %", percent(done, all)); });
    };
    of.hashing.stop = of.tokenizing.stop = listener_.stop;
    of.counted = [this](const DocumentCounts& counts) {
      if (!listener_.note) return;
      const auto left_out = [](std::uint64_t count, const char* what) {
        return fmt::format("note: {} {}{} left out", count, what, count == 1 ? " is" : "s are");
      };
      const std::string& first = counts.source.first_malformed;
      if (counts.source.malformed > 0)
        listener_.note(left_out(counts.source.malformed, "malformed record") +
                       (first.empty() ? "" : ", the first: " + first));
      if (counts.untrained > 0)
        listener_.note(left_out(counts.untrained, "document") + ": nothing of them is trained on");
    };
    of.tokenizing.progress = [this](const TokenizeProgress& progress) {
      say([&] { return tokenizing_text(progress, begin_); });
    };
    of.tokenizing.waiting = [this] {
      if (listener_.doing) listener_.doing("waiting: another program tokenizes the same data");
    };
    return of;
  }

 private:
  static std::uint64_t percent(std::uint64_t done, std::uint64_t all) {
    return all == 0 ? 100 : std::min<std::uint64_t>(100, done * 100 / all);
  }
  template <class Text>
  void say(const Text& text) {
    const auto now = std::chrono::steady_clock::now();
    if (!listener_.doing || now - last_ < std::chrono::milliseconds(200)) return;
    last_ = now;
    listener_.doing(text());
  }

  const DataListener& listener_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now(), last_;
};

}  // namespace

std::string tokenizing_text(const TokenizeProgress& progress,
                            std::chrono::steady_clock::time_point begin) {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const auto done = static_cast<double>(progress.bytes - progress.kept_bytes);
  const auto left = static_cast<double>(progress.all_bytes - progress.bytes);
  std::string text =
      fmt::format("tokenizing: {} of {}", format_bytes(static_cast<double>(progress.bytes)),
                  format_bytes(static_cast<double>(progress.all_bytes)));
  if (done == 0 || seconds <= 0) return text;
  return text + fmt::format(", {}/s, {} left", format_bytes(done / seconds),
                            format_seconds(left * seconds / done));
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& tokenizer,
                                                const fs::path& model_folder) {
  if (tokenizer == "bytes") return make_byte_tokenizer();
  if (tokenizer != "auto") return read_tokenizer(tokenizer);
  std::error_code error;
  for (const char* name : {"tokenizer.json", "vocab.json", "encoder.json", "tokenizer.model"})
    if (!model_folder.empty() && fs::exists(model_folder / name, error))
      return read_tokenizer(model_folder);
  return {};
}

DocumentSettings document_settings(const DataSettings& settings, const fs::path& model_folder) {
  DocumentSettings documents;
  documents.assistant_only = settings.train_on == "assistant";
  documents.parse_special = settings.parse_special;
  if (!settings.template_date.empty()) documents.template_date = settings.template_date;
  if (settings.chat_template != "auto") {
    documents.chat_template = settings.chat_template;
    return documents;
  }
  if (!model_folder.empty() && has_chat_template(model_folder))
    documents.chat_template = model_folder.string();
  return documents;
}

std::vector<DataSource> open_sources(const std::vector<std::string>& texts,
                                     const DataSettings& settings) {
  const std::optional<TokenFormat> raw = raw_format(settings.data_format);
  std::vector<DataSource> sources;
  for (const std::string& text : texts) {
    for (SourceSettings one : parse_sources(text)) {
      one.binary = one.binary || settings.binary_data;
      one.skip_malformed = one.skip_malformed || settings.skip_malformed;
      DataSource source;
      const bool tokens = raw || std::any_of(one.paths.begin(), one.paths.end(), holds_tokens);
      if (tokens && one.paths.size() > 1)
        throw InputError("tokens and other files in one source",
                         "name each folder or file of tokens as a source of its own");
      if (tokens) {
        source.corpus =
            std::make_shared<const TokenCorpus>(TokenCorpus::open(one.paths.front(), raw));
      } else {
        if (one.paths.front().extension() == ".bin" && !one.binary)
          throw InputError(one.paths.front().string() + " has no header that says what it holds",
                           "where it holds bare tokens, as nanoGPT writes them: " +
                               Setting{"data_format", "uint16"} + " or " +
                               Setting{"data_format", "uint32"});
        if (settings.data_format != "auto") one.format = parse_source_format(settings.data_format);
        source.source.emplace(one, TokenizeSettings::part_bytes);
      }
      source.settings = std::move(one);
      sources.push_back(std::move(source));
    }
  }
  return sources;
}

bool tokenize_sources(std::vector<DataSource>& sources, const Tokenizer* tokenizer,
                      const DocumentSettings& documents, const DataListener& listener) {
  const int threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u));
  for (DataSource& source : sources) {
    if (!source.corpus) {
      if (listener.note)
        for (const std::string& note :
             DocumentReader(*source.source, *tokenizer, documents).notes())
          listener.note("note: " + note);
      Told told(listener);
      auto corpus = TokenCache(token_cache_folder())
                        .tokens(*source.source, *tokenizer, documents, threads, told.listener());
      if (!corpus) return false;
      source.corpus = std::make_shared<const TokenCorpus>(std::move(*corpus));
      continue;
    }
    const TokenCorpus& corpus = *source.corpus;
    if (tokenizer != nullptr && corpus.tokenizer() != 0 && corpus.tokenizer() != tokenizer->hash())
      throw InputError(source.settings.paths.front().string() +
                           " was tokenized by another tokenizer than " + tokenizer->describe(),
                       "tokenize the text again, or name that one: " + Setting{"tokenizer", "DIR"});
    if (listener.doing) listener.doing("checking the tokens");
    corpus.verify();
  }
  return true;
}

PackSettings pack_settings(const DataSettings& settings, const std::vector<DataSource>& sources,
                           std::int64_t sequence, std::uint64_t seed) {
  PackSettings pack;
  pack.sequence = sequence;
  pack.seed = seed;
  const std::string& rule = settings.long_documents;
  pack.too_long = rule == "split"  ? TooLong::split
                  : rule == "cut"  ? TooLong::cut
                  : rule == "drop" ? TooLong::drop
                                   : TooLong::automatic;
  const bool records = std::any_of(sources.begin(), sources.end(), [](const DataSource& source) {
    return source.corpus->records() || !source.corpus->all_trained();
  });
  if (settings.pack == "stream" || (settings.pack == "auto" && !records))
    pack.packing = Packing::stream;
  else
    pack.packing = settings.pack == "off" ? Packing::padded : Packing::packed;
  std::error_code error;
  if (const auto cache = user_cache_folder(); cache && fs::is_directory(*cache / "tokens", error))
    pack.scratch = *cache / "tokens";
  return pack;
}

fs::path token_cache_folder() {
  if (const auto folder = user_cache_folder()) return *folder / "tokens";
  throw InputError("there is no place to keep tokens: neither XDG_CACHE_HOME nor HOME is set",
                   "set XDG_CACHE_HOME to a folder");
}

std::string absolute_source(const std::string& text) {
  std::error_code error;
  std::string path = text, weight;
  if (const std::size_t sign = text.rfind('=');
      sign != std::string::npos && !fs::exists(text, error)) {
    path = text.substr(0, sign);
    weight = text.substr(sign);
  }
  const fs::path canonical = fs::canonical(path, error);
  return (error ? path : canonical.string()) + weight;
}

}  // namespace spillway
