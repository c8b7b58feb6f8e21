// mics: every group of ranks has all of the model's states, in a shard for each of them.
//
// Source: Zhang et al., "MiCS", VLDB 2022 (arXiv 2205.00119), whose sections are cited.
#include "policies/sharded/sharded_options.hpp"

namespace spillway {

namespace {

class Mics : public Policy {
 public:
  Mics()
      : Policy("mics", "MiCS (VLDB 2022)",
               "model states on the GPU, in shards of small groups of ranks; groups are replicas") {
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    // Section 3.2, scale-aware partitioning: a partition group is as small as memory allows, and
    // parameters are gathered inside it alone.
    const Mesh group = or_node(group_, problem);
    // Section 3.4, 2-hop gradient synchronisation: after every micro-batch gradients are reduced to
    // their shards inside the group; after the last one, the same shard of all groups is added up.
    return sharded_.plan(problem, group, group, group);
  }
  void step(Step& step) const override { forward_order(step); }

 private:
  Option<Mesh> group_ = option("group", "node", MeshOr{"node"}, {"node"},
                               "ranks with a shard each | node: all GPUs of a node");
  ShardedOptions sharded_{*this};
};

}  // namespace

std::unique_ptr<Policy> make_mics() { return std::make_unique<Mics>(); }

}  // namespace spillway
