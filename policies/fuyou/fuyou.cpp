// fuyou: the optimizer runs during backward, group by group, as gradients arrive; all model states
// on the SSD; activations inside layers may be swapped instead of recomputed (setting `swap`).
//
// Source: Liao et al., Fuyou (arXiv 2403.06504v1) = LoHan (v2) = Ratel (ICDE 2025), and the
// authors' code where the paper is silent (RC4ML/LoHan). The paper has one micro-batch per step;
// with several, gradients accumulate in host memory and the optimizer runs in the last one's
// backward.
#include <fmt/format.h>

#include <algorithm>

#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/fuyou/swap_setting.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

namespace {

enum Pipeline { optimized, naive, serial };

class Fuyou : public Policy {
 public:
  explicit Fuyou(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    pipeline_ = static_cast<Pipeline>(read.choice("optimizer", {"optimized", "naive", "serial"}));
    settles_overflow_ = read.is_auto("checkpoints_ssd");
    if (!settles_overflow_) overflow_ = read.fraction("checkpoints_ssd");
    swap_ = read_swap(read);
    const bool whole_layers = read.choice("recompute", {"full", "needed"}) == 0;
    recomputes_output_ = whole_layers && swap_.kind == Swap::Kind::none;
    group_ = read.text("group") == "block" ? 0 : read.elements("group", element_alignment);
    state_buffers_ = pipeline_ == naive ? 1 : read.count("state_buffers", 1, 16);
    forward_ahead_ = read.count("forward_ahead", 0, 16);
    backward_ahead_ = read.count("backward_ahead", 0, 16);
    activations_ahead_ = read.count("activations_ahead", 0, 16);
  }

  PolicyInfo info() const override {
    return {
        "fuyou",
        "Fuyou / LoHan / Ratel (arXiv 2403.06504, ICDE 2025)",
        "all model states on the SSD; the CPU optimizer runs under the GPU's backward",
        {{"optimizer", "optimized",
          "optimized: in backward, reading ahead, all under the GPU's work | naive: in backward, "
          "one group at a time, the GPU waiting for it | serial: after backward"},
         {"checkpoints_ssd",
          "auto",
          "fraction of the activations that wait in host memory, those between blocks and those "
          "swapped, that overflows to the SSD; auto: the least that fits",
          {"auto", "1"}},
         {"recompute",
          "full",
          "with swap=none, full: recompute whole blocks | needed: only what backward needs, as "
          "with any other swap",
          {"full"}},
         {"swap",
          "none",
          "activations inside blocks that leave the GPU in forward and come back, instead of being "
          "recomputed: none: as the published measurements look | auto: by the paper's cost model, "
          "as long as the step gets faster, which it does at large batches | all | a fraction of "
          "their bytes | bytes per micro-batch, e.g. 60GiB",
          {"none", "all"}},
         {"group",
          "block",
          "what the optimizer updates at a time: block | a number of elements, 7e8 in the authors' "
          "code",
          {"1e8", "1e7"}},
         {"state_buffers",
          "2",
          "groups whose optimizer state is in host memory at once, 1 to 16; naive has one",
          {"1"}},
         {"forward_ahead",
          "1",
          "blocks of parameters fetched to the GPU ahead of forward, 0 to 16 (the authors' code: "
          "three pieces that make one block)",
          {"0"}},
         {"backward_ahead",
          "1",
          "the same in backward (the authors' code: 0, which costs time that the paper's figures "
          "do not show)",
          {"0"}},
         {"activations_ahead", "1", "blocks whose activations come back ahead, 0 to 16", {"0"}}}};
  }

  // What overflows to the SSD: tried in this order, the first that fits is taken.
  std::vector<PolicyOptions> placements(const Problem&) const override {
    if (!settles_overflow_) return {{}};
    std::vector<PolicyOptions> all;
    for (int tenth = 0; tenth <= 10; ++tenth)
      all.push_back({{"checkpoints_ssd", fmt::format("{:g}", tenth / 10.0)}});
    return all;
  }

  Plan plan(const Problem& problem, const Costs& costs) const override {
    Plan plan;
    plan.parameters.rest = plan.optimizer_state.rest = {.ssd = 1};
    plan.parameters.gpu_ahead = forward_ahead_;
    plan.parameters.backward_gpu_ahead = backward_ahead_;
    // Section IV-C, active gradient offloading: gradients go to host memory and never touch the
    // SSD. Backward goes down, so group i + 1 comes before group i. With two buffers of optimizer
    // state the read of i - 1 waits for the write of i + 1, but not for the gradient of i - 1.
    plan.gradients.on_gpu = false;
    plan.gradients.head_waits = Tier::gpu;  // what the loss adds, until the embedding's is complete
    plan.optimizer_state.slots = state_buffers_;
    plan.optimizer_state.ahead = state_buffers_ - 1;
    plan.optimizer.blocking =
        pipeline_ == naive;  // the thread that launches the GPU's work runs it
    if (group_ > 0) plan.optimizer.group = UpdateGroup::at_most;
    plan.optimizer.elements = group_;
    // Section IV-D, activation swapping: to host memory, what does not fit on to the SSD.
    plan.checkpoints.rest = {.host = 1 - overflow_, .ssd = overflow_};
    plan.checkpoints.gpu_ahead = activations_ahead_;
    plan.saved.slots = std::max(activations_ahead_ + 1, 2);
    plan.saved.recomputes_output = recomputes_output_;
    const bool waits = problem.workload.updates_wait() || pipeline_ == serial;
    plan.saved.saves = swapped_tensors(problem, costs, plan, swap_,
                                       waits                ? OptimizerOverlap::nothing
                                       : pipeline_ == naive ? OptimizerOverlap::writes
                                                            : OptimizerOverlap::all);
    return plan;
  }

  void step(Step& step) const override {
    for (const int m : step.ascending()) {
      const bool is_last = m + 1 == step.micro_batches();
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) {
        step.backward(layer, m);
        if (is_last && pipeline_ != serial) step.update(layer);
      }
    }
    if (pipeline_ == serial) {
      step.wait();
      for (const int layer : step.downward()) step.update(layer);
    }
    step.update(step.embedding());
    if (pipeline_ == serial) step.wait();
  }

 private:
  Pipeline pipeline_ = optimized;
  bool settles_overflow_ = true, recomputes_output_ = false;
  double overflow_ = 0;
  Swap swap_;
  std::uint64_t group_ = 0;  // elements; 0: a layer
  int state_buffers_ = 2, forward_ahead_ = 1, backward_ahead_ = 1, activations_ahead_ = 1;
};

}  // namespace

std::unique_ptr<Policy> make_fuyou(const PolicyOptions& options) {
  return std::make_unique<Fuyou>(options);
}

}  // namespace spillway
