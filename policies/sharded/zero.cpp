// zero: DeepSpeed's ZeRO on GPUs that have room for all: optimizer state, gradients and parameters
// in a shard for every rank.
//
// Source: Rajbhandari et al., "ZeRO", SC 2020 (arXiv 1910.02054), whose sections are cited, and
// DeepSpeed 0.19.6, stages 1 to 3 without offloading.
#include "policies/sharded/sharded_options.hpp"

namespace spillway {

namespace {

class Zero : public Policy {
 public:
  Zero()
      : Policy("zero", "ZeRO (SC 2020), stages 1, 2 and 3 of DeepSpeed without offloading",
               "optimizer state, gradients, parameters on the GPU, a shard of each on every rank") {
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    const Mesh all = problem.ranks(), whole{1, 1};
    // Section 5.1, P_os: optimizer state. 5.2, P_g: gradients, too, reduced to their shards after
    // every micro-batch (DeepSpeed: stage_1_and_2.py, partition_gradients). 5.3, P_p: parameters,
    // too, gathered before a layer's forward and again before its backward.
    const Mesh gradients = stage_ >= 2 ? all : whole;
    const Mesh parameters = stage_ >= 3 ? all : whole;
    // Section 7.2: gradients are reduced to the rank that updates them, 1 x their bytes, and, with
    // stages 1 and 2, updated parameters are gathered, 1 x again: together an all-reduce.
    return sharded_.plan(problem, parameters, gradients, all);
  }
  void step(Step& step) const override { forward_order(step); }

 private:
  Option<int> stage_ = option("stage", "3", count(1, 3), {"3"},
                              "1: shards of optimizer state | 2: and of gradients | 3: and of "
                              "parameters");
  ShardedOptions sharded_{*this};
};

}  // namespace

std::unique_ptr<Policy> make_zero() { return std::make_unique<Zero>(); }

}  // namespace spillway
