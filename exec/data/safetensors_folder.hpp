// The tensors of a model's folder: of model.safetensors, or of the shards that
// model.safetensors.index.json lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "exec/data/safetensors.hpp"

namespace spillway {

class SafetensorsFolder {
 public:
  static constexpr const char* single_file = "model.safetensors";
  static constexpr const char* index_file = "model.safetensors.index.json";

  // Opens all files and checks their headers, that each tensor is in one file only, and that index
  // and files agree. Throws InputError naming the file and what is wrong with it, or what a folder
  // without weights lacks.
  explicit SafetensorsFolder(const std::filesystem::path& folder);
  // The same of a folder whose tensors are all in the one file of that name.
  SafetensorsFolder(const std::filesystem::path& folder, const std::string& file);

  // Whether the folder has one of the two files; its weights may still not be readable.
  static bool has_weights(const std::filesystem::path& folder);
  // The file that a folder with weights is read from: the only one, or the index.
  static std::filesystem::path file_in(const std::filesystem::path& folder);

  struct Place {
    std::size_t file = 0;  // of files()
    SafetensorsFile::Tensor tensor;
  };
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::map<std::string, Place>& tensors() const { return tensors_; }
  // XXH3 of all headers, and with them of names, shapes and places of all tensors.
  std::uint64_t hash() const;

 private:
  void add(const std::filesystem::path& file);
  void open_shards(const std::filesystem::path& index);

  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place> tensors_;
};

}  // namespace spillway
