// Options that the ZeRO policies share, named as in DeepSpeed.
#pragma once

#include "policies/common/policy.hpp"
#include "policies/framework/framework.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

// Whether each rank keeps its shard of sums of gradients. DeepSpeed's ranks add up the gradient of
// every micro-batch; Spillway's own add up complete sums, once for all micro-batches.
inline bool sums_in_shards(const Problem& problem) {
  return problem.workload.ranks > 1 && problem.framework != own_framework;
}

struct ZeroOptions {
  Policy& policy;
  const char* rest_of_checkpoints;
  Option<std::uint64_t> sub_group_size =
      policy.option("sub_group_size", "1e9", Elements{1}, {"1e8", "1e7"},
                    "elements the optimizer updates at a time, in whole tensors");
  Option<Share> checkpoints = policy.option(
      "checkpoints", rest_of_checkpoints, Choice<Share>{{"gpu", {.gpu = 1}}, {"host", {.host = 1}}},
      {"host"}, "gpu | host: where activations between layers wait for backward");
  Option<bool> recomputes_output = policy.option(
      "recompute", "full", Choice<bool>{{"full", true}, {"needed", false}}, {"needed", "full"},
      "full: recompute whole layers | needed: only what backward needs");
  Option<std::uint64_t> prefetch_bucket_size = policy.option(
      "prefetch_bucket_size", "5e7", Elements{}, {"1e6", "0"},
      "elements of parameters copied to the GPU ahead of use; 0 turns off reading ahead, too");
  Option<std::uint64_t> max_live_parameters =
      policy.option("max_live_parameters", "1e9", Elements{}, {"1e7", "0"},
                    "elements on the GPU beyond which nothing is prefetched");
  Option<std::optional<std::uint64_t>> max_reuse_distance = policy.option(
      "max_reuse_distance", "auto", or_auto(Elements{}), {"0"},
      "a tensor that is used again within so many elements stays on the GPU; auto: 1e9, or 0 "
      "where that does not fit");
  Option<std::uint64_t> reduce_bucket_size =
      policy.option("reduce_bucket_size", "5e8", Elements{1}, {"1e7"},
                    "elements of gradients that leave the GPU together");

  std::uint64_t reuse_distance() const { return max_reuse_distance->value_or(1'000'000'000); }
};

}  // namespace spillway
