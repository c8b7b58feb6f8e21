#include "exec/run/kept_checkpoints.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/errors.hpp"
#include "base/new_folder.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/run/run_export.hpp"
#include "policies/model/peft.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr const char* prefix = "step-";
constexpr const char* removed = ".removed";

struct GivenUp {};

fs::path folder_of(const fs::path& run) { return run / KeptCheckpoints::folder_name; }

std::string name_of_step(std::int64_t step) { return fmt::format("{}{:06}", prefix, step); }

std::optional<std::int64_t> step_in(const std::string& name) {
  if (!name.starts_with(prefix)) return {};
  const char* const begin = name.data() + std::string_view(prefix).size();
  const char* const end = name.data() + name.size();
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  const bool is_one = error == std::errc() && stop == end && step > 0;
  return is_one && name == name_of_step(step) ? std::optional(step) : std::nullopt;
}

}  // namespace

fs::path kept_folder(const fs::path& run, std::int64_t step) {
  return folder_of(run) / name_of_step(step);
}

bool is_kept(const fs::path& run, std::int64_t step) {
  const fs::path folder = kept_folder(run, step);
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(folder, ignored)) &&
         (SafetensorsFolder::has_weights(folder) ||
          fs::exists(folder / adapter_weights_file, ignored));
}

std::vector<std::int64_t> kept_steps(const fs::path& run) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator entry(folder_of(run), error), end; !error && entry != end;
       entry.increment(error)) {
    const auto step = step_in(entry->path().filename().string());
    if (step && is_kept(run, *step)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

KeptCheckpoints::KeptCheckpoints(const fs::path& run, KeepRule rule, RingFactory make_ring)
    : run_(run), rule_(rule), make_ring_(std::move(make_ring)) {
  SPILLWAY_ASSERT(rule_.most > 0 && rule_.every > 0);
  const Directory folder(run_);
  if (::mkdirat(folder.descriptor(), folder_name, 0777) != 0 && errno != EEXIST)
    throw MachineError::from_errno("cannot create " + folder_of(run_).string(), errno);
  folder.sync();
  // Refuses a link. The run is locked: what was being written or removed there is nobody's now.
  const Directory kept(folder, folder_name);
  remove_unfinished_folders(kept, name_of_step(0));
  std::error_code ignored;
  fs::remove_all(folder_of(run_) / removed, ignored);
  thread_ = std::thread([this] { main(); });
}

KeptCheckpoints::~KeptCheckpoints() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KeptCheckpoints::committed(std::int64_t step) {
  if (step == 0 || step % rule_.every != 0) return;
  const std::lock_guard lock(mutex_);
  if (held_ || is_kept(run_, step)) return;
  lock_ = ExportLock::to_read(Directory(run_));
  held_ = step;
  changed_.notify_all();
}

void KeptCheckpoints::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !held_; });
}

std::optional<std::int64_t> KeptCheckpoints::writing() {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::vector<KeptStep> KeptCheckpoints::news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, {});
}

void KeptCheckpoints::main() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ending_ || held_; });
    if (ending_) return;
    const std::int64_t step = *held_;
    lock.unlock();
    std::optional<KeptStep> kept;
    try {
      kept = keep(step);
    } catch (const GivenUp&) {
    }
    lock.lock();
    if (kept) news_.push_back(std::move(*kept));
    held_.reset();
    lock_.reset();
    changed_.notify_all();
  }
}

KeptStep KeptCheckpoints::keep(std::int64_t step) {
  KeptStep kept{step, kept_folder(run_, step), ""};
  try {
    std::error_code ignored;
    fs::remove(kept.folder, ignored);  // where it is there, but empty
    RunExport request;
    request.run = run_.string();
    request.step = step;
    request.out = kept.folder;
    request.make_ring = make_ring_;
    request.files.progress = request.checking = [this](std::uint64_t, std::uint64_t) {
      const std::lock_guard lock(mutex_);
      if (ending_) throw GivenUp();
    };
    export_run(request);
    remove_oldest();
  } catch (const std::exception& error) {
    kept.error = error.what();
  }
  return kept;
}

// Under another name first, so that what is left of one by a crash is not taken for one.
void KeptCheckpoints::remove_oldest() {
  std::vector<std::int64_t> steps = kept_steps(run_);
  const Directory folder(folder_of(run_));
  for (; steps.size() > static_cast<std::size_t>(rule_.most); steps.erase(steps.begin())) {
    std::error_code ignored;
    fs::remove_all(folder.path_of(removed), ignored);
    folder.rename(name_of_step(steps.front()), removed);
    fs::remove_all(folder.path_of(removed), ignored);
  }
}

}  // namespace spillway
