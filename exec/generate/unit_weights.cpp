#include "exec/generate/unit_weights.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/model/units.hpp"

namespace spillway {

namespace {

std::uint64_t bytes_of(const ModelSpec& model, std::int64_t unit) {
  return static_cast<std::uint64_t>(unit_elements(model, unit)) * sizeof(float);
}

std::uint64_t outer_bytes(const ModelSpec& model) {
  std::uint64_t bytes = 0;
  for (std::int64_t unit = model.layers; unit < unit_count(model); ++unit)
    bytes += bytes_of(model, unit);
  return bytes;
}

}  // namespace

std::uint64_t UnitWeights::least_bytes(const ModelSpec& model) {
  return outer_bytes(model) +
         static_cast<std::uint64_t>(std::min<std::int64_t>(2, model.layers)) * bytes_of(model, 0);
}

std::uint64_t UnitWeights::all_bytes(const ModelSpec& model) {
  return outer_bytes(model) + static_cast<std::uint64_t>(model.layers) * bytes_of(model, 0);
}

UnitWeights::UnitWeights(const ModelSpec& model, StateValues values, std::uint64_t memory,
                         bool reads_ahead)
    : model_(model), values_(std::move(values)), reads_ahead_(reads_ahead) {
  if (memory < least_bytes(model)) {
    throw FitError(
        "the embedding, the head and two layers of model " + model.name + " take " +
            format_bytes(static_cast<double>(least_bytes(model))) + ", more than the " +
            format_bytes(static_cast<double>(memory)) + " of memory that it may take",
        "give it more: " +
            Setting{"host_memory", format_bytes(1.01 * static_cast<double>(least_bytes(model)))});
  }
  embedding_ = read(embedding_unit(model));
  if (head_unit(model) != embedding_unit(model)) head_ = read(head_unit(model));
  std::int64_t resident = model.layers;
  if (memory < all_bytes(model)) {
    const std::uint64_t left = memory - least_bytes(model);
    resident = static_cast<std::int64_t>(left / bytes_of(model, 0));
  }
  for (std::int64_t layer = 0; layer < resident; ++layer) resident_.push_back(read(layer));
}

UnitWeights::~UnitWeights() {
  if (reading_.valid() && reads_ahead_) reading_.wait();
}

void UnitWeights::read_into(std::int64_t unit, std::vector<float>& to) const {
  to.resize(static_cast<std::size_t>(unit_elements(model_, unit)));
  values_(unit, 0, 0, to.size(), to.data());
}

std::vector<float> UnitWeights::read(std::int64_t unit) const {
  std::vector<float> values;
  read_into(unit, values);
  return values;
}

void UnitWeights::read_ahead(std::int64_t layer) {
  ahead_ = layer;
  // Deferred: by reading_.get(), on the thread that asks for the layer.
  reading_ = std::async(reads_ahead_ ? std::launch::async : std::launch::deferred,
                        [this, layer, &to = slots_[next_]] { read_into(layer, to); });
}

const float* UnitWeights::layer(std::int64_t layer) {
  if (layer < layers_in_memory()) return resident_[static_cast<std::size_t>(layer)].data();
  if (ahead_ != layer) {
    if (reading_.valid() && reads_ahead_) reading_.get();
    read_ahead(layer);
  }
  reading_.get();
  const float* const here = slots_[next_].data();
  next_ = 1 - next_;
  const std::int64_t following = layer + 1 < model_.layers ? layer + 1 : layers_in_memory();
  read_ahead(following);
  return here;
}

}  // namespace spillway
