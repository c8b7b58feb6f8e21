// DeepSpeed's sub-groups, worked out from its rule alone.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/model/tensors.hpp"

namespace spillway::test {

// Consecutive tensors of all units, layers first; each group is closed as soon as it has
// `sub_group_size` elements (DeepSpeed's stage 3: at least that many, the last one fewer).
using SubGroup = std::vector<TensorRange>;
inline std::vector<SubGroup> sub_groups(const ModelSpec& model, std::uint64_t sub_group_size) {
  std::vector<SubGroup> groups;
  std::uint64_t elements = sub_group_size;  // of the last group; starts a new one when full
  for (int unit = 0; unit <= model.layers; ++unit) {
    for (const TensorRange& tensor : unit_tensors(model, unit)) {
      if (groups.empty() || elements >= sub_group_size) {
        groups.emplace_back();
        elements = 0;
      }
      groups.back().push_back(tensor);
      elements += tensor.elements;
    }
  }
  return groups;
}

inline std::uint64_t elements_of(const SubGroup& group) {
  std::uint64_t elements = 0;
  for (const TensorRange& tensor : group) elements += tensor.elements;
  return elements;
}

}  // namespace spillway::test
