// What layers save for backward, as one number: from nothing in any layer to everything in all.
//
// Of all masks of saved tensors only those on the lower hull of bytes against recomputed FLOPs are
// worth having. A level of k + f has mask k + 1 of the hull in the last f of the layers and mask k
// in the others: the last layers' backward comes soonest, so what they save waits least.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/model/saved.hpp"
#include "policies/movement/by_layer.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

class SavedLevels {
 public:
  using Masks = ByLayer<SavedMask>;  // of saved_tensors()

  explicit SavedLevels(const Problem& problem);

  double most() const { return static_cast<double>(masks_.size() - 1); }
  // The very last layer, whose backward follows its forward at once, saves everything.
  Masks at(double level) const;
  // The level whose bytes are nearest to those of `masks`, from below.
  double level_of(const Masks& masks) const;
  // Bytes of one micro-batch in all layers.
  double bytes(const Masks& masks) const;

 private:
  int layers_;
  SavedMask all_;
  std::vector<SavedMask> masks_;  // the hull, from none to all
  std::vector<double> bytes_;     // of one layer and micro-batch, by mask
};

}  // namespace spillway
