#include "policies/movement/group_sums.hpp"

#include "base/errors.hpp"

namespace spillway {

GroupSums::GroupSums(Program& program)
    : program_(program),
      meshes_(program.problem().workload.group_meshes),
      groups_(program.problem().workload.ranks > 1
                  ? 1
                  : static_cast<int>(program.problem().workload.gradient_groups)),
      row_(static_cast<int>(program.problem().workload.micro_batches()) / groups_),
      order_(groups_ * row_, row_, meshes_.gradients) {
  if (!any()) return;
  const int state = program.problem().workload.state_shards();
  // Complete sums of so many ranks each.
  const auto complete = [&](std::vector<int>& levels, int of) {
    if (meshes_.at_once) return levels.push_back(groups_ / of);
    levels.push_back(state / of);
    levels.push_back(groups_ / state);
  };
  if (meshes_.gradients > 1) of_layers_ = {meshes_.gradients, row_};
  complete(of_layers_, meshes_.gradients);
  complete(of_outer_, 1);
}

// Ranks whose micro-batches come in turns have sums that are under way at once.
Slice& GroupSums::leaf_of(const Visit& visit, Sum& sum) const {
  sum.of_ranks.resize(static_cast<std::size_t>(meshes_.gradients));
  return sum.of_ranks[static_cast<std::size_t>(visit.micro_batch / row_ % meshes_.gradients)];
}

Slice GroupSums::add(const Visit& visit, int unit, BufferKind kind) {
  Sum& sum = sums_[{unit, kind}];
  if (visit.micro_batch != order_[sum.visits])
    throw InputError(meshes_.gradients > 1
                         ? "gradients of shards are summed in turns of their ranks, which this "
                           "policy's order of micro-batches is not"
                         : "gradients in groups are summed micro-batch after micro-batch, in order",
                     "use policy resident, or leave " +
                         Setting{meshes_.gradients > 1 ? "gradient_meshes" : "gradient_groups"} +
                         " out");
  sum.visits = (sum.visits + 1) % (groups_ * row_);
  if (!sums_each(is_layer(unit)) && visit.micro_batch % row_ + 1 != row_) return {};
  Slice& leaf = leaf_of(visit, sum);
  Slice done = leaf;
  leaf = {};
  const std::vector<int>& counts = is_layer(unit) ? of_layers_ : of_outer_;
  sum.levels.resize(counts.size());
  for (std::size_t k = 0; k < counts.size(); ++k) {
    Level& level = sum.levels[k];
    if (level.count == 0) {
      level.sum = done;
    } else {
      program_.gradient_add(unit, visit.micro_batch, done, level.sum);
    }
    if (++level.count < counts[k]) return {};
    done = level.sum;
    level = {};
  }
  return done;
}

}  // namespace spillway
