// The weights that a training writes: at its end, and the best.
#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/new_folder.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/run/run_export.hpp"
#include "experiments/train/train_checks.hpp"
#include "experiments/train/training_job.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr const char *new_best = "best-new", *old_best = "best-old";

}  // namespace

const char* TrainingJob::weights_file() const {
  return plan_.problem.model.has_adapters() ? adapter_weights_file : RunFolder::weights;
}

std::filesystem::path TrainingJob::weights_path() const {
  return plan_.problem.model.has_adapters() ? folder_->file(weights_file())
                                            : SafetensorsFolder::file_in(folder_->path());
}

TrainingOutlook TrainingJob::look_ahead(bool here) {
  TrainingOutlook outlook = outlook_of(options_, plan_, here);
  const fs::path run = request_.run.empty() ? fs::path("runs/NEW") : fs::path(request_.run);
  const ModelSpec& model = plan_.problem.model;
  if (here && leads()) require_room(model, nearest_existing(run), settings_);
  const auto parameters = static_cast<std::uint64_t>(
      model.has_adapters() ? model.trained_parameters() : model.parameters());
  const std::uint64_t each = parameters * sizeof(float);
  const auto add = [&](const fs::path& path, std::uint64_t copies, const std::string& what) {
    if (copies > 0) outlook.outputs.push_back({run / path, copies * each, what});
  };
  add(weights_file(), settings_.no_export ? 0 : 1, ", the weights in fp32");
  const auto kept = static_cast<std::uint64_t>(
      std::clamp<std::int64_t>(settings_.keep, 0, settings_.steps / settings_.keep_every));
  add("checkpoints", kept, fmt::format(", of {} steps", kept));
  add(best_folder, settings_.keep_best ? 1 : 0, ", the weights of the best evaluation");
  return outlook;
}

void TrainingJob::remove_weights() {
  if (!plan_.problem.model.has_adapters()) return spillway::remove_weights(folder_->directory());
  const FilePlace weights = folder_->place(weights_file());
  if (!folder_->directory().status(weights_file())) return;
  require_new_file(weights, &only_an_export());
  if (!folder_->directory().remove(weights_file()))
    throw MachineError("cannot remove " + weights.path.string(), "remove it by hand");
}

// Config and tokenizer of the run, beside weights.
void TrainingJob::write_model_files_to(const Directory& to) const {
  const auto& origin = training_->frozen_origin();
  write_files_of_run(weights_, settings_, plan_.problem.model, origin ? origin->folder : fs::path(),
                     to);
}

fs::path TrainingJob::best_path() const { return folder_->path() / best_folder; }

// Where the program ended between the two names, the newer one is taken now.
void TrainingJob::take_best() {
  const Directory& run = folder_->directory();
  std::error_code ignored;
  fs::remove_all(run.path_of(old_best), ignored);
  if (!run.status(new_best)) return;
  if (run.status(best_folder)) run.rename(best_folder, old_best);
  run.rename(new_best, best_folder);
  run.sync();
  fs::remove_all(run.path_of(old_best), ignored);
}

// The weights as they are now, as a folder that transformers loads, in the place of the one before.
void TrainingJob::write_best() {
  if (!leads()) return training_->help_export();
  std::error_code ignored;
  fs::remove_all(folder_->directory().path_of(new_best), ignored);
  NewFolder folder(folder_->path() / new_best);
  // What goes with weights is in the run's folder, also where the model's is gone.
  const ModelSpec& model = plan_.problem.model;
  const auto& origin = training_->frozen_origin();
  if (model.has_adapters()) {
    write_adapter_files(folder_->path(), folder.directory(), model,
                        origin ? origin->folder : fs::path());
  } else if (has_hugging_face_architecture(model)) {
    write_model_files(folder_->path(), folder.directory(), model, ElementType::f32);
  }
  training_->export_model(folder.directory());
  folder.commit();
  take_best();
}

void TrainingJob::export_weights() {
  if (settings_.no_export) return;
  if (leads())
    training_->export_model(folder_->directory());
  else
    training_->help_export();
}

}  // namespace spillway
