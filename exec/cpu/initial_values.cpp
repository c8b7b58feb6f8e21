#include "exec/cpu/initial_values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "policies/model/units.hpp"

namespace spillway {

namespace {

using Words = std::array<std::uint32_t, 4>;

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Words philox(Words counter, std::uint64_t key) {
  auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0,
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1,
               static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Where a group of four values comes from.
struct Source {
  std::uint64_t seed;
  std::int64_t unit;
  std::uint32_t stream;  // 0: the model itself; 1: adapters
};

Words random_words(const Source& source, std::int64_t group) {
  const auto index = static_cast<std::uint64_t>(group);
  return philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                 static_cast<std::uint32_t>(source.unit), source.stream},
                source.seed);
}

// In (0, 1).
double uniform(std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }

// Standard normal values, by Box and Muller in double.
std::array<double, 4> normals(const Words& words) {
  std::array<double, 4> values{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(words[pair + 1]) * 0x1p-32;
    const double radius = std::sqrt(-2 * std::log(uniform(words[pair])));
    values[pair] = radius * std::cos(angle);
    values[pair + 1] = radius * std::sin(angle);
  }
  return values;
}

double standard_deviation(const TensorLayout& tensor, const ModelSpec& model) {
  constexpr double usual = 0.02;
  constexpr std::string_view into_residual[] = {"attn.c_proj.weight", "mlp.c_proj.weight",
                                                "self_attn.o_proj.weight", "mlp.down_proj.weight"};
  const bool is_into_residual = std::ranges::count(into_residual, tensor.name) > 0;
  return is_into_residual ? usual / std::sqrt(2.0 * static_cast<double>(model.layers)) : usual;
}

// Values between -1 and 1.
std::array<double, 4> uniforms(const Words& words) {
  std::array<double, 4> values{};
  for (std::size_t i = 0; i < 4; ++i) values[i] = 2 * uniform(words[i]) - 1;
  return values;
}

// Elements [begin, end) of the source's stream, times `factor`; values points to element `begin`.
void fill(const Source& source, std::array<double, 4> (*distribution)(const Words&),
          std::int64_t begin, std::int64_t end, double factor, float* values) {
  for (std::int64_t group = begin / 4; group * 4 < end; ++group) {
    const auto four = distribution(random_words(source, group));
    for (std::int64_t element = std::max(begin, group * 4); element < std::min(end, group * 4 + 4);
         ++element) {
      values[element - begin] =
          static_cast<float>(factor * four[static_cast<std::size_t>(element - group * 4)]);
    }
  }
}

}  // namespace

void initial_values(const ModelSpec& model, std::int64_t unit, std::uint64_t seed,
                    std::int64_t first_element, std::int64_t elements, float* values) {
  std::fill_n(values, elements, 0.0f);
  // The model itself has the values that it has without adapters, which lie before it.
  const std::int64_t base = model.has_adapters() ? trained_elements(model, unit) : 0;
  for (const TensorLayout& tensor : unit_layout(model, unit)) {
    const std::int64_t begin = std::max(tensor.offset, first_element);
    const std::int64_t end =
        std::min(tensor.offset + tensor.rows * tensor.columns, first_element + elements);
    if (begin >= end) continue;
    float* part = values + (begin - first_element);
    if (model.has_adapters() && tensor.trained) {
      if (!tensor.name.ends_with(".lora_A.weight")) continue;
      const double bound = 1 / std::sqrt(static_cast<double>(tensor.columns));
      fill({seed, unit, 1}, uniforms, begin, end, bound, part);
    } else if (tensor.decay) {  // a matrix or a table
      fill({seed, unit, 0}, normals, begin - base, end - base, standard_deviation(tensor, model),
           part);
    } else if (tensor.name.ends_with(".weight")) {  // of a norm
      std::fill_n(part, end - begin, 1.0f);
    }
  }
}

void initial_values(const ModelSpec& model, std::int64_t unit, std::uint64_t seed, float* values) {
  initial_values(model, unit, seed, 0, unit_elements(model, unit), values);
}

}  // namespace spillway
