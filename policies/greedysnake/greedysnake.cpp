// greedysnake: all micro-batches of a layer before the next layer, in an order that turns at every
// layer; part of each layer's update waits for the next step's forward.
//
// Source: GreedySnake (arXiv 2512.17570) and its first author's public code. Training stays
// synchronous: every weight is current when used, and the end of a schedule applies what is
// delayed.
#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/greedysnake/placement.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

namespace {

class GreedySnake : public Policy {
 public:
  explicit GreedySnake(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    const auto unless_auto = [&](const char* name) -> std::optional<double> {
      if (read.is_auto(name)) return std::nullopt;
      return read.fraction(name);
    };
    shares_ = {unless_auto("alpha"), unless_auto("optimizer_ssd"), unless_auto("checkpoints_ssd"),
               unless_auto("parameters_ssd"), unless_auto("gradients_gpu")};
    snake_ = read.on_off("snake");
    recomputes_output_ = read.choice("recompute", {"full", "needed"}) == 0;
    by_model_ = read.choice("placement", {"least", "lp"}) == 1;
    in_parts_ = read.choice("updates", {"layer", "micro-batch"}) == 1;
  }

  PolicyInfo info() const override {
    const std::string by_placement = "; auto: by placement";
    return {
        "greedysnake",
        "GreedySnake (arXiv 2512.17570)",
        "vertical micro-batches in snake order; part of the optimizer runs in the next step's "
        "forward",
        {{"alpha",
          "0.25",
          "fraction of each layer's update that is delayed into the next forward, 0 to 1; auto: by "
          "the paper's performance model",
          {"0"}},
         {"snake", "on", "on: micro-batch order turns at every layer | off: always ascending"},
         {"updates",
          "layer",
          "what AdamW takes at a time, layer: a layer's part | micro-batch: a share of it after "
          "each "
          "micro-batch of the layer two below, as the authors' program does",
          {"layer"}},
         {"placement",
          "least",
          "least: as little on the SSD as fits host memory | lp: by the paper's performance model",
          {"least"}},
         {"optimizer_ssd",
          "auto",
          "fraction of the optimizer state on the SSD" + by_placement,
          {"auto", "1"}},
         {"checkpoints_ssd",
          "auto",
          "fraction of the inner micro-batches' checkpoints on the SSD" + by_placement,
          {"auto", "1"}},
         {"parameters_ssd",
          "auto",
          "fraction of the 16-bit parameters on the SSD" + by_placement,
          {"auto", "1"}},
         {"gradients_gpu",
          "auto",
          "fraction of the micro-batches whose activation gradient stays on the GPU between "
          "layers; auto: by placement, least: 0",
          {"auto"}},
         {"recompute",
          "full",
          "full: recompute whole blocks | needed: only what backward needs",
          {"full"}}}};
  }

  std::vector<PolicyOptions> placements(const Problem& problem) const override {
    return by_model_ ? modelled_placements(problem, shares_) : least_placements(problem, shares_);
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    const auto micro_batches = static_cast<int>(problem.workload.micro_batches());
    const auto host_and_ssd = [](double ssd) { return Share{.host = 1 - ssd, .ssd = ssd}; };
    Plan plan;
    plan.parameters.rest = host_and_ssd(shares_.parameters_ssd.value_or(0));
    plan.optimizer_state.rest = host_and_ssd(shares_.optimizer_ssd.value_or(0));
    // A share's state is read a layer's micro-batches ahead; else two layers' parts take turns.
    if (in_parts_) plan.optimizer_state.ahead = micro_batches;
    if (!in_parts_) plan.optimizer_state.slots = 2;
    plan.optimizer.early = !in_parts_;  // shares stay where step_in_parts has them
    // Of the micro-batches but the first and last two of a layer, which are used again soonest.
    if (micro_batches > 2 * plan.checkpoints.margin)
      plan.checkpoints.rest = host_and_ssd(shares_.checkpoints_ssd.value_or(0));
    plan.checkpoints.host_ahead = micro_batches;
    plan.activation_gradients.on_gpu = shares_.gradients_gpu.value_or(0);
    // Each micro-batch's backward of the last layer follows its forward: nothing is recomputed
    // there.
    plan.saved.saves.assign(static_cast<std::size_t>(problem.model.layers), saved_none);
    plan.saved.saves.back() = saved_all;
    plan.saved.recomputes_output = recomputes_output_;
    return plan;
  }

  void step(Step& step) const override {
    const double alpha = shares_.alpha.value_or(0);
    const Portion delayed = {0, alpha}, at_once = {alpha, 1};
    const auto order = [&](int layer) { return snake_ ? step.snake(layer) : step.ascending(); };
    if (in_parts_) return step_in_parts(step);
    for (const int layer : step.upward()) {
      step.update(layer, delayed);  // with the gradient of the step before
      for (const int m : order(layer)) step.forward(layer, m);
    }
    // Backward takes each layer's micro-batches in the same order, which ends where the layer below
    // begins.
    for (const int layer : step.downward()) {
      for (const int m : order(layer)) step.backward(layer, m);
      step.update(layer, at_once);
    }
    step.update(step.embedding());
  }

 private:
  // The same order, with a share of the update of the layer two above after each micro-batch.
  void step_in_parts(Step& step) const {
    const double alpha = shares_.alpha.value_or(0);
    const auto order = [&](int layer) { return snake_ ? step.snake(layer) : step.ascending(); };
    const auto update_share = [&](int layer, double from, double to, int part) {
      if (layer >= step.layers()) return;
      const auto end_of = [&](int parts) {
        return parts == step.micro_batches() ? to
                                             : from + (to - from) * parts / step.micro_batches();
      };
      step.update(layer, {end_of(part), end_of(part + 1)});
    };
    for (const int layer : {0, 1}) {  // no layer is two below them
      for (int part = 0; part < step.micro_batches(); ++part) update_share(layer, 0, alpha, part);
    }
    for (const int layer : step.upward()) {
      int part = 0;
      for (const int m : order(layer)) {
        step.forward(layer, m);
        update_share(layer + 2, 0, alpha, part++);
      }
    }
    for (const int layer : step.downward()) {
      int part = 0;
      for (const int m : order(layer)) {
        step.backward(layer, m);
        update_share(layer + 2, alpha, 1, part++);
      }
    }
    for (const int layer : {1, 0}) {
      for (int part = 0; part < step.micro_batches(); ++part) update_share(layer, alpha, 1, part);
    }
    step.update(step.embedding());
  }

  GreedySnakeShares shares_;
  bool snake_ = true, recomputes_output_ = true, by_model_ = false, in_parts_ = false;
};

}  // namespace

std::unique_ptr<Policy> make_greedysnake(const PolicyOptions& options) {
  return std::make_unique<GreedySnake>(options);
}

}  // namespace spillway
