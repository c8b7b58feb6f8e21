// zero-offload: optimizer state and gradients in host memory, AdamW on the CPU after the whole
// backward.
//
// Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021 (arXiv 2101.06840), whose sections are cited,
// and DeepSpeed 0.19.6 with offload_optimizer on the CPU: the code of ZeRO-Infinity without the
// SSD. Adam overlaps neither backward nor the copy back. The one-step delayed update (section 5.2)
// is not synchronous and therefore not offered.
#include "policies/zero/zero_options.hpp"

namespace spillway {

namespace {

class ZeroOffload : public Policy {
 public:
  ZeroOffload()
      : Policy("zero-offload",
               "ZeRO-Offload (USENIX ATC 2021), as DeepSpeed's offload_optimizer=cpu",
               "optimizer state and gradients in host memory; AdamW on the CPU after backward") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    Plan plan;
    // Section 4.1, single GPU schedule: forward and backward of each micro-batch, then the updates.
    plan.order = {.row = 1, .updates = UpdateOrder::ascending};
    // Section 4.1: 16-bit parameters in GPU memory, gradients and optimizer state in host memory.
    if (sums_in_shards(problem)) plan.shards.gradients = problem.ranks();
    plan.parameters.rest = on_gpu(problem) ? Share{.gpu = 1} : Share{.host = 1};
    plan.optimizer_state.rest = Share{.host = 1};
    plan.checkpoints.rest = Share(zero_.checkpoints);
    plan.activation_gradients.on_gpu = 1;
    plan.saved.recomputes_output = zero_.recomputes_output;
    // Section 4.1: gradients go to host memory in small groups while backward goes on.
    plan.gradients.on_gpu = false;
    plan.gradients.gpu_ahead = 0;
    plan.gradients.head_waits = Tier::gpu;
    plan.gradients.bucket = zero_.reduce_bucket_size;
    // Updates on the CPU after backward; DeepSpeed's sub-groups are whole tensors.
    plan.optimizer.own_phase = true;
    plan.optimizer.group = UpdateGroup::tensors;
    plan.optimizer.elements = zero_.sub_group_size;
    // DeepSpeed's offload_param=cpu, where the parameters do not fit: they are fetched tensor by
    // tensor, as far ahead as these numbers of elements.
    plan.parameters.by_tensor = true;
    plan.parameters.host_ahead = plan.parameters.gpu_ahead = 0;
    plan.parameters.tensors.bucket = zero_.prefetch_bucket_size;
    plan.parameters.tensors.most_on_gpu = zero_.max_live_parameters;
    plan.parameters.tensors.reuse_distance = zero_.reuse_distance();
    plan.parameters.tensors.most_in_host = 0;
    return plan;
  }

  // With parameters=auto: by on_gpu() or, where that does not fit, in host memory, or the GPU's.
  std::vector<PolicyOptions> placements(const Problem&) const override {
    std::vector<PolicyOptions> all = {{}};
    if (parameters_ == automatic) all.push_back({{"parameters", "host"}});
    if (parameters_ != gpu && !zero_.max_reuse_distance->has_value()) {
      all.push_back(all.back());
      all.back()["max_reuse_distance"] = "0";
    }
    // Small models take less in one piece than layer by layer.
    if (parameters_ == automatic) all.push_back({{"parameters", "gpu"}});
    return all;
  }

 private:
  bool on_gpu(const Problem& problem) const {
    const double bytes = static_cast<double>(problem.model.parameters()) *
                         static_cast<double>(problem.parameter_bytes());
    const double most = static_cast<double>(problem.machine.gpu.memory) / 2;
    return parameters_ == gpu || (parameters_ == automatic && bytes <= most);
  }

  enum Place { automatic, gpu, host };
  Option<Place> parameters_ =
      option("parameters", "auto", Choice<Place>{{"auto", automatic}, {"gpu", gpu}, {"host", host}},
             {"host"},
             "gpu | host | auto: where the 16-bit parameters rest; auto is gpu while they take at "
             "most half of it");
  ZeroOptions zero_{*this, "gpu"};
};

}  // namespace

std::unique_ptr<Policy> make_zero_offload() { return std::make_unique<ZeroOffload>(); }

}  // namespace spillway
