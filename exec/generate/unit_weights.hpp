// The weights of a model unit by unit: as many as there is memory for stay there, the others are
// read again whenever they are needed, if need be while the unit before is at work.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include "exec/run/model_access.hpp"
#include "policies/model/model.hpp"

namespace spillway {

class UnitWeights {
 public:
  // What a pass over the model does not find in `memory` bytes is read from `values`: ahead, by
  // another thread, or, of values that belong to the caller's thread, there and when it is needed.
  // Throws FitError where memory is less than least_bytes().
  UnitWeights(const ModelSpec& model, StateValues values, std::uint64_t memory,
              bool reads_ahead = true);
  ~UnitWeights();
  UnitWeights(const UnitWeights&) = delete;
  UnitWeights& operator=(const UnitWeights&) = delete;

  // The embedding, an untied head, and two layers.
  static std::uint64_t least_bytes(const ModelSpec& model);
  static std::uint64_t all_bytes(const ModelSpec& model);

  // Elements of a unit, until the next call but one for a layer. Layers are asked for in ascending
  // order, over and over again.
  const float* layer(std::int64_t layer);
  const float* embedding() const { return embedding_.data(); }
  const float* head() const { return head_.empty() ? embedding_.data() : head_.data(); }

  std::int64_t layers_in_memory() const { return static_cast<std::int64_t>(resident_.size()); }

 private:
  std::vector<float> read(std::int64_t unit) const;
  void read_into(std::int64_t unit, std::vector<float>& to) const;
  void read_ahead(std::int64_t layer);

  const ModelSpec model_;
  const StateValues values_;
  const bool reads_ahead_;
  std::vector<float> embedding_, head_;
  std::vector<std::vector<float>> resident_;  // the first layers
  std::vector<float> slots_[2];               // of the others, by turns
  std::int64_t ahead_ = -1;                   // what is being read, into slots_[next_]
  int next_ = 0;
  std::future<void> reading_;
};

}  // namespace spillway
