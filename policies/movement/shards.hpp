// Shards: which elements of a unit one of several ranks keeps, updates and sums.
//
// What of the model states is cut into shards, and among which ranks, is a plan's choice
// (Plan::shards); all that ZeRO, FSDP, MiCS and AMSP (arXiv 2311.00257) differ in. A unit's
// elements are cut on the element grid, as evenly as that allows, the first shards being the larger
// ones. Meshes lie in each other, parameters' in gradients' in optimizer state's, and so do the
// shards: what a rank keeps is cut among the ranks that keep it. The embedding and a head of its
// own are kept whole on every rank, as are their gradients' sums; their optimizer state is cut as
// that of layers. What is frozen of a unit is cut by itself, as the unit's parameters are.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/plan.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Elements of a unit.
struct ElementRange {
  std::uint64_t first = 0, elements = 0;
  std::uint64_t end() const { return first + elements; }
};

// The shard at `place` of `parts` of a range.
ElementRange shard_of(const ElementRange& whole, int parts, int place);

// The elements of each part of a whole that the ranks of a group have, by their places in it.
std::vector<std::uint64_t> part_elements(const RankGroup& group, std::uint64_t whole);

// The shard that rank `rank` updates of a unit's `elements`, where ranks cut it as `meshes` says,
// among `state` of them; of a unit that is no layer at once.
ElementRange updated_by_rank(const GradientMeshes& meshes, int state, bool is_layer,
                             std::uint64_t elements, int rank);

// Of elements that all ranks share out, the most that one has: what planners count with. All of
// them where there is one rank.
std::uint64_t largest_shard(const Problem& problem, std::int64_t elements);

// Several ranks fetch parameters by layer: a shard of a layer holds parts of its tensors.
void fetch_by_layer(const Problem& problem, Plan& plan);

class Shards {
 public:
  // Throws InputError where the plan's meshes do not go with the ranks, or a unit is too small.
  Shards(const Problem& problem, const Plan& plan);

  bool any() const { return ranks_.size() > 1; }
  // Elements of the unit that are trained, the first ones, and those that are frozen, after them.
  std::uint64_t whole(int unit) const { return trained(unit).elements; }
  ElementRange trained(int unit) const;
  ElementRange frozen(int unit) const;
  // Whose parameters this rank keeps between uses, of what is trained and of what is frozen; the
  // whole, or a shard that is gathered.
  ElementRange kept(int unit) const { return kept_of(unit, trained(unit)); }
  ElementRange kept_frozen(int unit) const { return kept_of(unit, frozen(unit)); }
  // That this rank updates; part of what it keeps.
  ElementRange updated(int unit) const;
  // Elements that the first rank updates, which are as many as any rank's or a cell more. Ranks
  // meet in collectives, so that all follow one order of work: that of the first, of which a rank
  // with a cell less leaves the last cell out.
  std::uint64_t most_updated(int unit) const;
  // Whose gradient this rank sums over micro-batches; holds what it updates.
  ElementRange summed(int unit) const;

  // Whether the parameters of a unit are gathered for their use.
  bool gathers(int unit) const { return is_layer(unit) && parameters(unit).size() > 1; }
  // Whether the gradient of a unit is reduced after every micro-batch, into a sum of a shard.
  bool reduces_each(int unit) const { return is_layer(unit) && gradients_.size() > 1; }
  // Whether updated parameters have to be spread to others that keep them.
  bool spreads(int unit) const { return state_ != parameters(unit); }

  // Whether a larger shard of a unit's parameters stays from forward to backward; and its elements,
  // of trained(unit) or frozen(unit). Only of parameters that rest on the GPU.
  bool keeps_second(int unit) const {
    return second_.size() > 0 && gathers(unit) && plan_.parameters.rest.at(unit, layers_).gpu > 0;
  }
  ElementRange second_of(const ElementRange& whole) const { return cut(whole, second_, {}); }

  // From what a rank keeps, or from its second shard where it has one, to the whole.
  RankGroup gather_group(int unit) const {
    return shard_group(keeps_second(unit) ? second_ : parameters(unit));
  }
  // From what a rank keeps to its second shard.
  RankGroup second_group(int unit) const { return replica_group(parameters(unit), second_); }
  // Of the gradient of a micro-batch.
  RankGroup reduce_group(int unit) const {
    return cut_first(shard_group(gradients_), keeps_second(unit) ? second_ : parameters(unit));
  }
  // Those that a complete sum is still to be added up over: all ranks, or those that sum the same
  // shard.
  RankGroup sync_group(int unit) const { return replica_group(ranks_, summed_mesh(unit)); }
  // Among them those that share out what is updated.
  RankGroup scatter_group(int unit) const;
  // And those that then hold the same part.
  RankGroup copies_group() const { return replica_group(ranks_, state_); }
  RankGroup spread_group(int unit) const;
  const Mesh& state() const { return state_; }
  // Canonical; `parameters` is mixed_cut where layers differ.
  GradientMeshes meshes() const;
  static constexpr int mixed_cut = 0;

 private:
  void require_cells(const char* what, std::uint64_t elements, const Mesh& mesh) const;
  bool is_layer(int unit) const { return unit < layers_; }
  // Of a unit's resting parameters.
  Mesh parameters(int unit) const;
  ElementRange kept_of(int unit, const ElementRange& whole) const;
  Mesh summed_mesh(int unit) const { return is_layer(unit) ? gradients_ : Mesh{}; }
  ElementRange cut(const ElementRange& whole, const Mesh& outer, const Mesh& inner) const;

  const Problem& problem_;
  const Plan& plan_;
  int layers_;
  Ranks ranks_;
  Mesh gradients_, state_, second_;
};

}  // namespace spillway
