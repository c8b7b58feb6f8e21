// zero-infinity: parameters and optimizer state on the SSD; gradients are written there in the last
// micro-batch and read back by the optimizer, which walks sub-groups after the whole backward.
//
// Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021 (arXiv 2104.07857), whose sections are
// cited, and DeepSpeed 0.19.6 with offload_param and offload_optimizer on NVMe
// (partitioned_optimizer_swapper.py and pipelined_optimizer_swapper.py). What DeepSpeed adds in
// memory, copies and waits is a framework: docs/zero.md. On one GPU nothing is partitioned.
#include "policies/model/units.hpp"
#include "policies/zero/zero_options.hpp"

namespace spillway {

namespace {

class ZeroInfinity : public Policy {
 public:
  ZeroInfinity()
      : Policy("zero-infinity",
               "ZeRO-Infinity (SC 2021), as DeepSpeed with parameters and optimizer on NVMe",
               "all model states on the SSD; horizontal micro-batches; the optimizer is a phase of "
               "its own") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    Plan plan;
    // Forward and backward of each micro-batch; section 5.2.2: then the optimizer, in chunks
    // (below) that may reach from one layer into the next.
    plan.order = {.row = 1, .updates = UpdateOrder::ascending};
    // Section 5.1.1: each of the model states rests on the SSD, in host or in GPU memory.
    const auto layer_elements = static_cast<std::uint64_t>(unit_elements(problem.model, 0));
    plan.parameters.rest = Share(parameters_);
    plan.parameters.first_in_host = max_in_cpu_;
    // Layers are alike: below the threshold every one stays on the GPU.
    if (layer_elements < param_persistence_threshold_) plan.parameters.rest = Share{.gpu = 1};
    if (sums_in_shards(problem)) plan.shards.gradients = problem.ranks();
    // Of stage 3: parameters on the GPU, but for those that persist, are in shards, too.
    if (sums_in_shards(problem) && layer_elements >= param_persistence_threshold_)
      plan.shards.parameters = problem.ranks();
    plan.gradients.on_ssd = gradients_on_ssd_;
    plan.optimizer_state.rest = Share{.ssd = 1};
    // Section 5.1.2: activation checkpoints are offloaded to host memory. Gradients of activations
    // stay on the GPU between a layer's backward and the next one's.
    plan.checkpoints.rest = Share(zero_.checkpoints);
    plan.activation_gradients.on_gpu = 1;
    plan.saved.recomputes_output = zero_.recomputes_output;
    // Section 7.1: a tensor, not a layer, is gathered before the operators that use it, and
    // released after them (DeepSpeed: unless it is used again soon).
    plan.parameters.by_tensor = true;
    plan.parameters.tensors.reuse_distance = zero_.reuse_distance();
    // Section 6.2, dynamic prefetcher: tensors of operators to come are read from the SSD into host
    // memory, and copied from there to the GPU: as far ahead as these say, not in layers.
    plan.parameters.host_ahead = plan.parameters.gpu_ahead = 0;
    plan.parameters.tensors.most_in_host = param_buffer_count_;
    plan.parameters.tensors.bucket = zero_.prefetch_bucket_size;      // elements ahead of use
    plan.parameters.tensors.most_on_gpu = zero_.max_live_parameters;  // beyond: nothing ahead
    // Section 6.2: gradients leave the GPU under the backward of the layers below, in buckets. The
    // sum of the micro-batches before comes back from host memory and is added to on the GPU.
    plan.gradients.on_gpu = false;
    plan.gradients.gpu_ahead = 0;
    plan.gradients.head_waits = Tier::gpu;
    plan.gradients.bucket = zero_.reduce_bucket_size;
    // Section 5.2.2: chunk by chunk (DeepSpeed's sub-groups of whole tensors), master weights,
    // moments and gradient are read into host memory and updated there by the CPU; the 16-bit
    // parameters are written first, then the rest. Serial as shipped: pipeline_read reads one
    // sub-group ahead, and with pipeline_write one is written behind, each with its own buffer.
    // Nothing is fetched for the next forward before it begins. What DeepSpeed's host thread waits
    // for, and how wide its gradients are on the SSD, is its framework's (deepspeed-0.9.toml).
    plan.optimizer.own_phase = true;
    plan.optimizer.gpu_stride = 0;
    plan.optimizer.group = UpdateGroup::tensors;
    plan.optimizer.elements = zero_.sub_group_size;
    plan.optimizer_state.ahead = pipeline_read_ ? 1 : 0;
    plan.optimizer_state.writes_behind = pipeline_write_;
    plan.optimizer_state.writes_at_once = true;
    plan.optimizer_state.slots = 1 + (pipeline_read_ ? 1 : 0) + (pipeline_write_ ? 1 : 0);
    return plan;
  }

  std::vector<PolicyOptions> placements(const Problem&) const override {
    if (zero_.max_reuse_distance->has_value()) return {{}};
    return {{}, {{"max_reuse_distance", "0"}}};
  }

 private:
  Option<bool> pipeline_read_ = option("pipeline_read", "off", on_off(), {"off"},
                                       "on: the next sub-group is read while one is updated | off");
  Option<bool> pipeline_write_ =
      option("pipeline_write", "off", on_off(), {"off"},
             "on: a sub-group is written while the next is updated | off");
  Option<bool> gradients_on_ssd_ =
      option("gradients", "ssd", Choice<bool>{{"ssd", true}, {"host", false}}, {"ssd"},
             "ssd: written to the SSD in the last micro-batch and read back | host: kept there");
  Option<Share> parameters_ =
      option("parameters", "ssd",
             Choice<Share>{{"ssd", {.ssd = 1}}, {"host", {.host = 1}}, {"gpu", {.gpu = 1}}},
             {"host", "ssd"}, "ssd | host | gpu: where the 16-bit parameters rest");
  Option<std::uint64_t> max_in_cpu_ = option("max_in_cpu", "0", Elements{}, {"0"},
                                             "the first so many elements of parameters rest in "
                                             "host memory instead of the SSD (DeepSpeed: 1e9)");
  Option<int> param_buffer_count_ =
      option("param_buffer_count", "5", count(1, 1024), {"2", "1"},
             "tensors of parameters read from the SSD that host memory holds at once");
  Option<std::uint64_t> param_persistence_threshold_ =
      option("param_persistence_threshold", "0", Elements{}, {"0"},
             "layers of fewer elements stay on the GPU, as single small tensors do in DeepSpeed "
             "(below 1e5)");
  ZeroOptions zero_{*this, "host"};
};

}  // namespace

std::unique_ptr<Policy> make_zero_infinity() { return std::make_unique<ZeroInfinity>(); }

}  // namespace spillway
