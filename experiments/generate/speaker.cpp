#include "experiments/generate/speaker.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "base/units.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/run/available_memory.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/saved_run.hpp"
#include "experiments/train/training_data.hpp"
#include "policies/model/model_folder.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t longest_config = std::uint64_t{1} << 20;

bool has_file(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::is_regular_file(folder / name, error);
}

std::string option_of(const SavedRun& run, const std::string& key) {
  const auto found = run.options.find(key);
  return found == run.options.end() || found->second.empty() ? "" : found->second.back();
}

}  // namespace

Speaker::Speaker(const SpeakerRequest& request) : request_(request) {
  const fs::path path = request.model;
  if (has_file(path, saved_run_file)) {
    open_run(path);
  } else if (has_file(path, adapter_config_file) && !has_file(path, "config.json")) {
    if (!request.adapter.empty())
      throw InputError(Setting{"model", request.model} + " has adapters itself",
                       "name the model beside " + Setting{"adapter", request.adapter});
    std::string base;
    const fs::path config = path / adapter_config_file;
    base = adapter_base(read_file(config, longest_config), config.string());
    open_folder(base, request.model);
  } else {
    open_folder(request.model, request.adapter);
  }
  open_text();
}

Speaker::Speaker(const SpeakerRequest& request, const ModelSpec& model, const fs::path& folder)
    : request_(request), model_(model), folder_(folder) {
  open_text();
}

Speaker::~Speaker() = default;

void Speaker::open_run(const fs::path& run) {
  const Directory directory(run.string());
  const SavedRun saved = SavedRun::load(directory);
  if (!request_.adapter.empty())
    throw InputError(
        Setting{"adapter"} + ": the run in " + run.string() + " has weights of its own",
        "export the run first: spillway export " + run.string());
  model_ = load_model((run / RunFolder::model).string());
  const bool adapters = model_.has_adapters();
  if (adapters ? !has_file(run, adapter_weights_file) : !SafetensorsFolder::has_weights(run)) {
    throw InputError(
        fmt::format("the run in {} has not written its weights yet", run.string()),
        "export a committed step, and name that folder: spillway export " + run.string());
  }
  const auto own = std::make_shared<Checkpoint>(
      run, model_, request_.make_ring, adapters ? CheckpointPart::adapter : CheckpointPart::model);
  text_ = own->describe();
  std::uint64_t seed = 0;
  std::shared_ptr<Checkpoint> base;
  if (adapters) {
    const std::optional<FrozenOrigin> origin = FrozenOrigin::load(directory);
    if (!origin)
      throw InputError(fmt::format("{}: nothing says which model the adapters go with",
                                   (run / FrozenOrigin::file).string()),
                       "name the model, and give the run as " + Setting{"adapter", run.string()});
    seed = origin->seed;
    if (!origin->folder.empty())
      base = std::make_shared<Checkpoint>(origin->folder, model_, request_.make_ring);
    text_ = (base ? base->describe() : std::string("weights drawn from a seed")) +
            ", with adapters of " + run.string();
  }
  values_ = adapters ? starting_state(model_, seed, base, own)
                     : starting_state(model_, seed, own, nullptr);
  folder_ = run;
  run_tokenizer_ = option_of(saved, "tokenizer");
  run_template_ = option_of(saved, "chat_template");
}

void Speaker::open_folder(const std::string& name, const std::string& adapter) {
  std::vector<std::string> tried;
  const std::optional<ModelFolder> folder = find_model_folder(name, &tried);
  if (!folder)
    throw InputError(Setting{"model", name} + ": there is no such folder of a model",
                     tried.empty() ? std::string("name a folder with config.json and weights")
                                   : fmt::format("looked at {}", fmt::join(tried, ", ")));
  model_ = read_model_folder(*folder);
  if (!adapter.empty()) {
    const fs::path config = fs::path(adapter) / adapter_config_file;
    model_ = load_model(
        name, parse_adapter_config(read_file(config, longest_config), config.string(), model_));
  }
  const auto weights = std::make_shared<Checkpoint>(folder->path, model_, request_.make_ring);
  text_ = weights->describe();
  std::shared_ptr<Checkpoint> adapters;
  if (!adapter.empty()) {
    adapters =
        std::make_shared<Checkpoint>(adapter, model_, request_.make_ring, CheckpointPart::adapter);
    text_ += ", with adapters of " + adapter;
  }
  values_ = starting_state(model_, 0, weights, adapters);
  folder_ = folder->path;
}

void Speaker::open_text() {
  tokenizer_ = open_tokenizer(request_.tokenizer, folder_);
  if (!tokenizer_ && !run_tokenizer_.empty()) tokenizer_ = open_tokenizer(run_tokenizer_, folder_);
  if (!tokenizer_) {
    constexpr std::int64_t bytes = 256;
    if (model_.vocabulary > 4 * bytes)
      throw InputError(
          fmt::format("model {} has a vocabulary of {}, and {} no tokenizer", model_.name,
                      model_.vocabulary, folder_.empty() ? "there is" : folder_.string() + " has"),
          "name one: " + Setting{"tokenizer", "DIR"});
    tokenizer_ = make_byte_tokenizer();
  }
  if (tokenizer_->size() > model_.vocabulary)
    throw InputError(fmt::format("the tokenizer has {} tokens, model {} a vocabulary of {}",
                                 tokenizer_->size(), model_.name, model_.vocabulary),
                     "name the model's own: " + Setting{"tokenizer", "DIR"});
  names_ = std::make_unique<SpecialNames>(*tokenizer_);
  encoder_ = std::make_unique<ChatEncoder>(*tokenizer_, *names_);
  TemplateSettings settings;
  settings.name = request_.chat_template != "auto" ? request_.chat_template : run_template_;
  if (settings.name.empty() || settings.name == "auto")
    settings.name = !folder_.empty() && has_chat_template(folder_) ? folder_.string() : "";
  if (!settings.name.empty()) template_ = make_chat_template(settings, *names_);
}

std::string Speaker::describe() const {
  std::string text = fmt::format("{}: {}; {}", model_.name, text_, tokenizer_->describe());
  if (template_) text += "; " + template_->describe();
  return text;
}

std::vector<Token> Speaker::text_tokens(const std::string& text) const {
  std::vector<Token> tokens;
  if (tokenizer_->adds_begin_of_text()) tokens.push_back(*tokenizer_->begin_of_text());
  tokenizer_->encode(text, SpecialTokens::as_text, tokens);
  if (tokens.empty()) throw InputError("a prompt has no token", "give a text to go on from");
  return tokens;
}

std::vector<Token> Speaker::chat_tokens(const ChatRecord& chat) const {
  if (!template_)
    throw InputError(
        "no chat template is known of " + folder_.string(),
        Setting{"chat_template", fmt::format("{}", fmt::join(built_in_templates(), " | "))} +
            ", the one that the model was trained with; or give a text to go on from");
  const RenderedChat rendered = template_->render(std::span(&chat, 1), RenderFor::answer).front();
  if (!rendered.refused.empty()) throw InputError(rendered.refused, rendered.hint);
  return encoder_->encode(rendered).tokens;
}

std::vector<Token> Speaker::stops(bool chat) const {
  std::vector<Token> stops;
  if (const auto end = tokenizer_->end_of_text()) stops.push_back(*end);
  if (!chat || !template_) return stops;
  // What ends the assistant's turn in training.
  const ChatRecord turn{{{"user", "1", {}}, {"assistant", "2", {}}}, {}};
  const RenderedChat rendered = template_->render(std::span(&turn, 1), RenderFor::training).front();
  if (!rendered.refused.empty()) return stops;
  const Document document = encoder_->encode(rendered);
  if (document.trained.empty() || document.trained.back().end == 0) return stops;
  const Token last = document.tokens[document.trained.back().end - 1];
  if (names_->is_special(last)) stops.push_back(last);
  return stops;
}

Decoder& Speaker::open(std::int64_t sequences, std::int64_t positions) {
  positions = std::min(positions, model_.positions);
  const std::uint64_t caches = Decoder::memory_bytes(model_, sequences, positions);
  std::uint64_t memory = request_.memory;
  if (memory == 0) memory = available_memory() / 10 * 9;
  decoder_.reset();
  weights_.reset();
  if (const std::uint64_t least = caches + UnitWeights::least_bytes(model_); memory < least)
    throw InputError(
        fmt::format("the embedding, the head, two layers, and keys and values of {} tokens for {} "
                    "prompt{} of model {} take {}, more than the {} of memory that there is",
                    positions, sequences, sequences == 1 ? "" : "s", model_.name,
                    format_bytes(static_cast<double>(least)),
                    format_bytes(static_cast<double>(memory))),
        "give more memory: " + Setting{"host_memory", fmt::format("{}kB", (least + 999) / 1000)} +
            ", or fewer prompts or tokens at a time");
  weights_ = std::make_unique<UnitWeights>(model_, values_, memory - caches);
  decoder_ = std::make_unique<Decoder>(model_, *weights_, sequences, positions, request_.threads);
  return *decoder_;
}

Decoder& Speaker::open(std::int64_t sequences, std::int64_t positions, const StateValues& values,
                       std::uint64_t memory) {
  values_ = values;
  request_.memory = memory;
  return open(sequences, positions);
}

void Speaker::close() {
  decoder_.reset();
  weights_.reset();
  values_ = {};
}

std::size_t whole_characters(const std::string& text) {
  // A character has at most four bytes, and says in its first how many.
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;
    const std::size_t needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return needed > back ? text.size() - back : text.size();
  }
  return text.size();
}

}  // namespace spillway
