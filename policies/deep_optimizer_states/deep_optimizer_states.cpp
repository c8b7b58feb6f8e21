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
#include <optional>

#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/deep_optimizer_states/update_stride.hpp"

namespace spillway {

namespace {

class DeepOptimizerStates : public Policy {
 public:
  explicit DeepOptimizerStates(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    if (read.text("stride") == "off") {
      stride_ = 0;
    } else if (!read.is_auto("stride")) {
      stride_ = read.count("stride", 2, 1'000'000);
    }
    plan_.parameters.rest = {.gpu = 1};
    plan_.gradients.head_waits = Tier::gpu;
    plan_.optimizer_state.gpu_slots = read.choice("staging", {"single", "double"}) + 1;
    plan_.optimizer_state.writes_behind = true;
    if (read.choice("checkpoints", {"gpu", "host"}) == 0) plan_.checkpoints.rest = {.gpu = 1};
    plan_.activation_gradients.on_gpu = 1;
    plan_.saved.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    plan_.optimizer.own_phase = true;
    plan_.optimizer.group = UpdateGroup::tensors;
    plan_.optimizer.elements = read.elements("sub_group_size", 1);
  }

  PolicyInfo info() const override {
    return {
        "deep-optimizer-states",
        "Deep Optimizer States (Middleware 2024), ZeRO-3 with optimizer states in host memory",
        "every k-th sub-group is updated on the GPU while the CPU updates the others",
        {{"stride",
          "auto",
          "auto | 2 or more | off: one in so many sub-groups is updated on the GPU; auto: so many "
          "that CPU and PCIe take equally long; off: none",
          {"off"}},
         {"sub_group_size", "1e8", "elements updated at a time, in whole tensors", {"1e7"}},
         {"staging",
          "single",
          "single | double: GPU buffers for the state of a sub-group; with two, one arrives while "
          "another leaves",
          {"single"}},
         {"checkpoints",
          "gpu",
          "gpu | host: where activations between layers wait for backward",
          {"host"}},
         {"recompute",
          "full",
          "full: recompute whole layers | needed: only what backward needs",
          {"full"}}}};
  }

  Plan plan(const Problem& problem, const Costs& costs) const override {
    Plan plan = plan_;
    const bool two = plan.optimizer_state.gpu_slots == 2;
    plan.optimizer.gpu_stride = stride_ ? *stride_ : best_stride(update_rates(problem, costs, two));
    return plan;
  }

  void step(Step& step) const override {
    for (const int m : step.ascending()) {
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) step.backward(layer, m);
    }
    for (const int layer : step.upward()) step.update(layer);
    step.update(step.embedding());
  }

 private:
  std::optional<int> stride_;  // 0: off; none: by the problem's costs
  Plan plan_;
};

}  // namespace

std::unique_ptr<Policy> make_deep_optimizer_states(const PolicyOptions& options) {
  return std::make_unique<DeepOptimizerStates>(options);
}

}  // namespace spillway
