// Sums of gradients on one rank that has the bits of several (Workload::gradient_groups).
//
// What each of those ranks would compute is summed by itself, and these sums are added up in the
// order in which the ranks add up theirs: over the ranks that share out gradients after every
// micro-batch, over micro-batches, over the ranks that share out optimizer state, over those that
// have the same shard of it (Workload::group_meshes). The embedding and a head of its own are
// summed over all micro-batches of a rank first.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "policies/movement/step.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class GroupSums {
 public:
  // `program` outlives it.
  explicit GroupSums(Program& program);

  bool any() const { return groups_ > 1; }
  // Whether a visit begins the sum of one of the ranks, for a layer or for a unit after the layers.
  bool starts(const Visit& visit, bool of_layer) const {
    return any() && (sums_each(of_layer) || visit.micro_batch % row_ == 0);
  }
  // What a visit adds to; `make` makes memory for a sum.
  template <class Make>
  Slice accumulator(const Visit& visit, int unit, BufferKind kind, const Make& make) {
    Slice& leaf = leaf_of(visit, sums_[{unit, kind}]);
    if (starts(visit, is_layer(unit))) leaf = make();
    return leaf;
  }
  // Called once a visit has added to it: what is due is added up. Returns the sum over all ranks
  // once it is complete, else nothing. Throws InputError where visits come in another order than
  // Step::ascending() has.
  Slice add(const Visit& visit, int unit, BufferKind kind);

 private:
  struct Level {
    Slice sum;
    int count = 0;  // that were added up
  };
  struct Sum {
    std::vector<Slice> of_ranks;  // of those that are under way at once
    std::vector<Level> levels;
    int visits = 0;
  };

  bool is_layer(int unit) const { return unit < program_.problem().model.layers; }
  bool sums_each(bool of_layer) const { return of_layer && meshes_.gradients > 1; }
  Slice& leaf_of(const Visit& visit, Sum& sum) const;

  Program& program_;
  GradientMeshes meshes_;
  int groups_;
  int row_;                                // micro-batches of a rank
  Sequence order_;                         // of micro-batches
  std::vector<int> of_layers_, of_outer_;  // how many are added up, level by level
  std::map<std::pair<int, BufferKind>, Sum> sums_;
};

}  // namespace spillway
