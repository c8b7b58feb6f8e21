#include "experiments/generate/speaker.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/run/available_memory.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/run_lock.hpp"
#include "experiments/train/training_data.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_built_in(const std::string& name) {
  const std::vector<std::string> all = built_in_templates();
  return std::find(all.begin(), all.end(), name) != all.end();
}

std::uint64_t trained_bytes(const ModelSpec& model) {
  std::uint64_t elements = 0;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit)
    elements += static_cast<std::uint64_t>(trained_elements(model, unit));
  return elements * sizeof(float);
}

// What is trained of the model from memory, the rest from `values`.
StateValues with_trained_in_memory(const ModelSpec& model, const StateValues& values) {
  auto trained = std::make_shared<std::vector<std::vector<float>>>();
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    trained->emplace_back(static_cast<std::size_t>(trained_elements(model, unit)));
    std::vector<float>& here = trained->back();
    if (!here.empty()) values(unit, 0, 0, here.size(), here.data());
  }
  return with_frozen(
      model,
      [trained](std::int64_t unit, int, std::uint64_t first, std::uint64_t count, float* to) {
        const float* const from = (*trained)[static_cast<std::size_t>(unit)].data() + first;
        std::copy(from, from + count, to);
      },
      values);
}

}  // namespace

Speaker::Speaker(const SpeakerRequest& request) : request_(request) {
  SpokenModel spoken = open_spoken_model(request);
  model_ = std::move(spoken.model);
  values_ = std::move(spoken.values);
  text_ = std::move(spoken.text);
  folder_ = std::move(spoken.folder);
  run_ = std::move(spoken.run);
  run_tokenizer_ = std::move(spoken.run_tokenizer);
  run_template_ = std::move(spoken.run_template);
  in_store_ = std::move(spoken.in_store);
  open_text();
}

Speaker::Speaker(const SpeakerRequest& request, const ModelSpec& model, const fs::path& folder)
    : request_(request), model_(model), folder_(folder) {
  open_text();
}

Speaker::~Speaker() = default;

void Speaker::open_text() {
  const bool told_bytes = request_.tokenizer == "auto" && run_tokenizer_ == "bytes";
  tokenizer_ = open_tokenizer(told_bytes ? "bytes" : request_.tokenizer, folder_);
  if (!tokenizer_ && !run_.empty()) tokenizer_ = open_tokenizer("auto", run_);
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
  settings.parse_special = request_.parse_special;
  settings.name = request_.chat_template.empty() ? "auto" : request_.chat_template;
  // The run's folder has the template that it was told, too.
  if (settings.name == "auto" && (is_built_in(run_template_) || exists(run_template_)))
    settings.name = run_template_;
  for (const fs::path& folder : {run_, folder_})
    if (settings.name == "auto" && !folder.empty() && has_chat_template(folder))
      settings.name = folder.string();
  if (settings.name == "auto") settings.name.clear();
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
  tokenizer_->encode(text, request_.parse_special ? SpecialTokens::parsed : SpecialTokens::as_text,
                     tokens);
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
  return stop_tokens(*tokenizer_, *names_, chat ? template_.get() : nullptr);
}

// What of the weights in a run's store is read into so much memory, so that the store is needed no
// more; returns the bytes that it takes beside layers. `others`: what else memory is given for.
std::uint64_t Speaker::settle_store(std::uint64_t memory, std::uint64_t others) {
  if (!in_store_ || memory >= UnitWeights::all_bytes(model_)) return 0;
  const std::uint64_t trained = trained_bytes(model_);
  if (model_.has_frozen() && memory >= UnitWeights::least_bytes(model_) + trained) {
    values_ = with_trained_in_memory(model_, values_);
    let_go_of_store();
    return trained;
  }
  if (!request_.talks) return 0;
  const std::string export_it =
      "export a step and talk with what is written: spillway export " + run_.string();
  if (run_at_work(Directory(run_)) != AtWork::no) {
    const std::uint64_t all = UnitWeights::all_bytes(model_);
    throw FitError(
        fmt::format("the run in {} is at work, and its model takes {}, more than the {} of memory "
                    "that there is for weights: the run would have to wait for the end of the chat",
                    run_.string(), format_bytes(static_cast<double>(all)),
                    format_bytes(static_cast<double>(memory))),
        "give more memory: " +
            Setting{"host_memory", fmt::format("{}kB", (others + all + 999) / 1000)} +
            Message(", or " + export_it));
  }
  if (request_.note)
    request_.note("weights are read from the store of " + run_.string() +
                  ": a training that goes on with it waits for the end of this chat");
  return 0;
}

// From here on the run may overwrite its state.
void Speaker::let_go_of_store() {
  if (!in_store_) return;
  in_store_->state->close();
  in_store_.reset();
}

Decoder& Speaker::open(std::int64_t sequences, std::int64_t positions) {
  positions = std::min(positions, model_.positions);
  const std::uint64_t caches = Decoder::memory_bytes(model_, sequences, positions);
  std::uint64_t memory = request_.memory;
  if (memory == 0) memory = available_memory() / 10 * 9;
  decoder_.reset();
  weights_.reset();
  if (const std::uint64_t least = caches + UnitWeights::least_bytes(model_); memory < least)
    throw FitError(
        fmt::format("the embedding, the head, two layers, and keys and values of {} tokens for {} "
                    "prompt{} of model {} take {}, more than the {} of memory that there is",
                    positions, sequences, sequences == 1 ? "" : "s", model_.name,
                    format_bytes(static_cast<double>(least)),
                    format_bytes(static_cast<double>(memory))),
        "give more memory: " + Setting{"host_memory", fmt::format("{}kB", (least + 999) / 1000)} +
            ", or fewer prompts or tokens at a time");
  memory -= caches;
  memory -= settle_store(memory, caches);
  weights_ = std::make_unique<UnitWeights>(model_, values_, memory, reads_ahead_);
  if (layers_in_memory() == model_.layers) let_go_of_store();
  decoder_ = std::make_unique<Decoder>(model_, *weights_, sequences, positions, request_.threads);
  return *decoder_;
}

Decoder& Speaker::open(std::int64_t sequences, std::int64_t positions, const StateValues& values,
                       std::uint64_t memory) {
  values_ = values;
  reads_ahead_ = false;  // a training's values are read on one thread
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
