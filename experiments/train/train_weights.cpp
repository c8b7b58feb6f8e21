#include "experiments/train/train_weights.hpp"

#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "policies/model/model_folder.hpp"

namespace spillway {

InitialWeights open_initial_weights(const TrainSettings& settings,
                                    const std::optional<ResumePoint>& point, const ModelSpec& model,
                                    const RingFactory& make_ring) {
  InitialWeights initial;
  bool from_seed = settings.random_weights;
  if (point) {
    // Before the first step a commit has no state: it begins again as it did.
    if (point->record.version > 0) return initial;
    const TrainingRecord record = TrainingRecord::parse(point->record.identity.training);
    from_seed = record.initial_folder.empty();
    if (!from_seed) initial.folder = record.initial_folder;
  } else if (const auto found = find_model_folder(settings.problem.model)) {
    initial.folder = found->path;
  }
  // What cannot go with the run is refused before anything is reserved.
  if (initial.folder) model_files_of(*initial.folder);
  if (initial.folder && !from_seed)
    initial.values = std::make_shared<Checkpoint>(*initial.folder, model, make_ring);
  return initial;
}

}  // namespace spillway
