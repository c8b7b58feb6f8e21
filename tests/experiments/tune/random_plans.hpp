// Plans of every kind that the program can carry out, on problems of every kind, each from a seed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/model/saved.hpp"
#include "policies/movement/plan.hpp"
#include "tests/policies/dice.hpp"
#include "tests/policies/schedules.hpp"

namespace spillway::test {

// A policy of one plan, whose order of work the plan says.
class OnePlan : public Policy {
 public:
  explicit OnePlan(Plan plan) : Policy("one-plan", "none", "a plan"), plan_(std::move(plan)) {}
  Plan plan(const Problem&, const Costs&) const override { return plan_; }

 private:
  Plan plan_;
};

inline void give_random_law(Machine::Ssd& ssd, Dice& dice) {
  ssd.law = static_cast<SsdLaw>(dice.below(4));
  ssd.mixed_gain = 1 + 0.1 * static_cast<double>(dice.below(11));
  for (const double share : {0.25, 0.5, 0.75}) {
    if (dice.chance(0.25)) ssd.by_read_share[share] = 1 + 0.1 * static_cast<double>(dice.below(11));
  }
}

// Rates apart by factors of up to a thousand, every law of the drives, plenty of memory. Slow, so
// that rounding to nanoseconds does not matter.
inline Machine random_machine(Dice& dice) {
  Machine machine;
  machine.name = "random";
  machine.gpu.memory = machine.host.memory = machine.ssd.capacity = std::uint64_t{1} << 40;
  machine.gpu.flops = 1e8 * dice.times(10);
  machine.gpu.memory_bandwidth = 1e8 * dice.times(10);
  machine.gpu.adam_params_per_second = 1e6 * dice.times(10);
  machine.gpu.launch_ns = dice.chance(0.5) ? 0 : 100'000;
  machine.pcie.h2d = 1e6 * dice.times(10);
  machine.pcie.d2h = dice.chance(0.5) ? machine.pcie.h2d : 1e6 * dice.times(10);
  if (dice.chance(0.3)) machine.pcie.total = 1.5 * machine.pcie.h2d;
  machine.pcie.latency_ns = dice.chance(0.5) ? 0 : 100'000;
  machine.host.bandwidth = 1e7 * dice.times(10);
  machine.host.cores = 8;
  machine.host.adam_params_per_second = 1e6 * dice.times(10);
  machine.ssd.count = 1;
  machine.ssd.read = 1e6 * dice.times(10);
  machine.ssd.write = dice.chance(0.5) ? machine.ssd.read : 1e6 * dice.times(10);
  give_random_law(machine.ssd, dice);
  return machine;
}

inline Problem random_problem(Dice& dice) {
  Problem problem;
  problem.model.name = "random";
  problem.model.layers = dice.between(1, 9);
  problem.model.hidden = 32 * dice.between(1, 3);
  problem.model.heads = problem.model.kv_heads = 2;
  problem.model.ffn = 4 * problem.model.hidden;
  problem.model.vocabulary = 64 << dice.below(5);
  problem.model.positions = 64;
  problem.machine = random_machine(dice);
  Workload& workload = problem.workload;
  workload.micro_batch = dice.between(1, 3);
  workload.batch = workload.micro_batch * (dice.chance(0.4) ? 1 : dice.between(1, 7));
  workload.sequence = 4 << dice.below(5);
  if (dice.chance(0.2)) workload.precision = Precision::fp32;
  if (dice.chance(0.2)) workload.moments = MomentWidth::bf16;
  if (dice.chance(0.2)) workload.gradient = GradientWidth::bits32;
  if (dice.chance(0.2)) workload.clip = {ClipScope::global, 1};
  if (dice.chance(0.1)) workload.clip = {ClipScope::layer, 1};
  if (workload.precision == Precision::fp32) problem.trains_on = Backend::cpu;
  if (dice.chance(0.4)) make_llama(problem.model, dice.below(std::uint64_t{1} << 32));
  return problem;
}

// With adapters, or frozen layers where there are several.
inline Problem random_partly_frozen_problem(Dice& dice) {
  Problem problem = random_problem(dice);
  if (problem.model.layers == 1) ++problem.model.layers;
  while (!problem.model.has_frozen())
    freeze_some(problem.model, dice.below(std::uint64_t{1} << 32));
  return problem;
}

// Either, of one of several ranks, each of whose units has a cell of the element grid for each.
inline Problem random_ranks_problem(Dice& dice) {
  Problem problem = dice.chance(0.3) ? random_partly_frozen_problem(dice) : random_problem(dice);
  const int ranks = dice.between(2, 4);
  problem.workload.ranks = problem.workload.gradient_groups = ranks;
  problem.workload.batch *= ranks;
  problem.machine.cluster.gpus = ranks;
  problem.machine.cluster.nvlink = 1e9 * dice.between(1, 200);
  problem.model.vocabulary = std::max<std::int64_t>(problem.model.vocabulary, 512);
  problem.model.ffn = std::max<std::int64_t>(problem.model.ffn, 256);
  if (problem.model.has_adapters()) problem.model.lora_rank += 12;
  return problem;
}

// A built-in model on a built-in machine with plenty of memory, of up to four micro-batches.
inline Problem random_large_problem(Dice& dice) {
  const std::vector<std::string> models = {"gpt2-1.5b", "llama-7b", "gpt-13b", "gpt-65b",
                                           "gpt-175b"};
  const std::vector<std::string> machines = {"rtx4090-12ssd", "a100-80gb", "h200"};
  Problem problem;
  problem.model = load_model(models[dice.below(models.size())]);
  problem.machine = load_machine(machines[dice.below(machines.size())]);
  problem.machine.gpu.memory = problem.machine.host.memory = std::uint64_t{1} << 45;
  problem.machine.ssd.capacity = std::uint64_t{1} << 45;
  give_random_law(problem.machine.ssd, dice);
  problem.workload.micro_batch = 1 << dice.below(5);
  problem.workload.batch = problem.workload.micro_batch * dice.between(1, 4);
  if (dice.chance(0.2)) problem.workload.moments = MomentWidth::bf16;
  if (dice.chance(0.2)) problem.workload.clip = {ClipScope::global, 1};
  return problem;
}

inline Share random_share(Dice& dice) {
  const double host = dice.habit();
  return {.host = host, .ssd = 1 - host};
}

// In all layers alike or, half the time, anew in each; on the GPU in each with a probability.
inline ByLayer<Share> random_places(Dice& dice, const Problem& problem, double on_gpu) {
  const auto one = [&] { return dice.chance(on_gpu) ? Share{.gpu = 1} : random_share(dice); };
  if (dice.chance(0.5)) return one();
  std::vector<Share> places;
  for (std::int64_t layer = 0; layer < problem.model.layers; ++layer) places.push_back(one());
  return ByLayer<Share>::of_each(places);
}

inline void choose_activations(Dice& dice, const Problem& problem, Plan& plan) {
  const int micro_batches = static_cast<int>(problem.workload.micro_batches());
  plan.checkpoints.rest = random_places(dice, problem, 0.3);
  plan.checkpoints.host_ahead = dice.between(0, micro_batches + 1);
  plan.checkpoints.gpu_ahead = dice.between(0, 3);
  plan.checkpoints.margin = dice.between(0, 2);
  plan.activation_gradients.on_gpu = dice.habit();
  if (dice.chance(0.5)) plan.saved.rest = random_places(dice, problem, 0.3);
  const double saves = dice.habit(), saves_all = dice.habit();
  std::vector<SavedMask> masks;
  for (std::int64_t layer = 0; layer < problem.model.layers; ++layer) {
    masks.push_back(!dice.chance(saves)      ? SavedMask{saved_none}
                    : dice.chance(saves_all) ? saved_all(problem.model)
                                             : static_cast<SavedMask>(dice.below(
                                                   std::uint64_t{saved_all(problem.model)} + 1)));
  }
  plan.saved.saves = ByLayer<SavedMask>::of_each(masks);
  plan.saved.recomputes_output = dice.chance(0.5);
}

// Where optimizer state rests, which is where layers are updated.
inline void choose_state(Dice& dice, const Problem& problem, Plan& plan) {
  const auto layers = static_cast<int>(problem.model.layers);
  const bool alike = dice.chance(0.3);
  const Share first = random_share(dice);
  const double on_gpu = dice.habit();
  std::vector<Share> places;
  for (int layer = 0; layer < layers; ++layer) {
    const bool may_be_there = plan.parameters.rest.at(layer, layers).gpu == 1;
    places.push_back(may_be_there && dice.chance(on_gpu) ? Share{.gpu = 1}
                     : alike                             ? first
                                                         : random_share(dice));
  }
  plan.optimizer_state.rest = ByLayer<Share>::of_each(places);
  if (dice.chance(0.5))
    plan.optimizer_state.embedding = dice.chance(0.3) ? Share{.gpu = 1} : random_share(dice);
}

// Updates where state rests or, with all parameters on the GPU and all state in host memory, one in
// so many on the GPU.
inline void choose_optimizer(Dice& dice, const Problem& problem, Plan& plan) {
  const bool some_on_gpu = dice.chance(0.1);
  if (some_on_gpu) {
    plan.parameters.rest = Share{.gpu = 1};
    plan.optimizer_state.rest = Share{.host = 1};
    plan.optimizer.gpu_stride = dice.between(1, 4);
    plan.optimizer_state.gpu_slots = dice.between(1, 2);
    plan.optimizer_state.writes_behind = dice.chance(0.5);
  } else {
    choose_state(dice, problem, plan);
    if (dice.chance(0.5)) plan.optimizer_state.slots = dice.between(1, 4);
    plan.optimizer_state.writes_at_once = dice.chance(0.5);
    if (dice.chance(0.6)) plan.order.delayed = dice.habit();
  }
  const UpdateOrder orders[] = {UpdateOrder::within, UpdateOrder::ascending,
                                UpdateOrder::descending};
  plan.order.updates = orders[some_on_gpu ? 1 + dice.below(2) : dice.below(3)];
  plan.order.waits = dice.chance(0.05);
  plan.optimizer_state.ahead = dice.between(0, 3);
  plan.optimizer.blocking = dice.chance(0.1);
  plan.optimizer.early = dice.chance(0.6);
  plan.optimizer.own_phase = some_on_gpu || dice.chance(0.1);
  plan.optimizer.group =
      some_on_gpu ? UpdateGroup::tensors : static_cast<UpdateGroup>(dice.below(4));
  plan.optimizer.elements =
      std::max<std::uint64_t>(element_alignment * (1 + dice.below(20)),
                              static_cast<std::uint64_t>(unit_elements(problem.model, 0)) / 3);
}

inline Plan random_plan(Dice& dice, const Problem& problem) {
  const int micro_batches = static_cast<int>(problem.workload.micro_batches());
  Plan plan;
  plan.order.row = dice.chance(0.4) ? 0 : dice.between(1, micro_batches);
  plan.order.snake = dice.chance(0.5);
  plan.parameters.rest = random_places(dice, problem, 0.2);
  plan.parameters.host_ahead = dice.between(0, 3);
  plan.parameters.gpu_ahead = dice.between(0, 3);
  if (dice.chance(0.5)) plan.parameters.backward_gpu_ahead = dice.between(0, 3);
  choose_activations(dice, problem, plan);
  choose_optimizer(dice, problem, plan);
  plan.gradients.on_gpu = dice.chance(0.5);
  const auto layers = static_cast<int>(problem.model.layers);
  bool state_on_gpu = plan.optimizer.gpu_stride > 0;
  for (int unit = 0; unit <= layers; ++unit)
    state_on_gpu = state_on_gpu || state_rests_on_gpu(plan, unit, layers);
  if (plan.optimizer.gpu_stride > 0 || dice.chance(0.5)) plan.gradients.head_waits = Tier::gpu;
  if (!state_on_gpu && dice.chance(0.3))
    plan.gradients.bucket = 1 + dice.below(1 << dice.between(10, 18));
  if (plan.order.row == 1 && dice.chance(0.3)) plan.saved.slots = dice.between(2, 6);
  if (dice.chance(0.6)) {
    for_kinds(plan.retention, [&](const char*, Retention& retention) {
      retention = dice.chance(0.6) ? Retention::nearest() : Retention::never();
    });
    plan.spare_gpu_bytes = dice.below(1 << dice.between(10, 22));
    plan.spare_host_bytes = dice.below(1 << dice.between(10, 22));
  }
  return plan;
}

}  // namespace spillway::test
