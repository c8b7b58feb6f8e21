// What a training is fed, from what was asked for: text as bytes, text and chats by a tokenizer, or
// files of tokens.
//
// Text that a tokenizer is needed for is tokenized once and kept in the user's cache
// (text/tokens/token_cache.hpp). Everything is settled before the first step.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "exec/data/dataset.hpp"
#include "exec/data/packed_batches.hpp"
#include "text/tokens/token_cache.hpp"

namespace spillway {

// As the settings of these names say it (docs/data.md).
struct DataSettings {
  std::vector<std::string> data;     // PATH or PATH=WEIGHT
  std::string data_format = "auto";  // auto | text | jsonl | json | uint16 | uint32
  bool binary_data = false;          // files that are no text are data, too
  bool skip_malformed = false;       // records that are malformed are left out, not refused
  std::string tokenizer = "auto";    // auto | bytes | a file or folder
  std::string chat_template = "auto";
  std::string template_date;            // for templates that write a date; empty: their default
  bool parse_special = false;           // names of special tokens in the data are these tokens
  std::string train_on = "assistant";   // assistant | all
  std::string pack = "auto";            // auto | on | off | stream
  std::string long_documents = "auto";  // auto | split | cut | drop
  std::string validation;               // "1%", a number of documents, or files; empty: none
  std::string data_hash;                // that it must have (TrainingData::hash()); empty: any
};

// Of a request where no model is named.
inline constexpr std::int64_t any_vocabulary = std::int64_t{1} << 31;

struct DataRequest {
  DataSettings settings;
  std::filesystem::path model_folder;  // that may have a tokenizer; empty: none
  bool learned = false;                // the model begins with weights that were trained before
  std::int64_t vocabulary = 0, sequence = 0, sequences_per_step = 1;
  std::uint64_t seed = 1;
};

struct DataListener {
  std::function<void(const std::string&)> doing;  // what may take long
  std::function<bool()> stop;                     // asked while it does
  std::function<void(const Message&)> note;
};

// What was taken, for people and for the start event.
struct DataSummary {
  std::uint64_t files = 0, bytes = 0;
  std::vector<std::filesystem::path> first_files;
  SkippedFiles skipped;
  std::string tokenizer = "bytes";
  std::string packing = "random pieces of the text";
  std::uint64_t tokens = 0, documents = 0, trained_tokens = 0;  // 0 documents: not known
  double fill_rate = 1;
  PackingCounts counts;
};

struct TrainingData {
  std::shared_ptr<const Batches> batches;
  std::shared_ptr<const Batches> validation;  // null: nothing is held out
  std::int64_t validation_batches = 0;        // with as many sequences as a step
  double steps_of_epoch = 0;
  DataSummary summary;
  // The model's folder, where tokenizer or template are from it; else empty.
  std::filesystem::path tokenizer_from, template_from;
  // The rules beside the tokens themselves, for the record of a training; empty: random pieces.
  std::string rules;

  // Of what is trained on and, after a dash, of what is held out: of all that decides them but the
  // seed, in hexadecimal digits.
  std::string hash() const;
};

// Throws InputError; nothing where it was asked to stop.
std::optional<TrainingData> open_training_data(const DataRequest& request,
                                               const DataListener& listener);

// Throws InputError where that is not the hash that was asked for; empty: any.
void require_hash(const TrainingData& data, const std::string& asked);

// Parts of it that other commands use, too.
struct DataSource {
  SourceSettings settings;
  std::optional<Source> source;               // of text
  std::shared_ptr<const TokenCorpus> corpus;  // of tokens; of text once it is tokenized
};
// "bytes" and "auto" as the setting of this name has them; null: none is known, which bytes stand
// in for.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& tokenizer,
                                                const std::filesystem::path& model_folder);
DocumentSettings document_settings(const DataSettings& settings,
                                   const std::filesystem::path& model_folder);
// Finds files, and opens those that are tokens already.
std::vector<DataSource> open_sources(const std::vector<std::string>& texts,
                                     const DataSettings& settings);
// Makes the tokens of those that have none; `tokenizer` is null where all are tokens already and
// nobody knows whose. False where it was asked to stop.
bool tokenize_sources(std::vector<DataSource>& sources, const Tokenizer* tokenizer,
                      const DocumentSettings& documents, const DataListener& listener);
PackSettings pack_settings(const DataSettings& settings, const std::vector<DataSource>& sources,
                           std::int64_t sequence, std::uint64_t seed);

// "tokenizing: 35 MB of 1.2 GB, 9.8 MB/s, 2.0 min left".
std::string tokenizing_text(const TokenizeProgress& progress,
                            std::chrono::steady_clock::time_point begin);

// Below the user's folder for caches. Throws InputError where there is none.
std::filesystem::path token_cache_folder();

// A text of --data with an absolute path in it, as a run keeps it.
std::string absolute_source(const std::string& text);

}  // namespace spillway
