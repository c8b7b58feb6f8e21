#include "policies/greedysnake/placement.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "policies/common/least_on_ssd.hpp"
#include "policies/cost/costs.hpp"
#include "policies/greedysnake/greedysnake_lp.hpp"

namespace spillway {

namespace {

std::optional<GreedySnakePlan> solve(const Problem& problem, const GreedySnakeInputs& inputs,
                                     const std::optional<double>& alpha) {
  const int micro_batches = static_cast<int>(problem.workload.micro_batches());
  return alpha ? solve_greedysnake(inputs, micro_batches, *alpha)
               : best_alpha(inputs, micro_batches);
}

std::vector<PolicyOptions> rising(const GreedySnakeShares& given) {
  std::vector<OpenShare> open;
  if (!given.optimizer_ssd) open.push_back({"optimizer_ssd", 100});
  if (!given.checkpoints_ssd) open.push_back({"checkpoints_ssd", 20});
  if (!given.parameters_ssd) open.push_back({"parameters_ssd", 50});
  return rising_on_ssd(open, [](double on_ssd) { return fmt::format("{:g}", on_ssd); });
}

}  // namespace

std::vector<PolicyOptions> least_placements(const Problem& problem,
                                            const GreedySnakeShares& given) {
  std::vector<PolicyOptions> all = rising(given);
  if (given.alpha) return all;
  const auto plan = solve(problem, greedysnake_inputs(problem, Costs(problem)), given.alpha);
  for (PolicyOptions& one : all) one["alpha"] = fmt::format("{:g}", plan ? plan->alpha : 0);
  return all;
}

std::vector<PolicyOptions> modelled_placements(const Problem& problem,
                                               const GreedySnakeShares& given) {
  GreedySnakeInputs inputs = greedysnake_inputs(problem, Costs(problem));
  inputs.stash_may_grow = true;
  inputs.checkpoints_ssd = given.checkpoints_ssd;
  inputs.parameters_ssd = given.parameters_ssd;
  inputs.optimizer_ssd = given.optimizer_ssd;
  const double host = inputs.host_memory, gpu = inputs.gpu_memory;
  std::vector<PolicyOptions> all;
  for (int less = 0; less < 100; ++less) {
    inputs.host_memory = host * (100 - less) / 100;
    inputs.gpu_memory = gpu * std::max(0, 20 - less) / 20;
    const auto plan = solve(problem, inputs, given.alpha);
    if (!plan) break;
    PolicyOptions one;
    const auto choose = [&](bool is_given, const char* name, double value) {
      if (!is_given) one[name] = fmt::format("{:.4g}", value);
    };
    choose(given.alpha.has_value(), "alpha", plan->alpha);
    choose(given.optimizer_ssd.has_value(), "optimizer_ssd", plan->optimizer_ssd);
    choose(given.checkpoints_ssd.has_value(), "checkpoints_ssd", plan->checkpoints_ssd);
    choose(given.parameters_ssd.has_value(), "parameters_ssd", plan->parameters_ssd);
    choose(given.gradients_gpu.has_value(), "gradients_gpu", plan->gradients_gpu);
    if (all.empty() || one != all.back()) all.push_back(one);
  }
  // Where the model finds nothing, or nothing that fits: as much on the SSD as there can be.
  all.push_back(rising(given).back());
  if (!given.alpha) all.back()["alpha"] = "0";
  return all;
}

}  // namespace spillway
