#include "cli/run_folder.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "base/errors.hpp"
#include "cli/saved_run.hpp"

namespace spillway::cli {

namespace fs = std::filesystem;

fs::path nearest_existing(const fs::path& path) {
  std::error_code ignored;
  fs::path existing = fs::absolute(path).lexically_normal();
  while (!fs::exists(existing, ignored) && existing.has_relative_path())
    existing = existing.parent_path();
  return existing;
}

RunFolder::RunFolder(const std::string& path, const std::string& model_name) {
  folder_ = path.empty() ? fs::path("runs") / fmt::format("{}-{:%Y%m%d-%H%M%S}", model_name,
                                                          fmt::localtime(std::time(nullptr)))
                         : fs::path(path);
  exists_ = nearest_existing(folder_);
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error)) {
    throw InputError(fmt::format("--run {}: this is not a folder", folder_.string()),
                     "name a new folder");
  }
  if (fs::exists(folder_, error) && !fs::is_empty(folder_, error)) {
    throw InputError(fmt::format("--run {}: the folder is not empty", folder_.string()),
                     "each run has a folder of its own: name a new one, or remove this one");
  }
  fs::create_directories(folder_, error);
  if (error) {
    throw InputError(fmt::format("--run {}: {}", folder_.string(), error.message()),
                     "name a folder that can be written");
  }
}

RunFolder RunFolder::open(const std::string& path) {
  RunFolder folder;
  folder.folder_ = path;
  folder.keep_ = true;
  return folder;
}

RunFolder::RunFolder(RunFolder&& other) noexcept
    : folder_(std::move(other.folder_)), exists_(std::move(other.exists_)), keep_(other.keep_) {
  other.keep_ = true;
}

RunFolder::~RunFolder() {
  if (keep_) return;
  std::error_code ignored;
  for (const char* name : {metrics, machine, model, saved_run_file, ssd})
    fs::remove(folder_ / name, ignored);  // ssd: if empty
  // Upwards as far as this run created folders; one that something else has been put in stays, as
  // do those above.
  for (fs::path folder = fs::absolute(folder_).lexically_normal(); folder != exists_;
       folder = folder.parent_path()) {
    if (!folder.has_filename()) continue;  // a trailing slash
    if (!fs::remove(folder, ignored)) return;
  }
}

fs::path RunFolder::make_ssd_folder() {
  const fs::path folder = folder_ / ssd;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    throw MachineError::from_errno(fmt::format("cannot create {}", folder.string()), error.value());
  return folder;
}

}  // namespace spillway::cli
