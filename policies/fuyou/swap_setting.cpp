#include "policies/fuyou/swap_setting.hpp"

#include <algorithm>
#include <numeric>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/scratch.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

namespace {

// Bytes of host memory that hold optimizer state on its way: of each slot, the largest group that
// takes its turn there. Groups are "tensors" in section IV-C: whole units, several, or parts of
// one.
double state_slot_bytes(Problem problem, Plan plan) {
  problem.workload.batch = problem.workload.micro_batch;
  plan.order = {.updates = UpdateOrder::within};
  Step step(problem, plan);
  step.begin(0);
  step.in_order_of_plan();
  step.end();
  const OrderOfWork work = step.finish();
  std::vector<std::uint64_t> most(static_cast<std::size_t>(plan.optimizer_state.slots), 0);
  for (std::size_t g = 0; g < work.updates.size(); ++g) {
    std::uint64_t elements = 0;
    for (std::uint32_t r = 0; r < work.updates[g].range_count; ++r)
      elements += work.ranges[work.updates[g].first_range + r].elements;
    most[g % most.size()] = std::max(most[g % most.size()], elements);
  }
  const std::uint64_t elements = std::accumulate(most.begin(), most.end(), std::uint64_t{0});
  return static_cast<double>(elements * problem.state_bytes());
}

// Host memory first for parameters on their way, optimizer state and gradients (MEM_avail).
double host_memory_left(const Problem& problem, const Plan& plan, OptimizerOverlap overlap) {
  const auto shard_of = [&](std::int64_t elements) {
    return static_cast<double>(largest_shard(problem, elements));
  };
  const double layer = shard_of(unit_elements(problem.model, 0));
  const double trained = shard_of(trained_elements(problem.model, problem.model.layers - 1));
  const auto width = static_cast<double>(problem.parameter_bytes());
  const auto gradient = static_cast<double>(problem.gradient_bytes());
  const bool keeps_gradients =
      problem.workload.micro_batches() > 1 || overlap == OptimizerOverlap::nothing;
  const int staged = plan.parameters.host_ahead + plan.parameters.gpu_ahead + 1;
  const double used =
      state_slot_bytes(problem, plan) + (staged + plan.optimizer_state.slots) * layer * width +
      (keeps_gradients ? static_cast<double>(problem.model.layers) : 3.0) * trained * gradient;
  return static_cast<double>(problem.machine.host.memory) - used;
}

// The operators, in their order, that can be kept of each layer within the GPU memory that the rest
// of the step leaves: as many layers' worth as the plan has slots for them.
std::vector<SwapOperator> that_fit_gpu(const Problem& problem, const Plan& plan,
                                       const std::vector<SwapOperator>& operators) {
  const ModelSpec& model = problem.model;
  const auto layer = static_cast<double>(unit_elements(model, 0));
  const auto trained = static_cast<double>(trained_elements(model, model.layers - 1));
  const auto outer = static_cast<double>(outer_elements(model));
  const auto outer_trained = static_cast<double>(outer_trained_elements(model));
  const auto width = static_cast<double>(problem.parameter_bytes());
  const auto gradient = static_cast<double>(problem.gradient_bytes());
  const int ahead =
      std::max(plan.parameters.gpu_ahead, plan.parameters.backward_gpu_ahead.value_or(0));
  const auto scratch = static_cast<double>(
      std::max(backward_scratch_bytes(problem, saved_none), head_scratch_bytes(problem)));
  // Of several ranks, the shards that whole layers are gathered from, too.
  const double shard = problem.workload.ranks > 1
                           ? static_cast<double>(largest_shard(problem, unit_elements(model, 0)))
                           : 0;
  const double rest = outer * width + outer_trained * gradient +
                      (ahead + 1) * (layer + shard) * width + 3 * trained * gradient + scratch +
                      4 * static_cast<double>(checkpoint_bytes(problem));
  const double most =
      (static_cast<double>(problem.machine.gpu.memory) - rest) / std::max(plan.saved.slots, 1);
  std::vector<double> used(static_cast<std::size_t>(model.layers), 0);
  std::vector<SwapOperator> fitting;
  for (const SwapOperator& one : operators) {
    double& bytes = used[static_cast<std::size_t>(one.layer)];
    if (bytes + one.bytes > most) continue;
    bytes += one.bytes;
    fitting.push_back(one);
  }
  return fitting;
}

}  // namespace

bool SwapDomain::read(const std::string& text, Swap& swap) const {
  using Kind = Swap::Kind;
  const Choice<Swap> words{
      {"auto", {Kind::automatic, 0}}, {"none", {Kind::none, 0}}, {"all", {Kind::fraction, 1}}};
  double number = 0;
  if (words.read(text, swap)) return true;
  if (read_number(text, number)) {
    swap = {Kind::fraction, number};
    return fraction.holds(number);
  }
  try {
    swap = {Kind::bytes, static_cast<double>(parse_bytes(text))};
  } catch (const InputError&) {
    return false;
  }
  return true;
}

ByLayer<SavedMask> swapped_tensors(const Problem& problem, const Costs& costs, const Plan& plan,
                                   const Swap& swap, OptimizerOverlap overlap) {
  if (swap.kind == Swap::Kind::none) return saved_none;
  const auto of_layers = ByLayer<SavedMask>::of_each;
  const std::int64_t layers = problem.model.layers;
  const std::vector<SwapOperator> operators = by_benefit(swap_operators(problem));
  if (swap.kind == Swap::Kind::bytes)
    return of_layers(swap_masks(swaps_within(operators, swap.amount), layers));
  if (swap.kind == Swap::Kind::fraction) {
    double all = 0;
    for (const SwapOperator& one : operators) all += one.bytes;
    return of_layers(swap_masks(swaps_within(operators, swap.amount * all), layers));
  }
  SwapModel model = swap_model(problem, costs, host_memory_left(problem, plan, overlap));
  model.overlap = overlap;
  const double recomputed =
      static_cast<double>(layers) * recompute_flops(problem, saved_none, false);
  return of_layers(swap_masks(choose_swaps(model, that_fit_gpu(problem, plan, operators),
                                           model.inter_block_bytes, recomputed),
                              layers));
}

}  // namespace spillway
