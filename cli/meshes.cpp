// spillway meshes: AMSP's planner: which meshes of ranks communicate least and fit in GPU memory.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/text/output.hpp"
#include "policies/sharded/amsp_planner.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  ProblemOptions problem;
  std::string reserve = "0GB";
  bool recompute = false, json = false;
  std::size_t top = 10;
};

std::string text_of(const AmspMeshes& meshes) {
  return fmt::format("{:>6} {:>6} {:>6}", to_string(meshes.parameters), to_string(meshes.gradients),
                     to_string(meshes.optimizer_state));
}

ordered_json json_of(const AmspPlan& plan) {
  return {{"parameters", to_string(plan.meshes.parameters)},
          {"gradients", to_string(plan.meshes.gradients)},
          {"optimizer_state", to_string(plan.meshes.optimizer_state)},
          {"communication_seconds", plan.cost.seconds()},
          {"parameters_seconds", plan.cost.parameters},
          {"gradients_seconds", plan.cost.gradients},
          {"sync_seconds", plan.cost.sync},
          {"spread_seconds", plan.cost.spread},
          {"gpu_bytes", plan.bytes}};
}

void run(const Options& options, int& exit_code) {
  const Problem problem = options.problem.problem();
  if (problem.workload.ranks == 1)
    throw InputError("one rank has nothing to share",
                     "name a machine with several GPUs, e.g. a800-cluster");
  AmspSettings settings;
  settings.reserve = static_cast<double>(parse_bytes(options.reserve));
  settings.recomputes = options.recompute;
  const std::vector<AmspPlan> plans = amsp_plans(problem, settings);
  const std::size_t shown = std::min(options.top, plans.size());
  if (plans.empty()) exit_code = exit_does_not_fit;
  if (options.json) {
    ordered_json list = ordered_json::array();
    for (std::size_t k = 0; k < shown; ++k) list.push_back(json_of(plans[k]));
    fmt::print("{}\n", to_text(ordered_json{{"model", problem.model.name},
                                            {"machine", problem.machine.name},
                                            {"ranks", to_string(problem.ranks())},
                                            {"micro_batches", problem.workload.micro_batches()},
                                            {"reserve_bytes", settings.reserve},
                                            {"fitting", plans.size()},
                                            {"meshes", list}}));
    return;
  }
  fmt::print("{} on {} ({}), {} micro-batches a rank, {} reserved: {} of {} choices fit\n",
             problem.model.name, problem.machine.name, to_string(problem.ranks()),
             problem.workload.micro_batches(), format_bytes(settings.reserve), plans.size(),
             amsp_meshes(problem.ranks()).size());
  if (shown == 0) return;
  fmt::print("{:>6} {:>6} {:>6} {:>12} {:>11} {:>11} {:>11} {:>11} {:>10}\n", "s_p", "s_g", "s_os",
             "T_comm", "T_p", "T_g", "T_os0", "T_os1", "GPU");
  for (std::size_t k = 0; k < shown; ++k) {
    const AmspPlan& plan = plans[k];
    fmt::print("{} {:>12} {:>11} {:>11} {:>11} {:>11} {:>10}\n", text_of(plan.meshes),
               format_seconds(plan.cost.seconds()), format_seconds(plan.cost.parameters),
               format_seconds(plan.cost.gradients), format_seconds(plan.cost.sync),
               format_seconds(plan.cost.spread), format_bytes(plan.bytes));
  }
}

}  // namespace

void add_meshes(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "meshes",
      "among which ranks to share parameters, gradients and optimizer state: the least "
      "communication that fits, by AMSP's equations");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, true, {"pipeline"});
  command
      ->add_option("--reserve", options->reserve,
                   "GPU memory for what the equations do not count, e.g. 20GB")
      ->capture_default_str();
  command->add_flag("--recompute", options->recompute, "activations are recomputed in backward");
  command->add_option("--top", options->top, "so many choices are shown")->capture_default_str();
  command->add_flag("--json", options->json, "print one JSON object (docs/amsp.md)");
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
