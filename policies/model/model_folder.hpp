// Models in folders as Hugging Face lays them out, with a config.json: named by path, or by their
// name on Hugging Face ("Qwen/Qwen2.5-0.5B") where its tools have downloaded them before. Nothing
// is ever downloaded here.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

struct ModelFolder {
  std::filesystem::path path;
  std::string name;  // of the model: the folder's, or its name on Hugging Face
};

// The folder that `name_or_path` stands for; nothing where there is none, a file has that name, or
// a built-in model has (./NAME is the folder). Where it could be a name on Hugging Face, `tried`
// (may be null) is given the places of its cache that were looked at. Throws InputError where it is
// a folder without a config.json.
std::optional<ModelFolder> find_model_folder(const std::string& name_or_path,
                                             std::vector<std::string>* tried = nullptr);

// The name on Hugging Face for which find_model_folder() gives this folder of the cache; empty
// where there is none.
std::string name_in_cache(const std::filesystem::path& folder);

// The model that a folder's config.json describes. Throws InputError.
ModelSpec read_model_folder(const ModelFolder& folder);

}  // namespace spillway
