#include "cli/saved_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/errors.hpp"
#include "cli/output.hpp"
#include "exec/file_descriptor.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

void sync(const fs::path& path, int flags) {
  const FileDescriptor file(::open(path.c_str(), flags | O_CLOEXEC));
  // EINVAL: a file system whose folders cannot be synced, and need not be.
  if (!file.valid() || (::fsync(file.get()) != 0 && errno != EINVAL)) {
    throw MachineError::from_errno("cannot sync " + path.string(), errno);
  }
}

// Of one path or several, separated by commas; what is not there is no path (a built-in name).
std::string absolute_paths(const std::string& text) {
  std::string result;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    std::error_code ignored;
    if (fs::exists(part, ignored)) part = fs::absolute(part).string();
    result += (result.empty() ? "" : ",") + part;
  }
  return result;
}

}  // namespace

SavedRun SavedRun::load(const fs::path& folder) {
  const fs::path file = folder / saved_run_file;
  std::ifstream in(file);
  if (!in) {
    throw InputError(fmt::format("--resume: there is no run in {} ({} is missing)", folder.string(),
                                 saved_run_file),
                     "name the folder of the run to go on with: --run DIR");
  }
  try {
    const ordered_json json = ordered_json::parse(in);
    SavedRun run;
    json.at("options").get_to(run.options);
    run.complete = json.at("complete");
    run.not_resumable = json.value("not_resumable", "");
    if (const ordered_json& store = json.at("store"); !store.is_null()) {
      run.store.emplace();
      for (const ordered_json& directory : store.at("directories"))
        run.store->directories.emplace_back(directory.get<std::string>());
      run.store->generation = store.at("generation");
    }
    return run;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{} is damaged: {}", file.string(), error.what()),
                     "the state itself may be whole: `spillway store inspect` its SSD directory");
  }
}

void SavedRun::save(const fs::path& folder) const {
  ordered_json json;
  json["options"] = options;
  json["complete"] = complete;
  json["store"] = nullptr;
  if (!not_resumable.empty()) json["not_resumable"] = not_resumable;
  if (store) {
    ordered_json directories = ordered_json::array();
    for (const fs::path& directory : store->directories) directories.push_back(directory.string());
    json["store"] = {{"directories", directories}, {"generation", store->generation}};
  }
  const fs::path file = folder / saved_run_file, next = folder / "run.json.new";
  write_file(next.string(), json.dump(2) + "\n");
  sync(next, O_RDONLY);
  std::error_code error;
  fs::rename(next, file, error);
  if (error) throw MachineError::from_errno("cannot write " + file.string(), error.value());
  sync(folder, O_RDONLY | O_DIRECTORY);
  sync(fs::absolute(folder).lexically_normal().parent_path(), O_RDONLY | O_DIRECTORY);
}

std::map<std::string, std::vector<std::string>> options_given(
    const CLI::App& command, const std::vector<std::string>& without,
    const std::vector<std::string>& paths) {
  const auto among = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::map<std::string, std::vector<std::string>> given;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_single_name();
    if (option->count() == 0 || name == "help" || among(without, name)) continue;
    std::vector<std::string> values = option->results();
    for (std::string& value : values) {
      if (among(paths, name)) value = absolute_paths(value);
    }
    given[name] = std::move(values);
  }
  return given;
}

void apply_saved(CLI::App& command, const SavedRun& saved) {
  for (const auto& [name, values] : saved.options) {
    CLI::Option* const option = command.get_option_no_throw("--" + name);
    if (option == nullptr || option->count() > 0 || values.empty()) continue;
    option->add_result(values);
    option->run_callback();
  }
}

}  // namespace spillway::cli
