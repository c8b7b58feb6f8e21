#include "experiments/train/training_data.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "text/tokens/hold_out.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_files_named = 4;
constexpr std::int64_t most_byte_vocabulary = 1024;  // of models that may well be made for bytes

bool is_existing(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Whether text is trained on as it always was: bytes from random places on. What asks for documents
// in any way, or is no running text, is packed.
bool is_running_bytes(const DataSettings& s, const Tokenizer* tokenizer) {
  if (tokenizer != nullptr && tokenizer->hash() != make_byte_tokenizer()->hash()) return false;
  if (s.pack != "auto" || s.chat_template != "auto") return false;
  if (s.data_format != "auto" && s.data_format != "text") return false;
  return std::all_of(s.data.begin(), s.data.end(), [&](const std::string& text) {
    const fs::path path(text);
    for (const char* other : {".jsonl", ".ndjson", ".json", ".gz", ".toml", ".tokens", ".bin"})
      if (path.extension() == other && !(s.binary_data && path.extension() != ".toml"))
        return s.data_format == "text" && std::string(other) != ".toml";
    if (is_existing((path / token_file_name(0)).string())) return false;
    return is_existing(text) || text.find('=') == std::string::npos;
  });
}

// The files that `validation` names; none: it says how much to hold out.
std::vector<std::string> validation_files(const std::string& validation) {
  if (validation.empty() || !is_existing(validation)) return {};
  return {validation};
}

TrainingData open_bytes(const DataRequest& request) {
  const DataSettings& s = request.settings;
  const auto open = [&](const std::vector<std::string>& texts) {
    return std::make_shared<Dataset>(std::vector<fs::path>(texts.begin(), texts.end()),
                                     request.seed, Dataset::default_memory_limit, s.binary_data);
  };
  const auto dataset = open(s.data);
  TrainingData data;
  data.batches = dataset;
  if (const auto files = validation_files(s.validation); !files.empty()) {
    const auto held = std::make_shared<HeldOutBytes>(open(files), 0, request.sequences_per_step);
    data.validation = held;
    data.validation_batches = held->batches(request.sequence);
  } else if (!s.validation.empty()) {
    const HoldOut hold_out = parse_hold_out(s.validation);
    if (hold_out.documents > 0)
      throw InputError("running text has no documents to hold out",
                       "hold out a part of it: " + Setting{"validation", "1%"});
    dataset->hold_out(hold_out.fraction);
    const auto held = std::make_shared<HeldOutBytes>(dataset, dataset->trained_bytes(),
                                                     request.sequences_per_step);
    data.validation = held;
    data.validation_batches = held->batches(request.sequence);
  }
  data.batches->require(request.sequence, request.vocabulary);
  if (data.validation) data.validation->require(request.sequence, request.vocabulary);
  data.steps_of_epoch = static_cast<double>(dataset->trained_bytes()) /
                        static_cast<double>(request.sequence * request.sequences_per_step);
  DataSummary& summary = data.summary;
  summary.files = dataset->files().size();
  summary.bytes = summary.tokens = dataset->size();
  for (const DatasetFile& file : dataset->files())
    if (summary.first_files.size() < most_files_named) summary.first_files.push_back(file.path);
  summary.skipped = dataset->skipped();
  return data;
}

// Bytes are no language that a model with words has learned.
void refuse_bytes(const DataRequest& request, const DataListener& listener) {
  if (request.settings.tokenizer == "bytes" || request.vocabulary <= most_byte_vocabulary ||
      request.vocabulary == any_vocabulary)
    return;
  const Message what = fmt::format(
      "the model has a vocabulary of {}, and no tokenizer is known: text as bytes uses "
      "256 of them, and not as the model's makers do",
      request.vocabulary);
  const Message hint = "name its tokenizer: " + Setting{"tokenizer", "DIR"} + "; or say that " +
                       Setting{"tokenizer", "bytes"} + " is meant";
  if (request.learned) throw InputError(what, hint);
  if (listener.note) listener.note("note: " + what + "; " + hint);
}

const char* name_of(Packing packing) {
  switch (packing) {
    case Packing::packed:
      return "packed";
    case Packing::padded:
      return "padded";
    case Packing::stream:
      return "stream";
  }
  return "";
}

std::shared_ptr<PackedBatches> pack(const std::vector<DataSource>& sources,
                                    const PackSettings& settings, const HoldOut& hold_out,
                                    Side side, const PackedBatches::Order& order,
                                    DataSummary& summary) {
  std::vector<PackedBatches::Source> packed;
  for (const DataSource& source : sources) {
    auto sequences =
        std::make_shared<const PackedSequences>(*source.corpus, settings, hold_out, side);
    summary.counts.add(sequences->counts());
    const double weight = side == Side::training ? source.settings.weight : 1;
    packed.push_back({source.corpus, std::move(sequences), weight});
  }
  summary.fill_rate =
      static_cast<double>(summary.counts.inputs) /
      (static_cast<double>(summary.counts.sequences) * static_cast<double>(settings.sequence));
  return std::make_shared<PackedBatches>(std::move(packed), settings, order, hold_out);
}

void summarize(const std::vector<DataSource>& sources, DataSummary& summary) {
  for (const DataSource& source : sources) {
    summary.tokens += source.corpus->tokens();
    summary.trained_tokens += source.corpus->trained();
    if (source.corpus->has_documents()) summary.documents += source.corpus->documents();
    std::vector<fs::path> files;
    if (source.source) {
      summary.bytes += source.source->bytes();
      for (const Source::File& file : source.source->files()) files.push_back(file.file.path());
      const SkippedFiles& skipped = source.source->skipped();
      for (const SkippedFiles::One& one : skipped.first) summary.skipped.add(one.path, one.reason);
      summary.skipped.count += skipped.count - skipped.first.size();
    } else {
      for (const TokenFile& file : source.corpus->files()) {
        files.push_back(file.path());
        std::error_code error;
        summary.bytes += fs::file_size(file.path(), error);
      }
    }
    summary.files += files.size();
    for (const fs::path& file : files)
      if (summary.first_files.size() < most_files_named) summary.first_files.push_back(file);
  }
}

bool all_are_tokens(const std::vector<DataSource>& sources) {
  return std::all_of(sources.begin(), sources.end(),
                     [](const DataSource& source) { return source.corpus != nullptr; });
}

std::optional<TrainingData> open_packed(const DataRequest& request,
                                        std::shared_ptr<const Tokenizer> tokenizer,
                                        const DataListener& listener) {
  const DataSettings& s = request.settings;
  const DocumentSettings documents = document_settings(s, request.model_folder);
  std::vector<DataSource> sources = open_sources(s.data, s), others;
  const auto files = validation_files(s.validation);
  const HoldOut hold_out =
      s.validation.empty() || !files.empty() ? HoldOut{} : parse_hold_out(s.validation);
  if (!files.empty()) others = open_sources(files, s);
  if (!tokenizer && !(all_are_tokens(sources) && all_are_tokens(others))) {
    refuse_bytes(request, listener);
    tokenizer = make_byte_tokenizer();
  }
  if (!tokenize_sources(sources, tokenizer.get(), documents, listener) ||
      !tokenize_sources(others, tokenizer.get(), documents, listener))
    return {};
  const PackSettings settings = pack_settings(s, sources, request.sequence, request.seed);
  if (listener.doing) listener.doing("packing the documents");
  TrainingData data;
  const auto batches = pack(sources, settings, hold_out, Side::training,
                            {request.seed, request.sequences_per_step, true}, data.summary);
  const PackedBatches::Order in_order{request.seed, request.sequences_per_step, false};
  DataSummary ignored;
  std::shared_ptr<PackedBatches> validation;
  if (!files.empty()) {
    validation = pack(others, settings, {}, Side::training, in_order, ignored);
  } else if (hold_out.any()) {
    validation = pack(sources, settings, hold_out, Side::held_out, in_order, ignored);
  }
  batches->require(request.sequence, request.vocabulary);
  if (validation) {
    validation->require(request.sequence, request.vocabulary);
    data.validation_batches = validation->batches();
    data.validation = validation;
  }
  data.batches = batches;
  data.steps_of_epoch = static_cast<double>(batches->epoch_sequences()) /
                        static_cast<double>(request.sequences_per_step);
  summarize(sources, data.summary);
  data.summary.tokenizer = tokenizer ? tokenizer->describe() : "not known";
  data.summary.packing = name_of(settings.packing);
  if (tokenizer && s.tokenizer == "auto" && tokenizer->hash() != make_byte_tokenizer()->hash())
    data.tokenizer_from = request.model_folder;
  if (s.chat_template == "auto") data.template_from = documents.chat_template;
  data.rules =
      fmt::format("tokenizer {:016x}, {}, long documents {}, validation {}",
                  tokenizer ? tokenizer->hash() : 0, name_of(settings.packing), s.long_documents,
                  s.validation.empty() || !files.empty() ? "none" : s.validation);
  return data;
}

}  // namespace

std::string TrainingData::hash() const {
  const std::string trained = fmt::format("{:016x}", batches->hash());
  return validation ? fmt::format("{}-{:016x}", trained, validation->hash()) : trained;
}

void require_hash(const TrainingData& data, const std::string& asked) {
  if (asked.empty()) return;
  const std::string hash = data.hash();
  if (hash == asked) return;
  const auto trained = [](const std::string& text) { return text.substr(0, text.find('-')); };
  const bool other_validation = trained(hash) == trained(asked);
  throw InputError(
      Setting{"data_hash", asked} +
          Message(fmt::format(": {} has other contents than then, or is split, tokenized or packed "
                              "otherwise; its hash is {}",
                              other_validation ? "what is held out" : "the data", hash)),
      "put back what it was; or leave " + Setting{"data_hash"} +
          " out, for a training that is not the same again");
}

std::optional<TrainingData> open_training_data(const DataRequest& request,
                                               const DataListener& listener) {
  auto tokenizer = open_tokenizer(request.settings.tokenizer, request.model_folder);
  if (tokenizer && tokenizer->size() > request.vocabulary &&
      tokenizer->hash() != make_byte_tokenizer()->hash() && listener.note)
    listener.note(
        Message(fmt::format(
            "note: the tokenizer has {0} tokens, the model {1}: text that needs the others "
            "is refused; for a model that begins here: ",
            tokenizer->size(), request.vocabulary)) +
        Setting{"set", fmt::format("model.vocabulary={}", tokenizer->size())});
  if (is_running_bytes(request.settings, tokenizer.get())) {
    refuse_bytes(request, listener);
    return open_bytes(request);
  }
  return open_packed(request, std::move(tokenizer), listener);
}

}  // namespace spillway
