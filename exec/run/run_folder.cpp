#include "exec/run/run_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "exec/data/model_writer.hpp"
#include "exec/ranks/rank_places.hpp"
#include "exec/run/export_lock.hpp"
#include "exec/run/run_export.hpp"
#include "exec/run/training_record.hpp"
#include "exec/store/store_claim.hpp"
#include "policies/model/hugging_face.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

// Makes a new folder in `parent` that nobody else has: NAME, NAME-2, NAME-3 ...
fs::path make_new_folder(const fs::path& parent, const std::string& name) {
  std::error_code error;
  fs::create_directories(parent, error);
  constexpr int most = 1000;
  for (int i = 1; i <= most && !error; ++i) {
    const fs::path folder = parent / (i == 1 ? name : fmt::format("{}-{}", name, i));
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST) error = std::error_code(errno, std::generic_category());
  }
  throw InputError(fmt::format("cannot create a folder for the run in {}: {}", parent.string(),
                               error ? error.message() : "all names are taken"),
                   "name one: " + Setting{"run"});
}

void require_empty(const Directory& folder) {
  if (folder.is_empty()) return;
  if (folder.status(saved_run_file))
    throw InputError(Setting{"run", folder.path().string()} + ": there is a run in it already",
                     "go on with that one: " + Setting{"resume"} + " " +
                         Setting{"run", folder.path().string()} +
                         "; or name a new folder for another one");
  throw InputError(Setting{"run", folder.path().string()} + ": the folder is not empty",
                   "each run has a folder of its own: name a new one, or remove this one");
}

// With links resolved: a link in a run's folder may lead to the state of another one.
bool is_really_inside(const fs::path& directory, const fs::path& folder) {
  std::error_code error;
  const fs::path canonical = fs::canonical(directory, error);
  return is_inside(error ? directory : canonical, folder);
}

void require_run(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(fs::path(path) / saved_run_file, ignored))) {
    throw InputError(fmt::format("there is no run in {} ({} is missing)", path, saved_run_file),
                     "name the folder of a run: " + Setting{"run", "DIR"});
  }
}

}  // namespace

fs::path nearest_existing(const fs::path& path) {
  std::error_code ignored;
  fs::path existing = fs::absolute(path).lexically_normal();
  while (!fs::exists(existing, ignored) && existing.has_relative_path())
    existing = existing.parent_path();
  return existing;
}

RunFolder::RunFolder(fs::path path, const Surroundings& here)
    : path_(std::move(path)), here_(here) {}

void RunFolder::enter(bool take_over, bool anew) {
  lock_.emplace(*directory_, here_, take_over, anew);
  home_ = home_of(*directory_, here_);
}

void RunFolder::require_new(const std::string& path) {
  std::error_code ignored;
  const fs::path existing = nearest_existing(path.empty() ? fs::path("runs") : fs::path(path));
  if (fs::is_directory(existing, ignored) && ::access(existing.c_str(), W_OK | X_OK) != 0) {
    throw InputError(fmt::format("no folder for the run can be made in {}: {}", existing.string(),
                                 std::strerror(errno)),
                     "name a folder that can be written: " + Setting{"run", "DIR"});
  }
  if (!fs::exists(path, ignored)) return;
  if (!fs::is_directory(path, ignored))
    throw InputError(Setting{"run", path} + ": this is not a folder", "name a new folder");
  require_empty(Directory(path));
}

RunFolder RunFolder::create(const std::string& path, const std::string& name,
                            const Surroundings& here) {
  const fs::path existing = nearest_existing(path.empty() ? fs::path("runs") : fs::path(path));
  fs::path folder = path;
  if (path.empty()) {
    folder = make_new_folder("runs", fmt::format("{}-{:%Y%m%d-%H%M%S}", file_name_from(name),
                                                 fmt::localtime(std::time(nullptr))));
  } else {
    require_new(path);
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
      throw InputError(Setting{"run", path} + Message(": " + error.message()),
                       "name a folder that can be written");
    }
  }
  RunFolder run(folder, here);
  run.existing_ = existing;
  run.directory_.emplace(folder);
  require_empty(*run.directory_);
  // It was empty: what is in it from now on is of this run.
  run.keep_ = false;
  run.enter(false, true);
  run.make_name_durable();
  run.saved_.id = new_run_id();
  run.saved_.home = run.home_;
  return run;
}

// The names of all folders that were made for the run.
void RunFolder::make_name_durable() const {
  for (fs::path folder = fs::absolute(path_).lexically_normal(); folder != existing_;
       folder = folder.parent_path()) {
    if (!folder.has_filename()) continue;  // a trailing slash
    const FileDescriptor parent(
        ::open(folder.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (parent.valid() && ::fsync(parent.get()) != 0 && errno == EIO)
      throw MachineError::from_errno("cannot make " + folder.string() + " durable", errno);
  }
}

RunFolder RunFolder::look(const std::string& path, const Surroundings& here) {
  require_run(path);
  RunFolder run(path, here);
  run.directory_.emplace(path);
  run.saved_ = SavedRun::load(*run.directory_);
  run.home_ = home_of(*run.directory_, here);
  return run;
}

RunFolder RunFolder::open(const std::string& path, bool take_over, const Surroundings& here) {
  require_run(path);
  RunFolder run(path, here);
  run.directory_.emplace(path);
  SavedRun::load(*run.directory_);  // before a lock is put into a folder that is no run's
  run.enter(take_over, false);
  run.saved_ = SavedRun::load(*run.directory_);
  run.remove_unfinished_files();
  return run;
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : path_(std::move(other.path_)),
      here_(std::move(other.here_)),
      directory_(std::move(other.directory_)),
      lock_(std::move(other.lock_)),
      saved_(std::move(other.saved_)),
      home_(std::move(other.home_)),
      existing_(std::move(other.existing_)),
      keep_(std::exchange(other.keep_, true)),
      made_ssd_(other.made_ssd_) {}

RunFolder::~RunFolder() {
  if (keep_) return;
  for (const char* name :
       {metrics, machine, model, config, saved_run_file, RunLock::file_name, ExportLock::file_name})
    directory_->remove(name);
  if (made_ssd_) ::unlinkat(directory_->descriptor(), ssd, AT_REMOVEDIR);  // if empty
  // Upwards as far as this run created folders; one that something else has been put in stays, as
  // do those above.
  std::error_code ignored;
  for (fs::path folder = fs::absolute(path_).lexically_normal(); folder != existing_;
       folder = folder.parent_path()) {
    if (!folder.has_filename()) continue;  // a trailing slash
    if (::rmdir(folder.c_str()) != 0) return;
  }
}

fs::path RunFolder::make_ssd_folder() {
  made_ssd_ = ::mkdirat(directory_->descriptor(), ssd, 0777) == 0;
  if (!made_ssd_ && errno != EEXIST)
    throw MachineError::from_errno(fmt::format("cannot create {}", file(ssd).string()), errno);
  return Directory(*directory_, ssd).path();  // refuses a link
}

// What a run that was killed was writing (base/new_file.hpp). Its weights may be large.
void RunFolder::remove_unfinished_files() const {
  const int own = ::openat(directory_->descriptor(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const stream = own < 0 ? nullptr : ::fdopendir(own);
  if (stream == nullptr) {
    if (own >= 0) ::close(own);
    return;
  }
  std::vector<std::string> names;
  while (const dirent* const entry = ::readdir(stream)) names.emplace_back(entry->d_name);
  ::closedir(stream);
  std::vector<std::string> all_of_ours = {
      metrics, metrics_table, loss_curve, machine,        model,
      config,  weights,       trace,      saved_run_file, hugging_face_config_file};
  all_of_ours.insert(all_of_ours.end(), tokenizer_files().begin(), tokenizer_files().end());
  for (const std::string& name : names) {
    constexpr std::size_t tail = 25;  // .partial-0123456789abcdef
    if (name.size() <= tail + 1) continue;
    const std::string whole = name.substr(1, name.size() - tail - 1);
    if (is_weights_name(whole) || whole.starts_with(tensorboard)) all_of_ours.push_back(whole);
  }
  for (const std::string& name : names) {
    for (const std::string& ours : all_of_ours) {
      const std::string prefix = fmt::format(".{}.partial-", ours);
      const auto found = name.starts_with(prefix) && name.size() == prefix.size() + 16
                             ? directory_->status(name)
                             : std::nullopt;
      if (found && S_ISREG(found->st_mode) && found->st_uid == ::geteuid())
        directory_->remove(name);
    }
  }
}

void RunFolder::save() {
  saved_.home = home_;
  saved_.save(*directory_);
}

namespace {

// Where the store of the first, or only, rank is `first`.
std::vector<StoreLocation> stores_of_all_ranks(const StoreLocation& first) {
  const ResumePoint point = find_resume_point(first);
  const TrainingRecord training = TrainingRecord::parse(point.record.identity.training);
  return stores_of_ranks(first, training.workload.processes());
}

}  // namespace

void RunFolder::remember_store(const StoreLocation& location) {
  saved_.store = location;
  saved_.store_of.clear();
  saved_.complete = false;
  saved_.not_resumable.clear();
  save();
}

ResumeState RunFolder::resume(const ResumeRequest& request) {
  if (!saved_.store) {
    // It ended before its first commit: from the beginning.
    if (relation(saved_.home, home_, saved_.id) != Relation::same) saved_.id = new_run_id();
    saved_.home = home_;
    return {{}, request.ssd, ""};
  }
  const auto inside = [&](const fs::path& directory) {
    return is_really_inside(directory, directory_->path());
  };
  const StoreLocation location =
      find_store(*saved_.store, saved_.store_ids(), request.ssd, request.take_over);
  const auto& directories = location.directories;  // not where they were written down to be
  return std::all_of(directories.begin(), directories.end(), inside)
             ? resume_inside(location, request)
             : resume_outside(location, request);
}

namespace {

bool same_directories(const std::vector<fs::path>& a, const std::vector<fs::path>& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const fs::path& one) {
           return std::any_of(b.begin(), b.end(), [&](const fs::path& other) {
             std::error_code ignored;
             return one == other || fs::equivalent(one, other, ignored);
           });
         });
}

// In the order of the stripes where they are those of the store.
std::vector<fs::path> directories_from(const StoreLocation& location,
                                       const std::vector<fs::path>& given) {
  if (given.empty() || same_directories(location.directories, given)) return location.directories;
  return given;
}

}  // namespace

ResumeState RunFolder::find(const std::vector<fs::path>& ssd) const {
  if (!saved_.store) return {{}, ssd, ""};
  StateOfRun found = find_state(*directory_, saved_, here_);
  ResumeState state;
  state.ssd = directories_from(found.point.location, ssd);
  state.point = std::move(found.point);
  if (!found.also_of.empty())
    state.note = "the state also belongs to another run: " + found.also_of;
  return state;
}

ResumeState RunFolder::resume_inside(StoreLocation location, const ResumeRequest& request) {
  ResumeState state;
  const Relation now = relation(saved_.home, home_, saved_.id);
  if (now != Relation::same) {
    const std::string original = to_text(saved_.home);
    for (const StoreLocation& store : stores_of_all_ranks(location))
      require_whole(find_resume_point(store), request.progress,
                    fmt::format("a copy of {}", original), request.make_ring);
    if (now == Relation::copied)
      state.note = fmt::format("a copy of {}: from here on a run of its own", original);
    // Under a new id, whether or not the other folder is there: there may be more copies.
    saved_.former_ids.push_back(std::exchange(saved_.id, new_run_id()));
    save();
  }
  make_own(location);
  state.point = find_resume_point(location);
  state.ssd = directories_from(location, request.ssd);
  return state;
}

// Says in the files of the store that they are this folder's. A crash at any point leaves files of
// both ids, and run.json knows both.
void RunFolder::make_own(const StoreLocation& location) {
  const RunIdentity owner = find_resume_point(location).run;
  if (saved_.former_ids.empty() && owner.id == saved_.id && owner.home == home_) return;
  for (const StoreLocation& store : stores_of_all_ranks(location))
    give_store(store, saved_.former_ids, identity());
  saved_.former_ids.clear();
  saved_.store = location;
  save();
}

ResumeState RunFolder::resume_outside(StoreLocation location, const ResumeRequest& request) {
  ResumeState state;
  state.point = find_resume_point(location);
  state.ssd = directories_from(location, request.ssd);
  const bool is_own = saved_.store_of.empty();
  const std::optional<RunHome> other = claimed_by(location, home_, here_);
  const RunHome owner = other.value_or(state.point->run.home);
  const bool claimed = !is_own || other;
  if (!claimed || request.take_over) {
    if (!is_own) saved_.former_ids.push_back(std::exchange(saved_.store_of, RunId()));
    make_own(location);
    state.point->run = identity();
    return state;
  }
  const bool has_own_place =
      !request.ssd.empty() && !same_directories(location.directories, request.ssd);
  if (!has_own_place) {
    throw InputError(
        fmt::format("the state in {} belongs to two runs: {} and {}",
                    location.directories[0].string(), to_text(owner), to_text(home_)),
        "give this run " + Setting{"ssd"} +
            " directories of its own, to be filled from there; or, where it is the first one, "
            "moved here, or it alone is to go on, add " +
            Setting{"take_over"});
  }
  if (TrainingRecord::parse(state.point->record.identity.training).workload.processes() > 1)
    throw InputError(
        "a copy of a run of several ranks is gone on with where its stores are in its "
        "own folder, and these are of " +
            to_text(owner),
        "go on with that run itself");
  state.point->foreign = true;
  if (is_own) {
    saved_.store_of = state.point->run.id;
    saved_.id = new_run_id();
    saved_.former_ids.clear();
    save();
  }
  state.note = fmt::format("a copy of {}: from here on a run of its own", to_text(owner));
  return state;
}

StateOfRun find_state(const Directory& folder, const SavedRun& run, const Surroundings& here) {
  if (!run.store || !run.not_resumable.empty()) {
    throw InputError(
        fmt::format("the run in {} has no store {}", folder.path().string(),
                    run.complete ? "any more" : "yet"),
        run.complete ? Message("its weights are there")
                     : "nothing was committed: start it again, or go on with " + Setting{"resume"});
  }
  StateOfRun state{find_resume_point(find_store(*run.store, run.store_ids(), {}, false)), ""};
  const auto& directories = state.point.location.directories;
  const bool inside = std::all_of(directories.begin(), directories.end(), [&](const fs::path& d) {
    return is_really_inside(d, folder.path());
  });
  const auto other = claimed_by(state.point.location, home_of(folder, here), here);
  if (!inside && (!run.store_of.empty() || other))
    state.also_of = to_text(other.value_or(state.point.run.home));
  return state;
}

}  // namespace spillway
