// fsdp: PyTorch's fully sharded data parallel, over all ranks or over groups of them.
//
// Source: Zhao et al., "PyTorch FSDP", VLDB 2023 (arXiv 2304.11277), whose sections are cited. A
// layer is a unit (section 4.2).
#include "policies/sharded/sharded_options.hpp"

namespace spillway {

namespace {

class Fsdp : public Policy {
 public:
  Fsdp()
      : Policy("fsdp", "PyTorch FSDP (VLDB 2023)",
               "model states on the GPU, in shards of all ranks, or of groups that are replicas") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    // Section 3.2.1, full sharding: factor F = all ranks. 3.2.2, hybrid: F below that; the sum of a
    // group's shard is added up over the groups that hold the same shard, here once a step, as
    // with accumulation without communication between groups (section 3.3.4).
    const Mesh shard = is_hybrid_ ? or_node(group_, problem) : problem.ranks();
    Plan plan = sharded_.plan(problem, shard, shard, shard);
    // Section 3.3.2, backward prefetching: the next layer's gather is issued before this layer's
    // reduction. 3.3.3, forward prefetching: before this layer's forward.
    plan.parameters.backward_gpu_ahead = plan.parameters.gpu_ahead;
    if (!forward_prefetch_) plan.parameters.gpu_ahead = 0;
    return plan;
  }
  void step(Step& step) const override { forward_order(step); }

 private:
  Option<bool> is_hybrid_ = option("shard", "full", Choice<bool>{{"full", false}, {"hybrid", true}},
                                   {"full"}, "full: shards of all ranks | hybrid: of groups");
  Option<Mesh> group_ = option("group", "node", MeshOr{"node"}, {"node"},
                               "of hybrid: ranks with a shard each | node: all GPUs of a node");
  Option<bool> forward_prefetch_ =
      option("forward_prefetch", "on", on_off(), {"off"},
             "on: a layer's parameters are asked for before the forward of the layer below | off: "
             "after it was launched");
  ShardedOptions sharded_{*this};
};

}  // namespace

std::unique_ptr<Policy> make_fsdp() { return std::make_unique<Fsdp>(); }

}  // namespace spillway
