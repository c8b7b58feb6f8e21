// Weights of a model's folder, in up to two shards. The index, the header of a.safetensors and that
// of b.safetensors, with a zero byte after each of the first two; an empty header makes no file, an
// empty index model.safetensors of the first. Data is what the file's last offset asks for, up to
// 64 KiB of ones.
#include "exec/data/checkpoint.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

// The smallest GPT there is.
ModelSpec smallest() {
  ModelSpec model;
  model.name = "smallest";
  model.layers = model.heads = model.kv_heads = 1;
  model.hidden = 2;
  model.ffn = 8;
  model.vocabulary = 3;
  model.positions = 4;
  return model;
}

std::uint64_t data_bytes(const std::string& header) {
  constexpr std::uint64_t most = 1 << 16;
  if (nested_deeper(header, most_nesting)) return 0;
  const auto json = nlohmann::json::parse(header, nullptr, false);
  std::uint64_t end = 0;
  if (!json.is_object()) return 0;
  for (const auto& [name, tensor] : json.items()) {
    if (!tensor.is_object() || !tensor.contains("data_offsets")) continue;
    const auto& offsets = tensor["data_offsets"];
    if (offsets.is_array() && offsets.size() == 2 && offsets[1].is_number_unsigned())
      end = std::max(end, offsets[1].get<std::uint64_t>());
  }
  return std::min(end, most);
}

std::vector<std::uint8_t> file_of(const std::string& header) {
  const std::uint64_t length = header.size();
  std::vector<std::uint8_t> file(sizeof length + length + data_bytes(header), 1);
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, header.data(), length);
  return file;
}

}  // namespace

SPILLWAY_FUZZ_TARGET(checkpoint) {
  static const fuzz::ScratchFolder folder;
  std::string parts[3];
  for (std::size_t part = 0; const std::uint8_t byte : input) {
    if (byte == 0 && part < 2) {
      ++part;
    } else {
      parts[part].push_back(static_cast<char>(byte));
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    std::filesystem::remove(entry.path());
  const bool is_single = parts[0].empty();
  if (!is_single) folder.write(SafetensorsFolder::index_file, fuzz::bytes_of(parts[0]));
  if (!parts[1].empty())
    folder.write(is_single ? SafetensorsFolder::single_file : "a.safetensors", file_of(parts[1]));
  if (!parts[2].empty()) folder.write("b.safetensors", file_of(parts[2]));

  const ModelSpec model = smallest();
  std::unique_ptr<Checkpoint> checkpoint;
  if (!fuzz::accepted([&] { checkpoint = std::make_unique<Checkpoint>(folder.path(), model); }))
    return;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    const auto elements = static_cast<std::uint64_t>(unit_elements(model, unit));
    std::vector<float> values(elements, std::nanf(""));
    fuzz::require(fuzz::accepted([&] { checkpoint->read(unit, 0, elements, values.data()); }),
                  "weights that were accepted are read");
    const auto parameters = static_cast<std::ptrdiff_t>(unit_parameters(model, unit));
    fuzz::require(std::all_of(values.begin(), values.begin() + parameters,
                              [](float value) { return value > 0; }),
                  "every element is from a file");
    fuzz::require(std::all_of(values.begin() + parameters, values.end(),
                              [](float value) { return value == 0; }),
                  "padding is zero");
  }
}
