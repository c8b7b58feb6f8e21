#include "experiments/generate/spoken_model.hpp"

#include <fmt/format.h>

#include <vector>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/kept_checkpoints.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/saved_run.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model_folder.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t longest_adapter_config = std::uint64_t{1} << 20;

bool has_file(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::is_regular_file(folder / name, error);
}

std::string option_of(const SavedRun& run, const std::string& key) {
  const auto found = run.options.find(key);
  return found == run.options.end() || found->second.empty() ? "" : found->second.back();
}

// The run that a folder of weights lies in: RUN/best, RUN/checkpoints/step-000500 and the like;
// empty: none.
fs::path run_around(const fs::path& folder) {
  const fs::path parent = folder.parent_path();
  if (has_file(parent, saved_run_file)) return parent;
  const bool is_kept = parent.filename() == KeptCheckpoints::folder_name;
  return is_kept && has_file(parent.parent_path(), saved_run_file) ? parent.parent_path()
                                                                   : fs::path();
}

bool has_weights(const fs::path& folder) {
  return SafetensorsFolder::has_weights(folder) || has_file(folder, adapter_weights_file);
}

void know_run(const fs::path& run, SpokenModel& spoken) {
  const SavedRun saved = SavedRun::load(Directory(run));
  spoken.run = run;
  spoken.run_tokenizer = option_of(saved, "tokenizer");
  spoken.run_template = option_of(saved, "chat_template");
}

SpokenModel of_folder(const SpeakerRequest& request, const std::string& name,
                      const std::string& adapter) {
  std::vector<std::string> tried;
  const std::optional<ModelFolder> folder = find_model_folder(name, &tried);
  if (!folder)
    throw InputError(Setting{"model", name} + ": there is no such folder of a model",
                     tried.empty() ? std::string("name a folder with config.json and weights")
                                   : fmt::format("looked at {}", fmt::join(tried, ", ")));
  SpokenModel spoken;
  spoken.model = read_model_folder(*folder);
  if (!adapter.empty()) {
    const fs::path config = fs::path(adapter) / adapter_config_file;
    spoken.model = load_model(name, parse_adapter_config(read_file(config, longest_adapter_config),
                                                         config.string(), spoken.model));
  }
  const auto weights = std::make_shared<Checkpoint>(folder->path, spoken.model, request.make_ring);
  spoken.text = weights->describe();
  std::shared_ptr<Checkpoint> adapters;
  if (!adapter.empty()) {
    adapters = std::make_shared<Checkpoint>(adapter, spoken.model, request.make_ring,
                                            CheckpointPart::adapter);
    spoken.text += ", with adapters of " + adapter;
  }
  spoken.values = starting_state(spoken.model, 0, weights, adapters);
  spoken.folder = folder->path;
  return spoken;
}

// Weights that a run has written into `folder`, its own or one in it.
SpokenModel of_written(const SpeakerRequest& request, const fs::path& run, const fs::path& folder,
                       const std::string& which) {
  SpokenModel spoken;
  spoken.model = load_model((run / RunFolder::model).string());
  const bool adapters = spoken.model.has_adapters();
  const auto own =
      std::make_shared<Checkpoint>(folder, spoken.model, request.make_ring,
                                   adapters ? CheckpointPart::adapter : CheckpointPart::model);
  spoken.text = which + own->describe();
  std::uint64_t seed = 0;
  std::shared_ptr<Checkpoint> base;
  if (adapters) {
    if (!FrozenOrigin::load(Directory(run)))
      throw InputError(fmt::format("{}: nothing says which model the adapters go with",
                                   (run / FrozenOrigin::file).string()),
                       "name the model, and give the run as " + Setting{"adapter", run.string()});
    const FrozenOrigin origin = require_origin(run, own->frozen_hash());
    seed = origin.seed;
    if (!origin.folder.empty())
      base = std::make_shared<Checkpoint>(origin.folder, spoken.model, request.make_ring);
    spoken.text = fmt::format("{}, with adapters of {}{}",
                              base ? base->describe() : std::string("weights drawn from a seed"),
                              which, folder.string());
  }
  spoken.values = adapters ? starting_state(spoken.model, seed, base, own)
                           : starting_state(spoken.model, seed, own, nullptr);
  spoken.folder = folder;
  return spoken;
}

SpokenModel of_commit(const SpeakerRequest& request, const Directory& run, const SavedRun& saved,
                      std::optional<ExportLock> lock) {
  StateInStore in_store;
  in_store.lock = std::move(lock);
  in_store.state = std::make_shared<CommittedState>(find_committed(run, saved, request.step),
                                                    request.make_ring, request.step.has_value());
  const std::shared_ptr<CommittedState> state = in_store.state;
  SpokenModel spoken;
  spoken.model = state->model();
  spoken.text = fmt::format("step {}, committed", state->step());
  spoken.values = [state, values = state->values()](
                      std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count,
                      float* to) { values(unit, moment, first, count, to); };
  if (spoken.model.has_frozen()) {
    const FrozenOrigin origin = require_origin(run.path(), state->training().frozen_hash);
    spoken.text += origin.folder.empty() ? std::string(", beside weights drawn from a seed")
                                         : ", beside " + origin.folder.string();
    bool said = false;
    const auto checking = [&](std::uint64_t, std::uint64_t) {
      if (request.note && !said) request.note("checking the frozen weights of the run");
      said = true;
    };
    spoken.values = with_frozen(spoken.model, spoken.values,
                                frozen_values(origin, spoken.model, request.make_ring, checking));
  }
  spoken.folder = run.path();
  spoken.in_store = std::move(in_store);
  return spoken;
}

[[noreturn]] void refuse_without_weights(const fs::path& run, const SavedRun& saved,
                                         const SpeakerRequest& request, bool has_weights) {
  const std::vector<std::int64_t> kept = kept_steps(run);
  Message hint = "train it anew, with durability on or with its weights written at the end";
  if (has_weights) {
    hint = "leave " + Setting{"step"} + " out for the weights that it wrote at its end";
  } else if (!kept.empty()) {
    hint = "it has kept steps: " + Setting{"step", std::to_string(kept.back())};
  } else if (!saved.complete && saved.not_resumable.empty()) {
    hint = "wait for its first commit, or go on with it: " + Setting{"resume"};
  }
  throw InputError(request.step && has_weights
                       ? fmt::format("the run in {} has no committed state of step {}",
                                     run.string(), *request.step)
                       : fmt::format("the run in {} has no weights: {}", run.string(),
                                     !saved.not_resumable.empty() ? saved.not_resumable
                                                                  : "nothing is committed yet"),
                   hint);
}

SpokenModel of_run(const SpeakerRequest& request, const fs::path& run) {
  if (!request.adapter.empty())
    throw InputError(
        Setting{"adapter"} + ": the run in " + run.string() + " has weights of its own",
        "export the run first: spillway export " + run.string());
  const Directory directory(run.string());
  // Before it is looked what there is, so that it stays.
  std::optional<ExportLock> lock = ExportLock::to_read(directory);
  const SavedRun saved = SavedRun::load(directory);
  SpokenModel spoken;
  // The weights that a run wrote at its end are removed when it goes on: where they are, nothing
  // newer is committed.
  if (request.step && is_kept(run, *request.step)) {
    spoken = of_written(request, run, kept_folder(run, *request.step),
                        fmt::format("step {}, kept: ", *request.step));
  } else if (!request.step && has_weights(run)) {
    spoken = of_written(request, run, run, "weights of its end: ");
  } else if (saved.store && saved.not_resumable.empty()) {
    spoken = of_commit(request, directory, saved, std::move(lock));
  } else {
    refuse_without_weights(run, saved, request, has_weights(run));
  }
  know_run(run, spoken);
  return spoken;
}

}  // namespace

SpokenModel open_spoken_model(const SpeakerRequest& request) {
  fs::path path = fs::absolute(request.model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (has_file(path, saved_run_file)) return of_run(request, request.model);
  if (request.step)
    throw InputError(Setting{"step"} + ": there is no run in " + request.model,
                     "leave it out: a folder of weights is of one step");
  const bool only_adapters =
      has_file(path, adapter_config_file) && !has_file(path, hugging_face_config_file);
  if (only_adapters && !request.adapter.empty())
    throw InputError(Setting{"model", request.model} + " has adapters itself",
                     "name the model beside " + Setting{"adapter", request.adapter});
  if (const fs::path run = run_around(path); !run.empty() && has_weights(path)) {
    SpokenModel spoken = only_adapters ? of_written(request, run, path, "")
                                       : of_folder(request, path.string(), request.adapter);
    know_run(run, spoken);
    return spoken;
  }
  if (!only_adapters) return of_folder(request, request.model, request.adapter);
  const fs::path config = path / adapter_config_file;
  const std::string base = adapter_base(read_file(config, longest_adapter_config), config.string());
  return of_folder(request, base, request.model);
}

}  // namespace spillway
