// The inputs of GreedySnake's linear program, from a problem.
#include <algorithm>

#include "base/errors.hpp"
#include "policies/greedysnake/greedysnake_lp.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/movement/shards.hpp"

namespace spillway {

namespace {

// Another placement can do without the rates that these inputs need.
[[noreturn]] void fail_without(const InputError& missing) {
  throw InputError("placing by GreedySnake's model: " + missing.message(),
                   missing.advice() + ", or use placement=least");
}

double sum(std::initializer_list<std::uint64_t> bytes) {
  double total = 0;
  for (const std::uint64_t one : bytes) total += static_cast<double>(one);
  return total;
}

}  // namespace

GreedySnakeInputs greedysnake_inputs(const Problem& problem, const Costs& costs) {
  const ModelSpec& model = problem.model;
  const Machine& machine = problem.machine;
  const auto unit = static_cast<std::uint64_t>(unit_elements(model, 0));
  // What is not in layers, and its sums of gradients: a tied embedding has two.
  const auto outer = static_cast<std::uint64_t>(outer_elements(model));
  const std::int64_t outer_sums =
      trained_elements(model, embedding_unit(model)) + trained_elements(model, head_unit(model));
  const auto trained = static_cast<std::uint64_t>(trained_elements(model, model.layers - 1));
  const std::uint64_t activation = checkpoint_bytes(problem);

  GreedySnakeInputs in;
  in.units = static_cast<double>(model.layers);
  // A rank moves and updates its shard; with the rates that it has, so that gpus stays 1.
  in.unit_parameters = static_cast<double>(largest_shard(problem, unit_elements(model, 0)));
  in.device_bytes = static_cast<double>(problem.parameter_bytes());
  in.gradient_bytes = static_cast<double>(problem.gradient_bytes());
  in.moment_bytes = static_cast<double>(moment_bytes(problem.workload.moments));
  in.activation_elements = static_cast<double>(activation) / in.device_bytes;

  // What is in GPU memory whatever the placement: parameters and gradients of two units, those of
  // embedding and head, activations and scratch of the running tasks.
  const std::uint64_t working =
      std::max(head_scratch_bytes(problem), backward_scratch_bytes(problem, saved_none)) +
      saved_bytes(problem, saved_all(problem.model));
  const std::uint64_t width = problem.parameter_bytes(), gradient = problem.gradient_bytes();
  in.gpu_memory = std::max(
      0.0, static_cast<double>(machine.gpu.memory) -
               sum({2 * unit * width, 2 * trained * gradient, outer * width,
                    static_cast<std::uint64_t>(outer_sums) * gradient, 6 * activation, working}));
  // And in host memory: the optimizer state, gradients and updated parameters of both.
  in.host_memory = std::max(
      0.0, static_cast<double>(machine.host.memory) -
               sum({problem.state_bytes() * largest_shard(problem, outer_trained_elements(model)),
                    largest_shard(problem, outer_sums) * gradient,
                    largest_shard(problem, outer_elements(model)) * width}));
  try {
    in.forward_seconds = costs.forward_seconds();
    in.backward_seconds =
        std::max(0.0, costs.backward_seconds(saved_none, true) - in.forward_seconds);
    in.other_seconds = costs.head_seconds();
    in.pcie = std::min(costs.rate(Work::h2d), costs.rate(Work::d2h));
    for (const Work work : {Work::read, Work::write, Work::cpu_optimizer}) (void)costs.rate(work);
  } catch (const InputError& missing) {
    fail_without(missing);
  }
  in.drives = costs.drives();
  in.adam_rate = costs.updates_per_second(Lane::cpu_optimizer);
  return in;
}

}  // namespace spillway
