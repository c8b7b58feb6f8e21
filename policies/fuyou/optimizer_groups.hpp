// The pieces in which an optimizer takes the model while backward completes gradients: layers from
// the last to the first, then the embedding.
//
// Source: "tensors" in Ratel (ICDE 2025, section IV-C); in the authors' code sub-groups of 7e8
// elements, about 2.2 layers of a 13B model. Here: whole units, several of them, or parts of one.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

struct OptimizerPart {
  int unit = 0;
  std::uint64_t first = 0, elements = 0;  // on the element grid
};
using OptimizerGroup = std::vector<OptimizerPart>;

// In the order in which their gradients complete. `most` elements to a group: as many whole units
// as that holds, or a unit cut into equal parts; 0: one group for each unit.
std::vector<OptimizerGroup> optimizer_groups(const ModelSpec& model, std::uint64_t most);

std::uint64_t elements_of(const OptimizerGroup& group);

}  // namespace spillway
