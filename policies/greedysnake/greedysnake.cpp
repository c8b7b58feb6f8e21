// greedysnake: all micro-batches of a layer before the next layer, in an order that turns at every
// layer; part of each layer's update waits for the next step's forward.
//
// Source: GreedySnake (arXiv 2512.17570), of which the abstract is cited here, and its first
// author's public code (docs/greedysnake.md), whose copy stream and barriers are a framework. Every
// weight is current when used; what is delayed in the last step is applied at a schedule's end.
#include "policies/common/policy.hpp"
#include "policies/greedysnake/placement.hpp"
#include "policies/movement/plan.hpp"

namespace spillway {

namespace {

class GreedySnake : public Policy {
 public:
  GreedySnake()
      : Policy("greedysnake", "GreedySnake (arXiv 2512.17570)",
               "vertical micro-batches in snake order; part of the optimizer runs in the next "
               "step's forward") {}

  Plan plan(const Problem& problem, const Costs&) const override {
    const auto micro_batches = static_cast<int>(problem.workload.micro_batches());
    const auto host_and_ssd = [](const std::optional<double>& on_ssd) {
      return Share::host_and_ssd(on_ssd.value_or(0));
    };
    Plan plan;
    // Abstract: "vertical scheduling, which executes all micro-batches of a layer before
    // proceeding to the next"; it "overlaps part of the optimization step with the forward pass of
    // the next iteration". Snake: a layer begins with the micro-batch that is still on the GPU, and
    // its backward takes the order of its forward (authors' code). The last layer's forward of a
    // micro-batch, and the loss, run with its backward (step.hpp). What of an update is not delayed
    // runs under backward, once the layer's gradient is complete.
    plan.order.row = 0;  // all micro-batches of a layer in a row
    plan.order.snake = snake_;
    plan.order.updates = UpdateOrder::within;
    plan.order.delayed = alpha_->value_or(0);
    // Every tensor is split inside each layer, by shares that all layers have in common. Gradients
    // of parameters add up on the GPU and go to host memory once; AdamW runs on the CPU.
    plan.parameters.rest = host_and_ssd(parameters_ssd_);
    // From the SSD to host memory two layers before the copy to the GPU, which is itself one layer
    // ahead, in a piece under each micro-batch of the layer before.
    plan.parameters.host_ahead = 2;
    plan.optimizer_state.rest = host_and_ssd(optimizer_ssd_);
    plan.optimizer.gpu_stride = 0;
    // The first and last two micro-batches' checkpoints of a layer are used again soonest and stay
    // in host memory; those between may go to the SSD, and come back a layer ahead.
    if (micro_batches > 2 * plan.checkpoints.margin)
      plan.checkpoints.rest = host_and_ssd(checkpoints_ssd_);
    plan.checkpoints.host_ahead = micro_batches;
    plan.activation_gradients.on_gpu = gradients_gpu_->value_or(0);  // the others: host memory
    // AdamW takes a layer's part as early as it can, with two parts' state in host memory; or a
    // share after each micro-batch, whose state is read as many shares ahead as a layer has.
    plan.optimizer.group = updates_;
    plan.optimizer.early = updates_ == UpdateGroup::calls;
    if (updates_ == UpdateGroup::shares) plan.optimizer_state.ahead = micro_batches;
    if (updates_ == UpdateGroup::calls) plan.optimizer_state.slots = 2;
    // The last layer's backward follows its forward at once: nothing is recomputed there.
    plan.saved.saves = ByLayer<SavedMask>::but_last(saved_none, saved_all(problem.model));
    plan.saved.recomputes_output = recomputes_output_;
    return plan;
  }

  std::vector<PolicyOptions> placements(const Problem& problem) const override {
    const GreedySnakeShares given = {alpha_, optimizer_ssd_, checkpoints_ssd_, parameters_ssd_,
                                     gradients_gpu_};
    return by_model_ ? modelled_placements(problem, given) : least_placements(problem, given);
  }

 private:
  using Fraction = Option<std::optional<double>>;
  Fraction alpha_ =
      option("alpha", "0.25", or_auto(fraction), {"0"},
             "fraction of each layer's update that is delayed into the next forward, "
             "0 to 1 (the authors' code: at most 0.5); auto: by the authors' performance model");
  Option<bool> snake_ =
      option("snake", "on", on_off(), {},
             "on: micro-batch order turns at every layer | off: always ascending");
  Option<UpdateGroup> updates_ = option(
      "updates", "layer",
      Choice<UpdateGroup>{{"layer", UpdateGroup::calls}, {"micro-batch", UpdateGroup::shares}},
      {"layer"},
      "what AdamW takes at a time, layer: a layer's part | micro-batch: a share of it after each "
      "micro-batch of the layer two below, as the authors' program does");
  Option<bool> by_model_ = option(
      "placement", "least", Choice<bool>{{"least", false}, {"lp", true}}, {"least"},
      "least: as little on the SSD as fits host memory | lp: by the authors' performance model");
  Fraction optimizer_ssd_ =
      option("optimizer_ssd", "auto", or_auto(fraction), {"auto", "1"},
             "fraction of the optimizer state on the SSD; auto: by placement");
  Fraction checkpoints_ssd_ =
      option("checkpoints_ssd", "auto", or_auto(fraction), {"auto", "1"},
             "fraction of the inner micro-batches' checkpoints on the SSD; auto: by placement");
  Fraction parameters_ssd_ =
      option("parameters_ssd", "auto", or_auto(fraction), {"auto", "1"},
             "fraction of the 16-bit parameters on the SSD; auto: by placement");
  Fraction gradients_gpu_ = option("gradients_gpu", "auto", or_auto(fraction), {"auto"},
                                   "fraction of the micro-batches whose activation gradient stays "
                                   "on the GPU between layers; auto: by placement, least: 0");
  Option<bool> recomputes_output_ =
      option("recompute", "full", Choice<bool>{{"full", true}, {"needed", false}}, {"full"},
             "full: recompute whole layers | needed: only what backward needs");
};

}  // namespace

std::unique_ptr<Policy> make_greedysnake() { return std::make_unique<GreedySnake>(); }

}  // namespace spillway
