// greedysnake: vertical micro-batches in snake order, with a fraction of the optimizer delayed into
// the next step's forward (policies/greedysnake/vertical.hpp).
//
// Source: GreedySnake (arXiv 2512.17570) and its first author's public code. Training stays
// synchronous: every weight is current when used, and the epilogue applies what the last step
// delayed.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/greedysnake/greedysnake_lp.hpp"
#include "policies/greedysnake/vertical.hpp"

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
    alpha_ = unless_auto("alpha");
    options_.snake = read.on_off("snake");
    options_.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    bulk_synchronous_ = read.choice("barriers", {"none", "code"}) == 1;
    by_model_ = read.choice("placement", {"least", "lp"}) == 1;
    optimizer_ssd_ = unless_auto("optimizer_ssd");
    parameters_ssd_ = unless_auto("parameters_ssd");
    checkpoints_ssd_ = unless_auto("checkpoints_ssd");
    gradients_gpu_ = unless_auto("gradients_gpu");
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
         {"barriers",
          "none",
          "none: tasks wait for their data only | code: as the authors' program, the host waits "
          "for every micro-batch, and for the SSD at every layer",
          {"none"}},
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

  // What costs least traffic per byte it frees goes first: optimizer state, checkpoints,
  // parameters.
  std::vector<PolicyOptions> placements() const override {
    std::vector<PolicyOptions> all;
    PolicyOptions now;
    if (!optimizer_ssd_) now["optimizer_ssd"] = "0";
    if (!checkpoints_ssd_) now["checkpoints_ssd"] = "0";
    if (!parameters_ssd_) now["parameters_ssd"] = "0";
    all.push_back(now);
    const auto raise = [&](const std::optional<double>& given, const char* name, int parts) {
      if (given) return;
      for (int part = 1; part <= parts; ++part) {
        now[name] = fmt::format("{:g}", static_cast<double>(part) / parts);
        all.push_back(now);
      }
    };
    raise(optimizer_ssd_, "optimizer_ssd", 100);
    raise(checkpoints_ssd_, "checkpoints_ssd", 20);
    raise(parameters_ssd_, "parameters_ssd", 50);
    return all;
  }

  std::vector<PolicyOptions> placements_for(const Problem& problem) const override {
    std::vector<PolicyOptions> all = by_model_ ? modelled(problem) : placements();
    if (alpha_ || by_model_) return all;
    const auto plan = plan_for(problem, greedysnake_inputs(problem, Costs(problem)));
    for (PolicyOptions& one : all) one["alpha"] = fmt::format("{:g}", plan ? plan->alpha : 0);
    return all;
  }

  bool derives() const override { return !bulk_synchronous_; }
  Plan plan(const Problem& problem, const Costs&) const override {
    const double state_ssd = optimizer_ssd_.value_or(0), parameters_ssd = parameters_ssd_.value_or(0);
    Plan plan;
    const auto micro_batches = static_cast<int>(problem.workload.micro_batches());
    const bool has_inner = micro_batches > 2 * plan.checkpoints.margin;
    const double checkpoints_ssd = has_inner ? checkpoints_ssd_.value_or(0) : 0;
    plan.parameters.rest = {.host = 1 - parameters_ssd, .ssd = parameters_ssd};
    plan.optimizer_state.rest = {.host = 1 - state_ssd, .ssd = state_ssd};
    plan.checkpoints.rest = {.host = 1 - checkpoints_ssd, .ssd = checkpoints_ssd};
    plan.checkpoints.host_ahead = micro_batches;
    plan.activation_gradients.on_gpu = gradients_gpu_.value_or(0);
    plan.saved.saves.assign(static_cast<std::size_t>(problem.model.layers), saved_none);
    plan.saved.saves.back() = saved_all;
    plan.saved.recomputes_output = options_.recomputes_output;
    return plan;
  }

  void step(Step& step) const override {
    const double alpha = alpha_.value_or(0);
    const auto order = [&](int layer) { return options_.snake ? step.snake(layer) : step.ascending(); };
    for (const int layer : step.upward()) {
      step.update(layer, {0, alpha});
      for (const int m : order(layer)) step.forward(layer, m);
    }
    for (const int layer : step.downward()) {
      for (const int m : order(layer)) step.backward(layer, m);
      step.update(layer, {alpha, 1});
    }
    step.update(step.embedding());
  }

  void setup(Program& program) override {
    options_.checkpoints_ssd = checkpoints_ssd_.value_or(0);
    options_.gradients_gpu = gradients_gpu_.value_or(0);
    const VerticalOrder order(program.problem(), options_);
    if (bulk_synchronous_) program.use_one_copy_lane();
    BlockStateOptions blocks;
    blocks.chunks = bulk_synchronous_ ? order.micro_batches() : 1;
    blocks.alpha = alpha_.value_or(0);
    blocks.parameters_ssd = parameters_ssd_.value_or(0);
    blocks.optimizer_ssd = optimizer_ssd_.value_or(0);
    blocks.checkpoint_slots = static_cast<std::uint64_t>(order.slots());
    blocks.takes_turns = bulk_synchronous_;
    if (bulk_synchronous_) blocks.staging_slots = static_cast<std::uint64_t>(order.staging_slots());
    blocks_.emplace(program, blocks);
    state_.emplace(program);
    // The authors' program keeps the embedding's state in host memory.
    const double ssd = bulk_synchronous_ ? 0 : blocks.optimizer_ssd;
    state_->place_parameters(state_->embedding(), {.gpu = 1});
    state_->place_optimizer(state_->embedding(), {.host = 1 - ssd, .ssd = ssd});
  }

  void emit_step(Program& program, int step) override {
    const auto emit = bulk_synchronous_ ? emit_bulk_synchronous_step : emit_vertical_step;
    emit(program, *state_, *blocks_, options_, step);
  }

  void emit_epilogue(Program& program) override { emit_vertical_epilogue(program, *blocks_); }

 private:
  std::optional<GreedySnakePlan> plan_for(const Problem& problem,
                                          const GreedySnakeInputs& inputs) const {
    const int micro_batches = static_cast<int>(problem.workload.micro_batches());
    return alpha_ ? solve_greedysnake(inputs, micro_batches, *alpha_)
                  : best_alpha(inputs, micro_batches);
  }

  // What the model chooses for this memory, then for less and less of it: it counts memory by the
  // buffers of the authors' program, and the schedule has others.
  std::vector<PolicyOptions> modelled(const Problem& problem) const {
    GreedySnakeInputs inputs = greedysnake_inputs(problem, Costs(problem));
    inputs.stash_may_grow = true;
    inputs.checkpoints_ssd = checkpoints_ssd_;
    inputs.parameters_ssd = parameters_ssd_;
    inputs.optimizer_ssd = optimizer_ssd_;
    const double host = inputs.host_memory, gpu = inputs.gpu_memory;
    std::vector<PolicyOptions> all;
    for (int less = 0; less < 100; ++less) {
      inputs.host_memory = host * (100 - less) / 100;
      inputs.gpu_memory = gpu * std::max(0, 20 - less) / 20;
      const auto plan = plan_for(problem, inputs);
      if (!plan) break;
      PolicyOptions one;
      const auto choose = [&](bool given, const char* name, double value) {
        if (!given) one[name] = fmt::format("{:.4g}", value);
      };
      choose(alpha_.has_value(), "alpha", plan->alpha);
      choose(optimizer_ssd_.has_value(), "optimizer_ssd", plan->optimizer_ssd);
      choose(checkpoints_ssd_.has_value(), "checkpoints_ssd", plan->checkpoints_ssd);
      choose(parameters_ssd_.has_value(), "parameters_ssd", plan->parameters_ssd);
      choose(gradients_gpu_.has_value(), "gradients_gpu", plan->gradients_gpu);
      if (all.empty() || one != all.back()) all.push_back(one);
    }
    // Where the model finds nothing, or nothing that fits: as much on the SSD as there can be.
    all.push_back(placements().back());
    if (!alpha_) all.back()["alpha"] = "0";
    return all;
  }

  std::optional<double> alpha_, optimizer_ssd_, parameters_ssd_, checkpoints_ssd_, gradients_gpu_;
  bool bulk_synchronous_ = false, by_model_ = false;
  VerticalOptions options_;
  std::optional<ModelState> state_;    // the embedding
  std::optional<BlockStates> blocks_;  // all else
};

}  // namespace

std::unique_ptr<Policy> make_greedysnake(const PolicyOptions& options) {
  return std::make_unique<GreedySnake>(options);
}

}  // namespace spillway
