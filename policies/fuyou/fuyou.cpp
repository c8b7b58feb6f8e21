// fuyou: the optimizer runs during backward, group by group, as gradients arrive; all model states
// on the SSD; activations inside layers may be swapped instead of recomputed (option `swap`).
//
// Source: Liao et al., Fuyou (arXiv 2403.06504v1) = LoHan (v2) = Ratel (ICDE 2025, whose sections
// are cited), and the authors' code where it is silent (RC4ML/LoHan). The paper has one micro-batch
// per step; with several, gradients add up in host memory and the last one's backward updates.
#include <algorithm>

#include "policies/common/policy.hpp"
#include "policies/fuyou/swap_setting.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

namespace {

enum Pipeline { optimized, naive, serial };

class Fuyou : public Policy {
 public:
  Fuyou()
      : Policy("fuyou", "Fuyou / LoHan / Ratel (arXiv 2403.06504, ICDE 2025)",
               "all model states on the SSD; the CPU optimizer runs under the GPU's backward") {}

  Plan plan(const Problem& problem, const Costs& costs) const override {
    const bool is_naive = optimizer_ == naive;
    Plan plan;
    // Section IV-C, active gradient offloading: a gradient is consumed as soon as it arrives. Or
    // after backward, what the paper compares with: "Ratel+ZeRO". Each micro-batch goes through all
    // layers.
    plan.order = {.row = 1, .updates = UpdateOrder::within};
    if (optimizer_ == serial)
      plan.order = {.row = 1, .updates = UpdateOrder::descending, .waits = true};
    // A layer's parameters leave the GPU after forward and are read again for backward.
    plan.parameters.rest = plan.optimizer_state.rest = Share{.ssd = 1};
    plan.parameters.gpu_ahead = forward_ahead_;
    plan.parameters.backward_gpu_ahead = backward_ahead_;
    plan.gradients.on_gpu = false;          // section IV-C: to host memory, and never to the SSD
    plan.gradients.head_waits = Tier::gpu;  // what the loss adds, until the embedding's is complete
    plan.optimizer.gpu_stride = 0;          // AdamW on the CPU
    // With two buffers, group i is written after group i - 1 was read, which does not wait for the
    // gradient of group i - 1.
    plan.optimizer_state.slots = is_naive ? 1 : state_buffers_;
    plan.optimizer_state.ahead = plan.optimizer_state.slots - 1;
    plan.optimizer.blocking = is_naive;  // the thread that launches the GPU's work runs it
    if (group_->has_value()) {
      plan.optimizer.group = UpdateGroup::at_most;
      plan.optimizer.elements = group_->value();
    }
    // Section IV-D, activation swapping: checkpoints and what is swapped wait in host memory, what
    // does not fit there on the SSD. What is swapped: Algorithm 1, in swap_plan.hpp.
    const double on_ssd = checkpoints_ssd_->value_or(0);
    plan.checkpoints.rest = Share::host_and_ssd(on_ssd);
    plan.checkpoints.gpu_ahead = activations_ahead_;
    plan.saved.slots = std::max(activations_ahead_ + 1, 2);  // layers whose swapped tensors pass
    plan.saved.recomputes_output = recomputes_output_ && swap_->kind == Swap::Kind::none;
    using enum OptimizerOverlap;  // of the optimizer with the GPU's work
    const bool waits = problem.workload.updates_wait() || optimizer_ == serial;
    const OptimizerOverlap overlap = waits ? nothing : is_naive ? writes : all;
    plan.saved.saves = swapped_tensors(problem, costs, plan, swap_, overlap);
    return plan;
  }

  // What overflows to the SSD: tried in this order, the first that fits is taken.
  std::vector<PolicyOptions> placements(const Problem&) const override {
    if (checkpoints_ssd_->has_value()) return {{}};
    std::vector<PolicyOptions> all;
    for (int k = 0; k <= 10; ++k) all.push_back({{"checkpoints_ssd", fraction.write(k / 10.0)}});
    return all;
  }

 private:
  Option<Pipeline> optimizer_ =
      option("optimizer", "optimized",
             Choice<Pipeline>{{"optimized", optimized}, {"naive", naive}, {"serial", serial}}, {},
             "optimized: in backward, reading ahead, all under the GPU's work | naive: in "
             "backward, one group at a time, the GPU waiting for it | serial: after backward");
  Option<std::optional<double>> checkpoints_ssd_ =
      option("checkpoints_ssd", "auto", or_auto(fraction), {"auto", "1"},
             "fraction of the activations that wait in host memory, those between layers and those "
             "swapped, that overflows to the SSD; auto: the least that fits");
  Option<bool> recomputes_output_ =
      option("recompute", "full", Choice<bool>{{"full", true}, {"needed", false}}, {"full"},
             "with swap=none, full: recompute whole layers | needed: only what backward needs, as "
             "with any other swap");
  Option<Swap> swap_ =
      option("swap", "none", SwapDomain{}, {"none", "all"},
             "activations inside layers that leave the GPU in forward and come back, instead of "
             "being recomputed: none: as the published step times look | auto: by the paper's "
             "cost model, as long as the step gets faster, which it does at large batches | all | "
             "a fraction of their bytes | bytes per micro-batch, e.g. 60GiB");
  Option<std::optional<std::uint64_t>> group_ = option(
      "group", "block", WordOr<Elements>{"block", Elements{element_alignment}}, {"1e8", "1e7"},
      "what the optimizer updates at a time: block (a layer) | elements, in the code 7e8");
  Option<int> state_buffers_ =
      option("state_buffers", "2", count(1, 16), {"1"},
             "groups whose optimizer state is in host memory at once, 1 to 16; naive has one");
  Option<int> forward_ahead_ =
      option("forward_ahead", "1", count(0, 16), {"0"},
             "layers of parameters fetched to the GPU ahead of forward, 0 to 16 (the authors' "
             "code: three pieces that make one layer)");
  Option<int> backward_ahead_ = option("backward_ahead", "1", count(0, 16), {"0"},
                                       "the same in backward (the authors' code: 0, which costs "
                                       "time that the paper's figures do not show)");
  Option<int> activations_ahead_ = option("activations_ahead", "1", count(0, 16), {"0"},
                                          "layers whose activations come back ahead, 0 to 16");
};

}  // namespace

std::unique_ptr<Policy> make_fuyou() { return std::make_unique<Fuyou>(); }

}  // namespace spillway
