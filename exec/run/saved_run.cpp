#include "exec/run/saved_run.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "base/errors.hpp"
#include "base/new_file.hpp"
#include "base/text.hpp"
#include "policies/machine/drive_sets.hpp"
#include "policies/workload/json_number.hpp"

namespace spillway {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

constexpr int format = 3;
constexpr std::uint64_t longest_file = std::uint64_t{16} << 20;
constexpr const auto& path_options = drive_set_names;  // options whose paths may lie in the folder

std::string to_saved(const fs::path& path, const fs::path& folder) {
  return is_inside(path, folder) ? path.lexically_relative(folder).string() : path.string();
}

fs::path from_saved(const std::string& text, const fs::path& folder) {
  if (text.empty() || text.find('\0') != std::string::npos)
    throw InputError("a directory without a name, or with a zero byte in it");
  const fs::path path(text);
  return path.is_absolute() ? path : (folder / path).lexically_normal();
}

// Of a list of paths separated by commas.
template <typename Change>
std::string each_path(const std::string& list, const Change& change) {
  std::string result;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');)
    result += (result.empty() ? "" : ",") + change(part);
  return result;
}

RunId id_in(const ordered_json& json) {
  RunId id = json;
  if (!is_run_id(id)) throw InputError(fmt::format("\"{}\" is no run's id", id));
  return id;
}

}  // namespace

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_normal().lexically_relative(folder.lexically_normal());
  return !relative.empty() && *relative.begin() != ".." && relative != ".";
}

SavedRun parse_saved_run(const std::string& text, const fs::path& folder,
                         const std::string& origin) {
  try {
    if (nested_deeper(text, most_nesting)) throw InputError("its values are nested too deeply");
    const ordered_json json = ordered_json::parse(text);
    const int written =
        json.contains("format") ? whole_number<int>(json, "format", origin + " is damaged") : 1;
    if (written != format) {
      throw InputError(
          fmt::format("{} was written by {} version of Spillway: it is of format {}, and this "
                      "version reads format {}",
                      origin, written < format ? "an earlier" : "a later", written, format),
          "go on with the run by the version that began it; this one reads its weights "
          "(model.safetensors), but not its state");
    }
    SavedRun run;
    run.id = id_in(json.at("id"));
    for (const ordered_json& id : json.value("former_ids", ordered_json::array()))
      run.former_ids.push_back(id_in(id));
    const ordered_json& home = json.at("home");
    const auto number = [&](const char* key) {
      return whole_number<std::uint64_t>(home, key, origin + " is damaged");
    };
    run.home = {home.at("host"), home.at("path"), number("file_system"), number("inode")};
    json.at("options").get_to(run.options);
    for (const char* const option : path_options) {
      const auto paths = run.options.find(option);
      if (paths == run.options.end()) continue;
      for (std::string& list : paths->second)
        list =
            each_path(list, [&](const std::string& p) { return from_saved(p, folder).string(); });
    }
    run.complete = json.at("complete");
    run.not_resumable = json.value("not_resumable", "");
    if (const ordered_json& store = json.at("store"); !store.is_null()) {
      run.store.emplace();
      for (const ordered_json& directory : store.at("directories"))
        run.store->directories.push_back(from_saved(directory.get<std::string>(), folder));
      if (run.store->directories.empty() || run.store->directories.size() > most_directories)
        throw InputError("its store has no directory, or too many");
      run.store->generation =
          whole_number<std::uint64_t>(store, "generation", origin + " is damaged");
      if (store.contains("of")) run.store_of = id_in(store.at("of"));
    }
    return run;
  } catch (const nlohmann::json::exception& error) {
    throw InputError(fmt::format("{} is damaged: {}", origin, error.what()),
                     "the state itself may be whole: `spillway store inspect` its SSD directory");
  } catch (const InputError& error) {
    if (!error.hint().empty()) throw;
    throw InputError(fmt::format("{} is damaged: {}", origin, error.what()),
                     "the state itself may be whole: `spillway store inspect` its SSD directory");
  }
}

std::string saved_run_text(const SavedRun& run, const fs::path& folder) {
  ordered_json json = {{"format", format}, {"id", run.id}};
  if (!run.former_ids.empty()) json["former_ids"] = run.former_ids;
  json["home"] = {{"host", run.home.host},
                  {"path", run.home.path},
                  {"file_system", run.home.file_system},
                  {"inode", run.home.inode}};
  auto options = run.options;
  for (const char* const option : path_options) {
    const auto paths = options.find(option);
    if (paths == options.end()) continue;
    for (std::string& list : paths->second)
      list = each_path(list, [&](const std::string& p) { return to_saved(p, folder); });
  }
  json["options"] = options;
  json["complete"] = run.complete;
  if (!run.not_resumable.empty()) json["not_resumable"] = run.not_resumable;
  json["store"] = nullptr;
  if (run.store) {
    ordered_json directories = ordered_json::array();
    for (const fs::path& directory : run.store->directories)
      directories.push_back(to_saved(directory, folder));
    json["store"] = {{"directories", directories}, {"generation", run.store->generation}};
    if (!run.store_of.empty()) json["store"]["of"] = run.store_of;
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::vector<RunId> SavedRun::store_ids() const {
  if (!store_of.empty()) return {store_of};
  std::vector<RunId> ids = former_ids;
  ids.push_back(id);
  return ids;
}

SavedRun SavedRun::load(const Directory& folder) {
  const std::optional<std::string> text = folder.read(saved_run_file, longest_file);
  if (!text) {
    throw InputError(fmt::format("there is no run in {} ({} is missing)", folder.path().string(),
                                 saved_run_file),
                     "name the folder of a run: " + Setting{"run", "DIR"});
  }
  return parse_saved_run(*text, folder.path(), folder.path_of(saved_run_file).string());
}

void SavedRun::save(const Directory& folder) const {
  NewFile file({folder, saved_run_file}, 0600);
  const std::string text = saved_run_text(*this, folder.path());
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  folder.sync();
}

}  // namespace spillway
