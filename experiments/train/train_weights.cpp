#include "experiments/train/train_weights.hpp"

#include <span>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/train/training_data.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model_folder.hpp"
#include "text/chat/encode_chat.hpp"

namespace spillway {

namespace {

// Where the frozen weights of a run that goes on from a commit are; nothing: drawn from the seed.
std::optional<std::filesystem::path> frozen_folder(const TrainingRecord& record,
                                                   const std::string& frozen_from) {
  if (record.initial_folder.empty()) return std::nullopt;
  if (!frozen_from.empty()) {
    if (const auto found = find_model_folder(frozen_from)) return found->path;
    throw InputError(Setting{"model", frozen_from} + ": there is no such folder",
                     "name the folder where the frozen weights of the run are, or leave it out");
  }
  if (SafetensorsFolder::has_weights(record.initial_folder)) return record.initial_folder;
  throw InputError(
      "the frozen weights of the run are not in " + record.initial_folder.string() + " any more",
      "commits hold what is trained alone: name the folder where they are now: " +
          Setting{"model", "DIR"});
}

// Of a tokenizer that is named: none where it is the model's own, or there is none.
std::optional<TextEnds> text_ends(const DataSettings& data) {
  if (data.tokenizer == "auto" || data.tokenizer == "bytes") return std::nullopt;
  const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(data.tokenizer, {});
  const SpecialNames names(*tokenizer);
  std::unique_ptr<ChatTemplate> chat_template;
  if (data.chat_template != "auto")
    chat_template = make_chat_template({.name = data.chat_template}, names);
  TextEnds ends;
  ends.begin = tokenizer->begin_of_text();
  const std::vector<Token> stops = stop_tokens(*tokenizer, names, chat_template.get());
  ends.ends.assign(stops.begin(), stops.end());
  return ends;
}

}  // namespace

InitialWeights open_initial_weights(const TrainSettings& settings,
                                    const std::optional<ResumePoint>& point, const ModelSpec& model,
                                    const RingFactory& make_ring, const std::string& frozen_from) {
  InitialWeights initial;
  const auto open = [&](const std::filesystem::path& folder, CheckpointPart part) {
    return std::make_shared<Checkpoint>(folder, model, make_ring, part);
  };
  bool from_seed = settings.random_weights;
  if (point) {
    const TrainingRecord record = TrainingRecord::parse(point->record.identity.training);
    // Before the first step a commit has no state: it begins again as it did.
    if (point->record.version > 0) {
      if (!model.has_frozen()) return initial;
      initial.folder = frozen_folder(record, frozen_from);
      if (initial.folder) initial.values = open(*initial.folder, CheckpointPart::model);
      return initial;
    }
    from_seed = record.initial_folder.empty();
    if (!from_seed && model.has_frozen()) initial.folder = frozen_folder(record, frozen_from);
    if (!from_seed && !initial.folder) initial.folder = record.initial_folder;
  } else if (const auto found = find_model_folder(settings.problem.model)) {
    initial.folder = found->path;
  }
  // What cannot go with the run is refused before anything is reserved.
  if (initial.folder) model_files_of(*initial.folder);
  if (initial.folder && !from_seed) initial.values = open(*initial.folder, CheckpointPart::model);
  if (!settings.problem.adapter.empty())
    initial.adapter = open(settings.problem.adapter, CheckpointPart::adapter);
  return initial;
}

void write_files_of_run(const InitialWeights& weights, const TrainSettings& settings,
                        const ModelSpec& model, const std::filesystem::path& base,
                        const Directory& to) {
  const DataSettings& data = settings.data;
  if (model.has_adapters()) {
    write_adapter_files(weights.folder, to, model, base);
  } else if (has_hugging_face_architecture(model)) {
    write_model_files(weights.folder, to, model, ElementType::f32, text_ends(data));
  }
  if (data.tokenizer == "bytes") remove_tokenizer_files(to);
  if (data.tokenizer != "auto" && data.tokenizer != "bytes")
    write_tokenizer_files(data.tokenizer, to);
  if (data.chat_template == "auto") return;
  const std::string text = chat_template_text(data.chat_template);
  to.remove(chat_template_file);
  NewFile file({to, chat_template_file});
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace spillway
