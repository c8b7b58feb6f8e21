#include "policies/model/model_folder.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "policies/model/hugging_face.hpp"

namespace spillway {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t longest_config = std::uint64_t{1} << 20, longest_reference = 200;

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// A path in which ~ is the home folder, as huggingface_hub reads it; nothing without one.
std::optional<fs::path> expanded(const std::string& path) {
  if (path != "~" && !path.starts_with("~/")) return path;
  const std::string home = variable("HOME");
  if (home.empty()) return std::nullopt;
  return home + path.substr(1);
}

// Where huggingface_hub keeps what it has downloaded; nothing where it would be found only relative
// to where the program happens to run.
std::optional<fs::path> cache_folder() {
  if (const std::string cache = variable("HF_HUB_CACHE"); !cache.empty()) return expanded(cache);
  std::optional<fs::path> home = expanded("~/.cache/huggingface");
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    home = expanded(cache + "/huggingface");
  if (const std::string named = variable("HF_HOME"); !named.empty()) home = expanded(named);
  return home ? std::optional(*home / "hub") : std::nullopt;
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// "name" or "organisation/name", of letters, digits, "-", "_" and ".", as Hugging Face has them.
bool is_repository(const std::string& name) {
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '-' &&
           part.find("..") == std::string_view::npos &&
           std::all_of(part.begin(), part.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == '.';
           });
  };
  const std::size_t slash = name.find('/');
  if (slash == std::string::npos) return is_part(name);
  return is_part(std::string_view(name).substr(0, slash)) &&
         is_part(std::string_view(name).substr(slash + 1));
}

// The snapshot of a repository's branch main that was downloaded.
std::optional<ModelFolder> find_snapshot(const std::string& name, std::vector<std::string>* tried) {
  std::string folder = "models--" + name;
  if (const std::size_t slash = folder.find('/'); slash != std::string::npos)
    folder.replace(slash, 1, "--");
  const std::optional<fs::path> cache = cache_folder();
  if (!cache) return std::nullopt;
  const fs::path repository = *cache / folder;
  const auto absent = [&](const fs::path& path) -> std::optional<ModelFolder> {
    if (tried != nullptr) tried->push_back(path.string());
    return std::nullopt;
  };
  const fs::path reference = repository / "refs" / "main";
  if (!is_file(reference)) return absent(reference);
  std::string revision = read_file(reference, longest_reference);
  while (!revision.empty() && (revision.back() == '\n' || revision.back() == '\r'))
    revision.pop_back();
  // One name, not a way to somewhere else.
  if (!is_repository(revision) || revision.find('/') != std::string::npos) return absent(reference);
  const fs::path snapshot = repository / "snapshots" / revision;
  if (!is_file(snapshot / hugging_face_config_file))
    return absent(snapshot / hugging_face_config_file);
  const std::size_t slash = name.find('/');
  return ModelFolder{snapshot, slash == std::string::npos ? name : name.substr(slash + 1)};
}

}  // namespace

std::optional<ModelFolder> find_model_folder(const std::string& name_or_path,
                                             std::vector<std::string>* tried) {
  for (const ModelSpec& model : builtin_models())
    if (model.name == name_or_path) return std::nullopt;
  std::error_code error;
  if (is_file(name_or_path)) return std::nullopt;
  if (!fs::is_directory(name_or_path, error))
    return is_repository(name_or_path) ? find_snapshot(name_or_path, tried) : std::nullopt;
  const fs::path path = fs::canonical(name_or_path, error);
  if (error || !is_file(path / hugging_face_config_file)) {
    throw InputError(name_or_path, 0, "is a directory without a config.json",
                     "name a TOML file in it, or the folder of a model from Hugging Face");
  }
  return ModelFolder{path, path.filename().string()};
}

std::string name_in_cache(const fs::path& folder) {
  std::error_code error;
  const fs::path path = fs::canonical(folder, error);
  const fs::path repository = path.parent_path().parent_path();
  std::string name = repository.filename().string();
  if (error || path.parent_path().filename() != "snapshots" || !name.starts_with("models--"))
    return "";
  name.erase(0, std::string_view("models--").size());
  if (const std::size_t dashes = name.find("--"); dashes != std::string::npos)
    name.replace(dashes, 2, "/");
  const auto found = is_repository(name) ? find_snapshot(name, nullptr) : std::nullopt;
  return found && fs::canonical(found->path, error) == path && !error ? name : "";
}

ModelSpec read_model_folder(const ModelFolder& folder) {
  const fs::path config = folder.path / hugging_face_config_file;
  return parse_hugging_face_config(read_file(config, longest_config), config.string(), folder.name);
}

}  // namespace spillway
