// How many plans are priced in a second: experiments/plan/price.hpp.
#include <fmt/format.h>

#include <array>

#include "base/heap.hpp"
#include "experiments/plan/price.hpp"
#include "experiments/speed/speed.hpp"
#include "experiments/speed/speed_figures.hpp"

namespace spillway {

namespace {

constexpr double most_ms_per_plan = 1e3 / 200;

// Plans of gpt-175b with 16 micro-batches.
struct PlanFamily {
  const char* name;
  const char* what;
  std::vector<std::string> policies;
};

std::vector<PlanFamily> plan_families() {
  PlanFamily rows = {"rows", "all micro-batches of a layer in a row, placements given", {}};
  for (const char* alpha : {"0", "0.25", "0.5"}) {
    for (const char* places : {"optimizer_ssd=0,checkpoints_ssd=0,parameters_ssd=0",
                               "optimizer_ssd=0.3,checkpoints_ssd=0,parameters_ssd=0",
                               "optimizer_ssd=0.7,checkpoints_ssd=0.5,parameters_ssd=0",
                               "optimizer_ssd=1,checkpoints_ssd=1,parameters_ssd=0.5"})
      rows.policies.push_back(fmt::format("greedysnake:alpha={},{}", alpha, places));
  }
  return {rows,
          {"rows-auto",
           "all micro-batches of a layer in a row, placements settled",
           {"greedysnake", "greedysnake:alpha=0.5", "greedysnake:placement=lp,alpha=auto"}},
          {"one-by-one",
           "each micro-batch through all layers before the next",
           {"fuyou:checkpoints_ssd=0", "fuyou:checkpoints_ssd=0,swap=0.3", "zero-infinity",
            "zero-offload"}}};
}

Problem problem_of_plans() {
  Problem problem;
  problem.model = load_model("gpt-175b");
  problem.machine = load_machine("h200", {"host.memory=4TB"});
  problem.workload.batch = 64;
  problem.workload.micro_batch = 4;
  return problem;
}

SpeedFigure pricing_figure(const PlanFamily& family, const FigureOptions& options) {
  const Problem problem = problem_of_plans();
  std::vector<double> ms;
  std::size_t from_part = 0;
  for (int round = 0; round < options.rounds; ++round) {
    const double before = user_cpu_seconds();
    std::size_t priced = 0;
    do {
      from_part = 0;
      for (const std::string& policy : family.policies)
        from_part += price(problem, policy).is_extrapolated ? 1U : 0U;
      priced += family.policies.size();
    } while (user_cpu_seconds() - before < options.seconds);
    ms.push_back((user_cpu_seconds() - before) * 1e3 / static_cast<double>(priced));
  }
  SpeedFigure figure;
  figure.name = fmt::format("pricing/{}", family.name);
  figure.what = fmt::format("user CPU time to price a plan of gpt-175b with 16 micro-batches: {}",
                            family.what);
  figure.unit = "ms/plan";
  figure.value = median(ms);
  figure.target = most_ms_per_plan;
  figure.note = fmt::format("{:.0f} plans a second; {} of {} plans from part of their schedule",
                            1e3 / figure.value, from_part, family.policies.size());
  return figure;
}

}  // namespace

std::vector<SpeedFigure> measure_pricing(const FigureOptions& options) {
  keep_freed_memory();
  std::vector<SpeedFigure> figures;
  for (const PlanFamily& family : plan_families())
    figures.push_back(pricing_figure(family, options));
  return figures;
}

}  // namespace spillway
