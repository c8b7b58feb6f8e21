// What PyTorch (float64) says a tiny GPT-2 computes: tests/reference/gpt2_tiny.safetensors, made by
// make_reference.py there.
#pragma once

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "test_paths.hpp"
#include "tests/exec/cpu/gpt_fixture.hpp"

namespace spillway {

// A safetensors file: u64 header length, JSON header, data.
class PyTorchReference {
 public:
  PyTorchReference() {
    std::ifstream file(SPILLWAY_SOURCE_DIR "/tests/reference/gpt2_tiny.safetensors",
                       std::ios::binary);
    REQUIRE(file);
    std::uint64_t length = 0;
    file.read(reinterpret_cast<char*>(&length), sizeof length);
    std::string header(length, ' ');
    file.read(header.data(), static_cast<std::streamsize>(length));
    header_ = nlohmann::json::parse(header);
    data_.assign(std::istreambuf_iterator<char>(file), {});
  }

  template <class Number>
  std::vector<Number> tensor(const std::string& name) const {
    const auto& range = header_.at(name).at("data_offsets");
    const auto begin = range[0].get<std::size_t>(), end = range[1].get<std::size_t>();
    std::vector<Number> values((end - begin) / sizeof(Number));
    std::memcpy(values.data(), data_.data() + begin, end - begin);
    return values;
  }

  double number(const std::string& key) const {
    return std::stod(header_.at("__metadata__").at(key).get<std::string>());
  }
  std::int64_t size(const std::string& key) const { return static_cast<std::int64_t>(number(key)); }

  Problem problem() const {
    return gpt_problem(size("vocabulary"), size("layers"), size("hidden"), size("heads"),
                       size("sequence"), size("batch"), 2);
  }

 private:
  nlohmann::json header_;
  std::vector<char> data_;
};

inline std::vector<TensorLayout> layout_of(const ModelSpec& model, std::size_t unit) {
  return unit < static_cast<std::size_t>(model.layers) ? unit_layout(model, 0)
                                                       : unit_layout(model, embedding_unit(model));
}

inline std::string full_name(const ModelSpec& model, std::size_t unit, std::string_view name) {
  const std::string tensor(name);
  return unit < static_cast<std::size_t>(model.layers) ? "h." + std::to_string(unit) + "." + tensor
                                                       : tensor;
}

inline Units reference_parameters(const PyTorchReference& reference, const ModelSpec& model) {
  Units units = empty_units(model);
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    for (const TensorLayout& tensor : layout_of(model, unit)) {
      const auto values =
          reference.tensor<float>("parameters." + full_name(model, unit, tensor.name));
      REQUIRE(values.size() == static_cast<std::size_t>(tensor.rows * tensor.columns));
      std::copy(values.begin(), values.end(), units[unit].begin() + tensor.offset);
    }
  }
  return units;
}

}  // namespace spillway
