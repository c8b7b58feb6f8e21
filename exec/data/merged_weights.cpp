#include "exec/data/merged_weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/errors.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

class Merging {
 public:
  Merging(const ModelSpec& model, WeightValues base, WeightValues adapters)
      : model_(model),
        matrices_(adapted_matrices(model)),
        base_(std::move(base)),
        adapters_(std::move(adapters)) {}

  void read(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
    base_(unit, first, count, to);
    if (unit >= model_.layers) return;
    const auto begin = static_cast<std::int64_t>(first),
               end = begin + static_cast<std::int64_t>(count);
    for (const AdaptedMatrix& one : matrices_) {
      const std::int64_t from = std::max(begin, one.matrix);
      const std::int64_t until = std::min(end, one.matrix + one.rows * one.columns);
      if (from < until) add(unit, one, from - one.matrix, until - one.matrix, to + (from - begin));
    }
  }

 private:
  // To elements [first, end) of a matrix.
  void add(std::int64_t unit, const AdaptedMatrix& one, std::int64_t first, std::int64_t end,
           float* to) {
    load(unit, one);
    const std::int64_t rank = model_.lora_rank;
    const auto scale = static_cast<float>(model_.lora_scale());
    row_.resize(static_cast<std::size_t>(one.columns));
    while (first < end) {
      const std::int64_t row = first / one.columns, column = first % one.columns;
      const std::int64_t some = std::min(one.columns - column, end - first);
      std::fill_n(row_.begin(), some, 0.0f);
      for (std::int64_t k = 0; k < rank; ++k) {
        const float b = b_[static_cast<std::size_t>(row * rank + k)];
        const float* const a = a_.data() + k * one.columns + column;
        for (std::int64_t i = 0; i < some; ++i) row_[static_cast<std::size_t>(i)] += b * a[i];
      }
      for (std::int64_t i = 0; i < some; ++i) to[i] += scale * row_[static_cast<std::size_t>(i)];
      to += some;
      first += some;
    }
  }

  void load(std::int64_t unit, const AdaptedMatrix& one) {
    if (unit_ == unit && held_ == &one) return;
    held_ = nullptr;  // nothing is there while reading may fail
    const auto read = [&](std::int64_t offset, std::int64_t elements, std::vector<float>& values) {
      values.resize(static_cast<std::size_t>(elements));
      adapters_(unit, static_cast<std::uint64_t>(offset), values.size(), values.data());
      for (const float value : values) {
        if (std::isfinite(value)) continue;
        throw InputError(fmt::format("the adapter of {} in {} has a value that is not finite",
                                     one.name, unit_name(model_, unit)),
                         "its training has diverged, or its file is damaged");
      }
    };
    read(one.a, model_.lora_rank * one.columns, a_);
    read(one.b, one.rows * model_.lora_rank, b_);
    unit_ = unit;
    held_ = &one;
  }

  ModelSpec model_;
  std::vector<AdaptedMatrix> matrices_;
  WeightValues base_, adapters_;
  std::int64_t unit_ = -1;
  const AdaptedMatrix* held_ = nullptr;  // whose A and B these are
  std::vector<float> a_, b_, row_;
};

}  // namespace

WeightValues merged_weights(const ModelSpec& model, WeightValues base, WeightValues adapters) {
  auto merging = std::make_shared<Merging>(model, std::move(base), std::move(adapters));
  return [merging](std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to) {
    merging->read(unit, first, count, to);
  };
}

}  // namespace spillway
