#include "exec/data/model_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "base/errors.hpp"
#include "exec/data/safetensors.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "policies/model/hugging_face_tensors.hpp"

namespace spillway {

namespace {

// In the order of the forward pass.
std::vector<HuggingFaceTensor> all_tensors(const ModelSpec& model) {
  std::vector<HuggingFaceTensor> all = hugging_face_tensors(model, embedding_unit(model));
  const auto add = [&](std::int64_t unit) {
    for (HuggingFaceTensor& tensor : hugging_face_tensors(model, unit))
      all.push_back(std::move(tensor));
  };
  for (std::int64_t layer = 0; layer < model.layers; ++layer) add(layer);
  if (head_unit(model) != embedding_unit(model)) add(head_unit(model));
  return all;
}

std::uint64_t bytes_in_file(const HuggingFaceTensor& tensor, ElementType type) {
  return static_cast<std::uint64_t>(tensor.tensor.elements()) * bytes_of(type);
}

class WeightWriter {
 public:
  WeightWriter(const WeightValues& values, const WeightFiles& files)
      : values_(values), files_(files), transposed_(files.strip_bytes) {}

  void write(const FilePlace& place, std::span<const HuggingFaceTensor> tensors,
             std::map<std::string, std::string> metadata = {}) {
    metadata.insert({{"format", "pt"}, {"producer", "spillway"}});
    std::vector<SafetensorsTensor> described;
    for (const HuggingFaceTensor& tensor : tensors)
      described.push_back({tensor.name, tensor.shape, files_.type});
    write_safetensors(
        place, described,
        [&](std::size_t index, std::uint64_t offset, std::span<std::byte> piece) {
          fill(tensors[index], offset, piece);
          done_ += piece.size();
          if (files_.progress) files_.progress(done_, all_);
        },
        metadata, &only_an_export());
  }
  void set_total(std::uint64_t bytes) { all_ = bytes; }

 private:
  void fill(const HuggingFaceTensor& tensor, std::uint64_t offset, std::span<std::byte> piece) {
    const std::uint64_t width = bytes_of(files_.type);
    const auto first = static_cast<std::int64_t>(offset / width);
    const auto count = static_cast<std::int64_t>(piece.size() / width);
    some_.resize(static_cast<std::size_t>(count));
    const auto read = [&](std::int64_t from, std::int64_t some, float* to) {
      values_(tensor.unit, static_cast<std::uint64_t>(tensor.tensor.offset + from),
              static_cast<std::uint64_t>(some), to);
    };
    if (tensor.transposed) {
      const std::int64_t rows = tensor.tensor.rows, columns = tensor.tensor.columns;
      const auto row = [&](std::int64_t r, std::int64_t begin, std::int64_t some, float* to) {
        read(r * columns + begin, some, to);
      };
      transposed_.read(&tensor, rows, columns, row, first, count, some_.data());
    } else {
      read(first, count, some_.data());
    }
    narrow(files_.type, some_.data(), some_.size(), piece.data());
  }

  const WeightValues& values_;
  const WeightFiles& files_;
  std::uint64_t done_ = 0, all_ = 0;
  std::vector<float> some_;
  TransposedMatrix transposed_;
};

}  // namespace

const ReplaceOnly& only_an_export() {
  static const ReplaceOnly only = {"weights of Spillway's", [](std::span<const std::byte> head) {
                                     const std::string_view text(
                                         reinterpret_cast<const char*>(head.data()), head.size());
                                     return text.find("\"producer\":\"spillway\"") < 256;
                                   }};
  return only;
}

void write_adapter(const FilePlace& place, const ModelSpec& model, const WeightValues& values,
                   ElementType type, std::uint64_t frozen_hash) {
  std::vector<HuggingFaceTensor> all;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    for (HuggingFaceTensor& tensor : adapter_tensors(model, layer))
      all.push_back(std::move(tensor));
  }
  WeightFiles files;
  files.type = type;
  WeightWriter(values, files)
      .write(place, all, {{frozen_hash_key, fmt::format("{:016x}", frozen_hash)}});
}

std::size_t write_weights(const Directory& folder, const ModelSpec& model,
                          const WeightValues& values, const WeightFiles& files) {
  const std::vector<HuggingFaceTensor> tensors = all_tensors(model);
  std::vector<std::size_t> begins;  // of each file, in tensors
  std::uint64_t in_file = 0, total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_in_file(tensors[i], files.type);
    if (i == 0 || in_file + bytes > files.most_bytes) {
      begins.push_back(i);
      in_file = 0;
    }
    in_file += bytes;
    total += bytes;
  }
  begins.push_back(tensors.size());
  const std::size_t count = begins.size() - 1;
  WeightWriter writer(values, files);
  writer.set_total(total);
  nlohmann::json index = {{"metadata", {{"total_size", total}}}};
  for (std::size_t i = 0; i < count; ++i) {
    const std::string name = count == 1
                                 ? SafetensorsFolder::single_file
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
    const auto some = std::span(tensors).subspan(begins[i], begins[i + 1] - begins[i]);
    writer.write({folder, name}, some);
    for (const HuggingFaceTensor& tensor : some) index["weight_map"][tensor.name] = name;
  }
  if (count > 1) {
    NewFile file({folder, SafetensorsFolder::index_file});
    const std::string text = index.dump(2) + "\n";
    file.write(std::as_bytes(std::span(text)));
    file.commit();
  }
  return count;
}

bool is_weights_name(const std::string& name) {
  if (name == SafetensorsFolder::single_file || name == SafetensorsFolder::index_file) return true;
  const std::string form = "model-#####-of-#####.safetensors";
  return std::equal(name.begin(), name.end(), form.begin(), form.end(), [](char c, char wanted) {
    return wanted == '#' ? c >= '0' && c <= '9' : c == wanted;
  });
}

void remove_weights(const Directory& folder) {
  const auto remove = [&](const std::string& name) {
    if (!folder.status(name)) return;
    if (name != SafetensorsFolder::index_file) require_new_file({folder, name}, &only_an_export());
    if (!folder.remove(name))
      throw MachineError("cannot remove " + folder.path_of(name).string(), "remove it by hand");
  };
  remove(SafetensorsFolder::index_file);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (is_weights_name(entry.path().filename().string()))
      names.push_back(entry.path().filename().string());
  for (const std::string& name : names) remove(name);
}

}  // namespace spillway
