// deep-optimizer-states: optimizer state in host memory; the CPU updates most sub-groups while the
// state of every k-th one crosses PCIe, is updated on the GPU, and goes back.
//
// Source: Maurya et al., "Deep Optimizer States", Middleware 2024 (arXiv 2410.21316), and the
// authors' branch of DeepSpeed. ZeRO-3 with 16-bit parameters on the GPU. At sub-group x with
// x mod k = 0 the state of the last GPU sub-group leaves and that of the next one, x + k - 1,
// arrives; (x + 1) mod k = 0 is updated on the GPU. Gradients of GPU sub-groups never leave the
// GPU, those of CPU sub-groups leave in the background of backward. The update starts after the
// whole backward and the norm of the gradient: it is synchronous.
//
// The authors copy master, m and v of a sub-group apart; here they are one copy per tensor. A
// layer's gradient is one buffer: it stays on the GPU as long as one of its tensors does.
#include "policies/common/policy.hpp"
#include "policies/deep_optimizer_states/update_stride.hpp"
#include "policies/movement/plan.hpp"
#include "policies/zero/zero_options.hpp"

namespace spillway {

namespace {

class DeepOptimizerStates : public Policy {
 public:
  DeepOptimizerStates()
      : Policy(
            "deep-optimizer-states",
            "Deep Optimizer States (Middleware 2024), ZeRO-3 with optimizer states in host memory",
            "every k-th sub-group is updated on the GPU while the CPU updates the others") {}

  Plan plan(const Problem& problem, const Costs& costs) const override {
    Plan plan;
    // 16-bit parameters on the GPU, optimizer state in host memory.
    plan.parameters.rest = Share{.gpu = 1};
    // Of stage 3, in shards where the framework's ranks sum every micro-batch's gradient.
    if (sums_in_shards(problem)) plan.shards.gradients = plan.shards.parameters = problem.ranks();
    plan.optimizer_state.rest = Share{.host = 1};
    plan.gradients.head_waits = Tier::gpu;
    plan.checkpoints.rest = Share(checkpoints_);
    plan.activation_gradients.on_gpu = 1;
    plan.saved.recomputes_output = recomputes_output_;
    // The update is a phase of its own after backward, over sub-groups of whole tensors.
    plan.order = {.row = 1, .updates = UpdateOrder::ascending};
    plan.optimizer.own_phase = true;
    plan.optimizer.group = UpdateGroup::tensors;
    plan.optimizer.elements = sub_group_size_;
    // Every k-th sub-group is updated on the GPU, k by the paper's performance model.
    plan.optimizer.gpu_stride = stride_->has_value()
                                    ? stride_->value()
                                    : best_stride(update_rates(problem, costs, two_buffers_));
    // At x mod k = 0 its state leaves, and that of sub-group x + k - 1 arrives in the buffer that
    // this frees, or in a second one at the same time.
    plan.optimizer_state.writes_behind = true;
    plan.optimizer_state.gpu_slots = two_buffers_ ? 2 : 1;
    return plan;
  }

 private:
  Option<std::optional<int>> stride_ = option(
      "stride", "auto", or_auto(WordOr<Numbers<int>, int>{"off", count(2, 1'000'000)}), {"off"},
      "auto | 2 or more | off: one in so many sub-groups is updated on the GPU; auto: so many "
      "that CPU and PCIe take equally long; off: none");
  Option<std::uint64_t> sub_group_size_ = option("sub_group_size", "1e8", Elements{1}, {"1e7"},
                                                 "elements updated at a time, in whole tensors");
  Option<bool> two_buffers_ =
      option("staging", "single", Choice<bool>{{"single", false}, {"double", true}}, {"single"},
             "single | double: GPU buffers for the state of a sub-group; with two, one arrives "
             "while another leaves");
  Option<Share> checkpoints_ =
      option("checkpoints", "gpu", Choice<Share>{{"gpu", {.gpu = 1}}, {"host", {.host = 1}}},
             {"host"}, "gpu | host: where activations between layers wait for backward");
  Option<bool> recomputes_output_ =
      option("recompute", "full", Choice<bool>{{"full", true}, {"needed", false}}, {"full"},
             "full: recompute whole layers | needed: only what backward needs");
};

}  // namespace

std::unique_ptr<Policy> make_deep_optimizer_states() {
  return std::make_unique<DeepOptimizerStates>();
}

}  // namespace spillway
