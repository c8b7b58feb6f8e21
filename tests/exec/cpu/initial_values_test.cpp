// Initial values: distribution, constants, and independence of order and pieces.
#include "exec/cpu/initial_values.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "policies/model/units.hpp"

using namespace spillway;

namespace {

ModelSpec small_model() {
  ModelSpec model;
  model.layers = 8;
  model.hidden = 64;
  model.heads = model.kv_heads = 4;
  model.ffn = 256;
  model.vocabulary = 300;
  model.positions = 128;
  return model;
}

std::vector<float> unit_values(const ModelSpec& model, std::int64_t unit, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(unit_elements(model, unit)), -1.0f);
  initial_values(model, unit, seed, values.data());
  return values;
}

ModelSpec small_llama() {
  ModelSpec model = small_model();
  model.architecture = Architecture::llama;
  model.kv_heads = 2;
  model.qkv_bias = model.qk_norm = true;
  model.tied = false;
  return model;
}

void check_distribution(const ModelSpec& model) {
  for (const std::int64_t unit :
       {std::int64_t{0}, std::int64_t{7}, embedding_unit(model), head_unit(model)}) {
    const auto values = unit_values(model, unit, 42);
    const auto layout = unit_layout(model, unit);
    std::int64_t used = 0;
    for (const TensorLayout& tensor : layout) {
      INFO("unit " << unit << " " << tensor.name);
      const std::int64_t n = tensor.rows * tensor.columns;
      used = tensor.offset + n;
      const float* x = values.data() + tensor.offset;
      double sum = 0, squares = 0;
      for (std::int64_t i = 0; i < n; ++i) {
        sum += static_cast<double>(x[i]);
        squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
      const double count = static_cast<double>(n);
      if (tensor.rows == 1) {
        const double expected = tensor.name.ends_with("weight") ? 1 : 0;
        CHECK(sum == expected * count);
        CHECK(squares == expected * count);
        continue;
      }
      const bool residual = tensor.name.ends_with("c_proj.weight") ||
                            tensor.name.ends_with("o_proj.weight") ||
                            tensor.name.ends_with("down_proj.weight");
      const double deviation = residual ? 0.02 / 4 : 0.02;  // sqrt(2 * 8) = 4
      CHECK(std::fabs(sum / count) < 5 * deviation / std::sqrt(count));
      CHECK(std::fabs(std::sqrt(squares / count) - deviation) <
            5 * deviation / std::sqrt(2 * count));
    }
    for (auto i = static_cast<std::size_t>(used); i < values.size(); ++i)
      REQUIRE(values[i] == 0.0f);
  }
}

}  // namespace

TEST_CASE("Initial values have GPT-2's mean and deviation, norms 1, biases and padding 0") {
  // n values of N(0, s): mean within 5 s / sqrt(n), deviation within 5 s / sqrt(2n).
  check_distribution(small_model());
  check_distribution(small_llama());
}

TEST_CASE("Initial values do not depend on the pieces a unit is filled in, but on seed and unit") {
  const ModelSpec model = small_model();
  const auto whole = unit_values(model, 3, 42);
  std::vector<float> pieces(whole.size());
  const auto n = static_cast<std::int64_t>(whole.size());
  for (std::int64_t end = n; end > 0; end -= 4097) {  // backwards, off any grid
    const std::int64_t begin = std::max<std::int64_t>(0, end - 4097);
    initial_values(model, 3, 42, begin, end - begin, pieces.data() + begin);
  }
  CHECK(pieces == whole);
  CHECK(unit_values(model, 3, 43) != whole);
  CHECK(unit_values(model, 4, 42) != whole);
}

TEST_CASE("Initial values are pinned: a change here makes old runs irreproducible") {
  // Philox4x32-10, seed 42, unit 8, elements 0 to 3 of the token table, from an independent
  // implementation.
  const auto values = unit_values(small_model(), 8, 42);
  CHECK(values[0] == 0.0203306954f);
  CHECK(values[1] == 0.0105592925f);
  CHECK(values[2] == -0.0154101392f);
  CHECK(values[3] == 0.0058851717f);
}
