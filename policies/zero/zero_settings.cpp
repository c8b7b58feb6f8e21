#include "policies/zero/zero_settings.hpp"

namespace spillway {

std::vector<PolicyOption> zero_settings(const std::string& checkpoints) {
  return {
      {"sub_group_size",
       "1e9",
       "elements the optimizer updates at a time, in whole tensors",
       {"1e8", "1e7"}},
      {"checkpoints",
       checkpoints,
       "gpu | host: where activations between layers wait for backward",
       {"host"}},
      {"recompute",
       "full",
       "full: recompute whole layers | needed: only what backward needs",
       {"needed", "full"}},
      {"prefetch_bucket_size",
       "5e7",
       "elements of parameters copied to the GPU ahead of use; 0 turns off reading ahead, too",
       {"1e6", "0"}},
      {"max_live_parameters",
       "1e9",
       "elements on the GPU beyond which nothing is prefetched",
       {"1e7", "0"}},
      {"max_reuse_distance",
       "auto",
       "a tensor that is used again within so many elements stays on the GPU; auto: 1e9, or 0 "
       "where that does not fit",
       {"0"}},
      {"reduce_bucket_size", "5e8", "elements of gradients that leave the GPU together", {"1e7"}}};
}

Plan zero_plan(const OptionReader& read, int most_in_host) {
  Plan plan;
  ParameterAhead ahead;
  ahead.bucket = read.elements("prefetch_bucket_size");
  ahead.most_on_gpu = read.elements("max_live_parameters");
  if (!read.is_auto("max_reuse_distance"))
    ahead.reuse_distance = read.elements("max_reuse_distance");
  ahead.most_in_host = most_in_host;
  plan.parameters.by_tensor = true;
  plan.parameters.tensors = ahead;
  plan.parameters.host_ahead = plan.parameters.gpu_ahead = 0;
  plan.gradients.on_gpu = false;
  plan.gradients.gpu_ahead = 0;
  plan.gradients.head_waits = Tier::gpu;
  plan.gradients.bucket = read.elements("reduce_bucket_size", 1);
  if (read.choice("checkpoints", {"gpu", "host"}) == 0) plan.checkpoints.rest = {.gpu = 1};
  plan.activation_gradients.on_gpu = 1;
  plan.saved.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
  plan.optimizer.own_phase = true;
  plan.optimizer.group = UpdateGroup::tensors;
  plan.optimizer.elements = read.elements("sub_group_size", 1);
  return plan;
}

void zero_step(Step& step) {
  for (const int m : step.ascending()) {
    for (const int layer : step.upward()) step.forward(layer, m);
    for (const int layer : step.downward()) step.backward(layer, m);
  }
  for (const int layer : step.upward()) step.update(layer);
  step.update(step.embedding());
}

}  // namespace spillway
