#include "exec/run/run_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/new_folder.hpp"
#include "base/units.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/data/merged_weights.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/kept_checkpoints.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/store/committed_state.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model_folder.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t longest_file = std::uint64_t{256} << 20;
constexpr const char* generation_file = "generation_config.json";  // the model's

void write_text(const Directory& folder, const std::string& name, const std::string& text) {
  NewFile file({folder, name});
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

void require_room(const fs::path& folder, std::uint64_t bytes) {
  std::error_code error;
  const std::uintmax_t available = fs::space(folder, error).available;
  if (error || bytes <= available) return;
  throw MachineError(fmt::format("the weights need {}, there is {} in {}",
                                 format_bytes(static_cast<double>(bytes)),
                                 format_bytes(static_cast<double>(available)), folder.string()),
                     "free space there, or name a folder on another drive");
}

// A link to a file elsewhere would give away what is there with the copy. In Hugging Face's cache
// files are links to models--NAME/blobs, from models--NAME/snapshots/REVISION, and people make
// folders of links to these.
void require_own_file(const fs::path& folder, const std::string& name) {
  const fs::path home = fs::canonical(folder), file = fs::canonical(folder / name);
  const fs::path blobs = file.parent_path(), repository = blobs.parent_path();
  const bool in_cache =
      blobs.filename() == "blobs" && repository.filename().string().starts_with("models--");
  if (is_inside(file, home) || in_cache) return;
  throw InputError(
      fmt::format("{} leads out of the folder, to {}", (folder / name).string(), file.string()),
      "put the file itself there, or remove it");
}

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

// Where the frozen weights of the run are: where it had them, unless the request says otherwise.
FrozenOrigin origin_of(const RunExport& request, const fs::path& run,
                       const std::optional<std::uint64_t>& hash) {
  FrozenOrigin origin = require_origin(run, hash);
  if (request.base.empty()) return origin;
  if (origin.folder.empty())
    throw InputError(
        Setting{"model", request.base} + ": the frozen weights of the run are drawn from its seed",
        "leave it out");
  const auto found = find_model_folder(request.base);
  if (!found)
    throw InputError(Setting{"model", request.base} + ": there is no such folder",
                     "name the folder where the frozen weights of the run are, or leave it out");
  origin.folder = fs::canonical(found->path);
  return origin;
}

WeightValues weights_of(StateValues values) {
  return [values = std::move(values)](std::int64_t unit, std::uint64_t first, std::uint64_t count,
                                      float* to) { values(unit, 0, first, count, to); };
}

// The adapters that `trained` holds, as a folder of PEFT's.
ExportedRun write_adapter_folder(const RunExport& request, const fs::path& run, const fs::path& out,
                                 const ModelSpec& model, const WeightValues& trained,
                                 const FrozenOrigin& origin) {
  // One that was moved is told by its headers; its data is read where it is merged.
  if (!request.base.empty())
    require_same_frozen(origin.folder, Checkpoint(origin.folder, model, request.make_ring).hash(),
                        origin.seal.headers);
  NewFolder folder(out);
  const Directory& directory = folder.directory();
  const std::uint64_t bytes =
      static_cast<std::uint64_t>(model.trained_parameters()) * bytes_of(request.files.type);
  require_room(directory.path().parent_path(), bytes);
  write_adapter_files(run, directory, model, origin.folder);
  write_adapter({directory, adapter_weights_file}, model, trained, request.files.type,
                origin.seal.data);
  folder.commit();
  return {out, {}, 1, bytes};
}

// `trained`: what is trained of the model; with `whole` all of it. `frozen_hash`: as origin_of()
// takes it.
ExportedRun write_folder(const RunExport& request, const fs::path& run, const ModelSpec& model,
                         const std::string& usual_name, WeightValues trained, bool whole,
                         const std::optional<std::uint64_t>& frozen_hash) {
  const bool adapters = model.has_adapters();
  if (request.merge && !adapters)
    throw InputError(Setting{"merge"} +
                         ": the run has no adapters, it trains the model's own "
                         "weights",
                     "leave it out");
  const bool needs_frozen = model.has_frozen() && !whole;
  if (!request.base.empty() && !needs_frozen)
    throw InputError(Setting{"model", request.base} + ": the run itself has all of the weights",
                     "leave it out");
  const fs::path out = request.out.empty() ? run / usual_name : without_slash(request.out);
  ModelFilesFrom from{run};
  WeightValues values = trained;
  if (needs_frozen) {
    if (adapters && !request.merge) {
      // Its configuration says the name, too, where the file is missing.
      const bool is_known = !request.base.empty() || FrozenOrigin::load(Directory(run));
      const FrozenOrigin origin = is_known ? origin_of(request, run, frozen_hash)
                                           : FrozenOrigin{{}, 0, {{}, 0, frozen_hash.value_or(0)}};
      return write_adapter_folder(request, run, out, model, trained, origin);
    }
    const FrozenOrigin origin = origin_of(request, run, frozen_hash);
    const StateValues frozen = frozen_values(origin, model, request.make_ring, request.checking,
                                             request.files.strip_bytes);
    if (adapters) {
      values = merged_weights(model, weights_of(frozen), trained);
      from = {origin.folder.empty() ? std::nullopt : std::optional(origin.folder), run};
    } else {
      values = weights_of(with_frozen(
          model,
          [&](std::int64_t unit, int, std::uint64_t first, std::uint64_t count, float* to) {
            trained(unit, first, count, to);
          },
          frozen));
    }
  }
  const std::size_t files = write_model_folder(out, from, model, values, request.files);
  return {out, {}, files, bytes_of_weights(model, request.files.type)};
}

ExportedRun export_commit(const RunExport& request, const fs::path& run, const ResumePoint& point) {
  const CommittedState state(point, request.make_ring, request.step.has_value());
  ExportedRun exported =
      write_folder(request, run, state.model(), fmt::format("model-step-{}", state.step()),
                   state.weights(), false, state.training().frozen_hash);
  exported.step = state.step();
  return exported;
}

// From a folder in which the run has written its weights: its own, or that of a kept step.
ExportedRun export_written(const RunExport& request, const Directory& folder, const fs::path& run,
                           const fs::path& weights_in, const std::string& usual_name) {
  const ModelSpec model = load_model(folder.path_of(RunFolder::model).string());
  const bool adapters = model.has_adapters();
  Checkpoint weights(weights_in, model, request.make_ring,
                     adapters ? CheckpointPart::adapter : CheckpointPart::model);
  return write_folder(
      request, run, model, usual_name,
      [&](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
        weights.read(unit, first, count, to);
      },
      !adapters, adapters ? weights.frozen_hash() : std::nullopt);
}

// Whether the run has another newest commit by now than that one.
bool has_gone_on(const ResumePoint& point) {
  try {
    const ResumePoint now = find_resume_point(point.location);
    return now.record.version != point.record.version || now.run.id != point.run.id;
  } catch (const InputError&) {
    return true;  // its store was removed, or is another one
  }
}

}  // namespace

const std::vector<std::string>& tokenizer_files() {
  static const std::vector<std::string> files = {"tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "tokenizer.model",
                                                 "tekken.json",
                                                 "vocab.txt",
                                                 "spiece.model",
                                                 "sentencepiece.bpe.model",
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 generation_file};
  return files;
}

std::vector<std::string> model_files_of(const fs::path& folder) {
  std::vector<std::string> all = tokenizer_files(), found;
  all.emplace_back(hugging_face_config_file);
  for (const std::string& name : all) {
    std::error_code error;
    if (!fs::is_regular_file(folder / name, error)) continue;
    require_own_file(folder, name);
    const std::uintmax_t bytes = fs::file_size(folder / name, error);
    if (error || bytes > longest_file)
      throw InputError(fmt::format("{} is longer than {}", (folder / name).string(),
                                   format_bytes(static_cast<double>(longest_file))),
                       "it is damaged, or a file of another kind: remove it");
    found.push_back(name);
  }
  return found;
}

void remove_tokenizer_files(const Directory& to) {
  for (const std::string& name : tokenizer_files())
    if (name != generation_file) to.remove(name);
}

void write_tokenizer_files(const fs::path& from, const Directory& to) {
  const fs::path folder = fs::is_directory(from) ? from : from.parent_path();
  std::map<std::string, fs::path> files;  // by the name that they are to have
  for (const std::string& name : model_files_of(folder))
    if (name != hugging_face_config_file) files[name] = folder / name;
  // GPT-2's own files have other names.
  std::error_code error;
  if (fs::is_regular_file(folder / "encoder.json", error) &&
      fs::is_regular_file(folder / "vocab.bpe", error) && !files.contains("vocab.json")) {
    files["vocab.json"] = folder / "encoder.json";
    files["merges.txt"] = folder / "vocab.bpe";
  }
  // A tokenizer may be named by a file of another name.
  if (!fs::is_directory(from) && from.extension() == ".json" && from.stem() != "vocab" &&
      from.stem() != "encoder")
    files["tokenizer.json"] = from;
  if (!fs::is_directory(from) && from.extension() == ".model") {
    files["tokenizer.model"] = from;
    files.erase("tokenizer.json");  // which would be read instead of it
  }
  const bool has_tokenizer = std::any_of(files.begin(), files.end(), [](const auto& file) {
    const std::string& name = file.first;
    return name == "tokenizer.json" || name.ends_with(".model") || name == "tekken.json" ||
           name.starts_with("vocab.");
  });
  if (has_tokenizer) remove_tokenizer_files(to);
  for (const auto& [name, path] : files) {
    to.remove(name);
    write_text(to, name, read_file(path, longest_file));
  }
}

void write_model_files(const std::optional<fs::path>& from, const Directory& to,
                       const ModelSpec& model, ElementType type,
                       const std::optional<TextEnds>& ends) {
  const std::string type_name = type == ElementType::f32 ? "float32" : "bfloat16";
  std::string config = hugging_face_config(model, type_name, ends);
  // config.json last: where it is, the others are.
  for (const std::string& name : from ? model_files_of(*from) : std::vector<std::string>()) {
    const std::string text = read_file(*from / name, longest_file);
    if (name != hugging_face_config_file) {
      write_text(to, name, text);
      continue;
    }
    ModelSpec described = parse_hugging_face_config(text, (*from / name).string(), model.name);
    described.source = model.source;
    if (model_to_toml(described) == model_to_toml(base_model(model)))
      config = hugging_face_config(text, type_name);
  }
  write_text(to, hugging_face_config_file, config);
}

std::uint64_t bytes_of_weights(const ModelSpec& model, ElementType type) {
  return static_cast<std::uint64_t>(base_model(model).parameters()) * bytes_of(type);
}

void write_adapter_files(const std::optional<fs::path>& from, const Directory& to,
                         const ModelSpec& model, const fs::path& base) {
  std::string base_name = base.empty() ? "" : name_in_cache(base);
  if (!base.empty() && base_name.empty())
    base_name = fs::absolute(base).lexically_normal().string();
  std::string config = adapter_config(model, base_name);
  for (const std::string& name : from ? model_files_of(*from) : std::vector<std::string>()) {
    if (name != hugging_face_config_file)
      write_text(to, name, read_file(*from / name, longest_file));
  }
  std::error_code error;
  if (from && fs::is_regular_file(*from / adapter_config_file, error)) {
    require_own_file(*from, adapter_config_file);
    config = read_file(*from / adapter_config_file, longest_file);
    if (!base_name.empty())
      config = adapter_config_beside(config, (*from / adapter_config_file).string(), base_name);
  }
  write_text(to, adapter_config_file, config);
}

std::size_t write_model_folder(const fs::path& out, const ModelFilesFrom& from,
                               const ModelSpec& model, const WeightValues& values,
                               const WeightFiles& files) {
  NewFolder folder(without_slash(out));
  require_room(folder.directory().path().parent_path(), bytes_of_weights(model, files.type));
  write_model_files(from.model, folder.directory(), model, files.type);
  if (from.adapters) write_tokenizer_files(*from.adapters, folder.directory());
  const std::size_t count = write_weights(folder.directory(), model, values, files);
  folder.commit();
  return count;
}

ResumePoint find_committed(const Directory& run, const SavedRun& saved,
                           const std::optional<std::int64_t>& step) {
  const StoreLocation location = find_state(run, saved).point.location;
  if (!step) {
    ResumePoint newest = commit_of_all_ranks(find_resume_point(location));
    if (newest.record.version > 0) return newest;
    throw InputError(fmt::format("no step of the run in {} is committed yet", run.path().string()),
                     "what it began with is still as it was");
  }
  if (*step == 0)
    throw InputError(Setting{"step", "0"} + ": step 0 is what the run began with: no commit has it",
                     "the weights that it began with are where they were; leave it out for the "
                     "newest commit");
  try {
    return find_commit(location, *step);
  } catch (const InputError& error) {
    const std::vector<std::int64_t> kept = kept_steps(run.path());
    if (kept.empty()) throw;
    throw InputError(
        error.message() + fmt::format("; kept in {} are {}",
                                      (run.path() / KeptCheckpoints::folder_name).string(),
                                      fmt::join(kept, ", ")),
        error.advice());
  }
}

ExportedRun export_run(const RunExport& request) {
  const Directory folder(request.run);
  const fs::path run = without_slash(request.run);
  SavedRun::load(folder);  // before anything is put into a folder that is no run's
  const std::optional<ExportLock> lock = ExportLock::to_read(folder);
  if (request.step && is_kept(run, *request.step)) {
    ExportedRun exported = export_written(request, folder, run, kept_folder(run, *request.step),
                                          fmt::format("model-step-{}", *request.step));
    exported.step = request.step;
    return exported;
  }
  // The lock keeps the newest commit whole, but not from a run that was copied from this one and
  // goes on with its store, nor from a store that is made anew in another place.
  constexpr int most_attempts = 20;
  for (int attempt = 1;; ++attempt) {
    const SavedRun saved = SavedRun::load(folder);
    const bool has_weights = SafetensorsFolder::has_weights(folder.path()) ||
                             folder.status(adapter_weights_file).has_value();
    if (!saved.store || !saved.not_resumable.empty()) {
      if (!request.step && has_weights)
        return export_written(request, folder, run, folder.path(), "model-exported");
      throw InputError(
          fmt::format("the run in {} has no committed state {}", run.string(),
                      saved.complete ? "any more" : "yet"),
          has_weights ? "leave " + Setting{"step"} + " out for the weights that it wrote at its end"
                      : Message("train it with durability on"));
    }
    const ResumePoint point = find_committed(folder, saved, request.step);
    try {
      return export_commit(request, run, point);
    } catch (const MachineError&) {
      if (attempt == most_attempts || request.step || !has_gone_on(point)) throw;
      if (request.note)
        request.note(
            fmt::format("step {} was overwritten while it was read: beginning again with "
                        "a newer one",
                        point.record.version));
    }
  }
}

}  // namespace spillway
