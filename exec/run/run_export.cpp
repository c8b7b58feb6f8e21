#include "exec/run/run_export.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <random>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/units.hpp"
#include "exec/data/checkpoint.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/io/io_transfer.hpp"
#include "exec/run/run_folder.hpp"
#include "exec/run/training_record.hpp"
#include "exec/store/state_reader.hpp"
#include "policies/model/hugging_face.hpp"
#include "policies/model/model_folder.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t longest_file = std::uint64_t{256} << 20;

void write_text(const Directory& folder, const std::string& name, const std::string& text) {
  NewFile file({folder, name});
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// A folder under a name of its own until it is complete.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path) {
    std::error_code error;
    if (fs::exists(fs::symlink_status(path_, error)))
      throw InputError(path_.string() + " is there already", "name a new folder");
    std::random_device random;
    const fs::path name = parent() / fmt::format(".{}.partial-{:08x}{:08x}",
                                                 path_.filename().string(), random(), random());
    if (::mkdir(name.c_str(), 0777) != 0)
      throw MachineError::from_errno("cannot create " + name.string(), errno);
    temporary_ = name;
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
  }
  Directory directory() const { return Directory(temporary_); }
  void commit() {
    directory().sync();
    // A folder of that name, made meanwhile, is replaced only if it is empty.
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
      throw MachineError::from_errno(
          fmt::format("cannot rename {} to {}", temporary_.string(), path_.string()), errno);
    temporary_.clear();
    Directory(parent()).sync();
  }

 private:
  fs::path parent() const { return path_.has_parent_path() ? path_.parent_path() : fs::path("."); }
  fs::path path_, temporary_;
};

std::uint64_t bytes_of_weights(const ModelSpec& model, ElementType type) {
  return static_cast<std::uint64_t>(model.parameters()) * bytes_of(type);
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
// files are links to REPOSITORY/blobs, from REPOSITORY/snapshots/REVISION.
void require_own_file(const fs::path& folder, const std::string& name) {
  const fs::path home = fs::canonical(folder), file = fs::canonical(folder / name);
  const fs::path blobs = home.parent_path().parent_path() / "blobs";
  if (is_inside(file, home) || is_inside(file, blobs)) return;
  throw InputError(
      fmt::format("{} leads out of the folder, to {}", (folder / name).string(), file.string()),
      "put the file itself there, or remove it");
}

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

ExportedRun write_folder(const RunExport& request, const fs::path& run, const ModelSpec& model,
                         const std::string& usual_name, const WeightValues& values) {
  const fs::path out = request.out.empty() ? run / usual_name : without_slash(request.out);
  NewFolder folder(out);
  const std::uint64_t bytes = bytes_of_weights(model, request.type);
  const Directory directory = folder.directory();
  require_room(directory.path(), bytes);
  write_model_files(run, directory, model, request.type);
  const std::size_t files =
      write_weights(directory, model, values, {request.type, request.most_bytes, request.progress});
  folder.commit();
  return {out, {}, files, bytes};
}

// A store opened for itself alone, and a record of it that was read since: what a run at work
// commits until then is not missed.
struct OpenCommit {
  ResumePoint point;
  std::int64_t newest = 0;  // step
  OpenStore open;
};

OpenCommit open_commit(const RunExport& request, const StoreLocation& location) {
  const auto find = [&] {
    return request.step ? find_commit(location, *request.step) : find_resume_point(location);
  };
  OpenCommit commit{find(), 0, {}};
  while (true) {
    SsdStoreOptions with;
    with.run = commit.point.run;
    with.make_ring = request.make_ring;
    commit.open = open_store(commit.point.record, location.directories, location.generation, with);
    const std::int64_t before = commit.point.record.version;
    commit.point = find();
    commit.newest = find_resume_point(location).record.version;
    if (commit.point.record.version == before) return commit;
    commit.open.store.reset();
  }
}

ExportedRun export_commit(const RunExport& request, const fs::path& run,
                          const StoreLocation& location) {
  if (request.step == 0)
    throw InputError(Setting{"step", "0"} + ": step 0 is what the run began with: no commit has it",
                     "the weights that it began with are where they were; leave it out for the "
                     "newest commit");
  const OpenCommit commit = open_commit(request, location);
  const CommitRecord& record = commit.point.record;
  if (record.version == 0)
    throw InputError(fmt::format("no step of the run in {} is committed yet", run.string()),
                     "what it began with is still as it was");
  const ModelSpec model = TrainingRecord::parse(record.identity.training).model;
  StateReader reader(*commit.open.store, record, *commit.open.chunks);
  const auto read = [&](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
    try {
      reader.read(unit, 0, first, count, to);
    } catch (const ChecksumError&) {
      if (record.version == commit.newest) throw;
      throw InputError(
          Setting{"step", std::to_string(record.version)} +
              Message(fmt::format(": a later step has begun to overwrite the state of step {}; the "
                                  "store holds the state of step {}",
                                  record.version, commit.newest)),
          fmt::format("leave it out for step {}", commit.newest));
    }
  };
  ExportedRun exported =
      write_folder(request, run, model, fmt::format("model-step-{}", record.version), read);
  exported.step = record.version;
  return exported;
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
                                                 "chat_template.jinja",
                                                 "chat_template.json",
                                                 "generation_config.json"};
  return files;
}

void write_model_files(const std::optional<fs::path>& from, const Directory& to,
                       const ModelSpec& model, ElementType type) {
  const std::string type_name = type == ElementType::f32 ? "float32" : "bfloat16";
  const auto text_of = [&](const std::string& name) -> std::optional<std::string> {
    std::error_code error;
    if (!from || !fs::is_regular_file(*from / name, error)) return std::nullopt;
    require_own_file(*from, name);
    return read_file(*from / name, longest_file);
  };
  std::string config = hugging_face_config(model, type_name);
  if (const auto text = text_of(hugging_face_config_file)) {
    ModelSpec described =
        parse_hugging_face_config(*text, (*from / hugging_face_config_file).string(), model.name);
    described.source = model.source;
    if (model_to_toml(described) == model_to_toml(model))
      config = hugging_face_config(*text, type_name);
  }
  write_text(to, hugging_face_config_file, config);
  for (const std::string& name : tokenizer_files()) {
    if (const auto text = text_of(name)) write_text(to, name, *text);
  }
}

ExportedRun export_run(const RunExport& request) {
  const Directory folder(request.run);
  const SavedRun saved = SavedRun::load(folder);
  const fs::path run = without_slash(request.run);
  if (saved.store && saved.not_resumable.empty()) {
    return export_commit(request, run, find_state(folder, saved).point.location);
  }
  if (request.step || !SafetensorsFolder::has_weights(folder.path()))
    throw InputError(
        fmt::format("the run in {} has no committed state {}", run.string(),
                    saved.complete ? "any more" : "yet"),
        SafetensorsFolder::has_weights(folder.path())
            ? "leave " + Setting{"step"} + " out for the weights that it wrote at its end"
            : Message("train it with durability on"));
  const std::string model_file = folder.path_of(RunFolder::model).string();
  const ModelSpec model = load_model(model_file);
  Checkpoint weights(folder.path(), model, request.make_ring);
  return write_folder(request, run, model, "model-exported",
                      [&](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
                        weights.read(unit, first, count, to);
                      });
}

}  // namespace spillway
