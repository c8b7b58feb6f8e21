// zero++: ZeRO-3 whose backward gathers parameters inside a node, from a second shard.
//
// Source: Wang et al., "ZeRO++", 2023 (arXiv 2306.10209), whose sections are cited; without its
// quantisation (qwZ, qgZ), as the comparison in AMSP (arXiv 2311.00257) runs it.
#include "policies/sharded/sharded_options.hpp"

namespace spillway {

namespace {

class ZeroPlusPlus : public Policy {
 public:
  ZeroPlusPlus()
      : Policy("zero++", "ZeRO++ (arXiv 2306.10209) without quantisation",
               "ZeRO-3, but parameters stay in a shard of the node from forward to backward") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    const Mesh all = problem.ranks();
    Plan plan = sharded_.plan(problem, all, all, all);
    // Section 3.2, hpZ: the gather of forward also makes a second shard among the GPUs of a node,
    // from which backward gathers. Here forward gathers in two hops, of which the first makes that
    // shard: as many bytes cross the network as in one ring through all ranks.
    plan.shards.second_parameters = or_node(second_, problem);
    return plan;
  }
  void step(Step& step) const override { forward_order(step); }

 private:
  Option<Mesh> second_ = option("second", "node", MeshOr{"node"}, {"node"},
                                "ranks with a second shard of parameters each | node: all GPUs of "
                                "a node");
  ShardedOptions sharded_{*this};
};

}  // namespace

std::unique_ptr<Policy> make_zero_plus_plus() { return std::make_unique<ZeroPlusPlus>(); }

}  // namespace spillway
