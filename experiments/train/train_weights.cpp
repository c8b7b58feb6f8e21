#include "experiments/train/train_weights.hpp"

#include "base/errors.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model_folder.hpp"

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
  if (model.has_adapters()) {
    write_adapter_files(weights.folder, to, model, base);
  } else if (has_hugging_face_architecture(model)) {
    write_model_files(weights.folder, to, model, ElementType::f32);
  }
  const std::string& tokenizer = settings.data.tokenizer;
  if (tokenizer != "auto" && tokenizer != "bytes") write_tokenizer_files(tokenizer, to);
}

}  // namespace spillway
