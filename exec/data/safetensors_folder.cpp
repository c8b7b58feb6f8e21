#include "exec/data/safetensors_folder.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/directory.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t longest_index = std::uint64_t{64} << 20;
constexpr const char* again =
    "a file may be missing or of another model: download the folder again";

// Names of files by the name of the tensor that is in them.
std::map<std::string, std::string> read_index(const fs::path& index) {
  const std::string text = read_file(index, longest_index);
  const auto refuse = [&](const std::string& what) {
    throw InputError(index.string() + ": " + what, again);
  };
  if (nested_deeper(text, most_nesting)) refuse("it is nested too deeply");
  json parsed;
  try {
    parsed = json::parse(text);
  } catch (const json::exception& error) {
    refuse(std::string("it is not JSON: ") + error.what());
  }
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object())
    refuse("it has no weight_map");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : parsed["weight_map"].items()) {
    if (!file.is_string()) refuse("the file of tensor " + printable(tensor) + " is not text");
    const std::string name = file.get<std::string>();
    // A name in this folder, and nothing that leads out of it.
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      refuse(fmt::format("tensor {} is said to be in {}, which is no file in this folder",
                         printable(tensor), printable(name)));
    files[tensor] = name;
  }
  if (files.empty()) refuse("its weight_map is empty");
  return files;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

}  // namespace

bool SafetensorsFolder::has_weights(const fs::path& folder) {
  return is_there(folder / single_file) || is_there(folder / index_file);
}

fs::path SafetensorsFolder::file_in(const fs::path& folder) {
  return folder / (is_there(folder / single_file) ? single_file : index_file);
}

SafetensorsFolder::SafetensorsFolder(const fs::path& folder) {
  // Where both are there, transformers reads the single file.
  if (is_there(folder / single_file)) {
    add(folder / single_file);
  } else if (is_there(folder / index_file)) {
    open_shards(folder / index_file);
  } else if (is_there(folder / "pytorch_model.bin") ||
             is_there(folder / "pytorch_model.bin.index.json")) {
    throw InputError(
        folder.string() + " has its weights in pytorch_model.bin, which can run any program",
        "convert them to safetensors first: in Python, "
        "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)");
  } else {
    throw InputError(
        fmt::format("there are no weights in {}: neither {} nor {}", folder.string(), single_file,
                    index_file),
        "download them, or add " + Setting{"random_weights"} + " to begin with random values");
  }
}

SafetensorsFolder::SafetensorsFolder(const fs::path& folder, const std::string& file) {
  if (!is_there(folder / file))
    throw InputError(fmt::format("there is no {} in {}", file, folder.string()),
                     "name the folder that it was saved to");
  add(folder / file);
}

void SafetensorsFolder::add(const fs::path& path) {
  files_.emplace_back(path);
  for (const SafetensorsFile::Tensor& tensor : files_.back().tensors()) {
    const auto [place, added] = tensors_.try_emplace(tensor.name, Place{files_.size() - 1, tensor});
    if (added) continue;
    throw InputError(fmt::format("tensor {} is in {} and in {}", printable(tensor.name),
                                 files_[place->second.file].path().string(), path.string()),
                     again);
  }
}

void SafetensorsFolder::open_shards(const fs::path& index) {
  const std::map<std::string, std::string> listed = read_index(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : listed) names.insert(file);
  std::string absent;
  for (const std::string& name : names) {
    if (!is_there(index.parent_path() / name))
      absent += (absent.empty() ? "" : ", ") + printable(name);
  }
  if (!absent.empty())
    throw InputError(fmt::format("{} lists files that are not there: {}", index.string(), absent),
                     again);
  for (const std::string& name : names) add(index.parent_path() / name);
  for (const auto& [tensor, file] : listed) {
    const auto found = tensors_.find(tensor);
    if (found != tensors_.end() && files_[found->second.file].path().filename() == file) continue;
    throw InputError(
        fmt::format("{} says that tensor {} is in {}: it is {}", index.string(), printable(tensor),
                    printable(file),
                    found == tensors_.end() ? "in none of the files"
                                            : "in " + files_[found->second.file].path().string()),
        again);
  }
  for (const auto& [name, place] : tensors_) {
    if (listed.contains(name)) continue;
    throw InputError(
        fmt::format("{} has a tensor {}, which {} does not list",
                    files_[place.file].path().string(), printable(name), index.string()),
        again);
  }
}

std::uint64_t SafetensorsFolder::hash() const {
  std::vector<std::uint64_t> hashes;
  for (const SafetensorsFile& file : files_) hashes.push_back(file.header_hash());
  return XXH3_64bits(hashes.data(), hashes.size() * sizeof(std::uint64_t));
}

}  // namespace spillway
