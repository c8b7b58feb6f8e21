// AMSP on 8 to 1,024 GPUs: calibrated on 8, held against the rest.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "experiments/papers/paper_points.hpp"
#include "experiments/papers/paper_run.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

struct Errors {
  double mean = 0, worst = 0;
  int points = 0;
};

// Of the points with a number that no constant was fitted on.
Errors errors_of(const std::vector<SystemResult>& systems) {
  Errors errors;
  for (const SystemResult& system : systems) {
    for (const PaperPoint& point : system.points) {
      if (point.published.fitted || !point.error()) continue;
      errors.mean += std::abs(*point.error());
      errors.worst = std::max(errors.worst, std::abs(*point.error()));
      ++errors.points;
    }
  }
  if (errors.points > 0) errors.mean /= errors.points;
  return errors;
}

const ExperimentResult& experiment(const PaperResult& result, const std::string& name) {
  for (std::size_t e = 0; e < result.experiments.size(); ++e) {
    if (result.paper.experiments[e].name == name) return result.experiments[e];
  }
  throw InputError("no experiment " + name);
}

Problem problem_of(const std::string& experiment, std::size_t value) {
  const Paper paper = load_paper("amsp");
  for (std::size_t e = 0; e < paper.experiments.size(); ++e) {
    if (paper.experiments[e].name == experiment) return problem_at(paper, {e, 0, value}).problem;
  }
  throw InputError("no experiment " + experiment);
}

}  // namespace

TEST_CASE("amsp: throughput from 32 to 1,024 GPUs, and what overlaps on 64") {
  const PaperResult result = run_paper(load_paper("amsp"));
  const Errors scaling = errors_of(experiment(result, "scaling").systems);
  CHECK(scaling.points == 4);
  CHECK(scaling.mean <= 0.04);
  CHECK(scaling.worst <= 0.08);
  const Errors ablation = errors_of(experiment(result, "what overlaps").systems);
  CHECK(ablation.points == 12);
  CHECK(ablation.mean <= 0.08);
  // Calibrated on 8 GPUs, so near there.
  const PaperPoint& eight = experiment(result, "scaling").systems[0].points[0];
  REQUIRE(eight.error());
  CHECK(std::abs(*eight.error()) < 0.005);
}

TEST_CASE("internevo: throughput from 16 to 1,024 GPUs with another network") {
  const PaperResult result = run_paper(load_paper("internevo"));
  const Errors scaling = errors_of(result.experiments[0].systems);
  CHECK(scaling.points == 7);
  CHECK(scaling.mean <= 0.04);
  CHECK(scaling.worst <= 0.08);
}

TEST_CASE("papers: ranks divide the batch, and each has its share of a server") {
  // 1024 sequences, one a micro-batch: 128 micro-batches on 8 GPUs, one on 1024.
  const Problem eight = problem_of("scaling", 0), all = problem_of("scaling", 4);
  CHECK(eight.workload.ranks == 8);
  CHECK(eight.workload.micro_batches() == 128);
  CHECK(all.workload.ranks == 1024);
  CHECK(all.workload.micro_batches() == 1);
  CHECK(all.ranks() == Mesh{8, 128});
  CHECK(all.machine.cluster.sharing == 8);
  CHECK(all.machine.cluster.nic == Approx(100e9 / 8));
  // Table V: 64 ranks, 1 to 8 micro-batches.
  CHECK(problem_of("what overlaps", 0).workload.micro_batches() == 1);
  CHECK(problem_of("what overlaps", 3).workload.micro_batches() == 8);
  CHECK(problem_of("what overlaps", 3).workload.ranks == 64);
}

TEST_CASE("papers: figures of a GPU are those of all over their number") {
  SimulationResult simulated;
  simulated.tokens_per_second = 4360 * 8;
  Problem problem;
  problem.workload.ranks = 8;
  PaperExperiment experiment;
  experiment.quantity = Quantity::tokens_per_gpu_second;
  CHECK(quantity_of(simulated, problem, experiment) == Approx(4360));
  experiment.quantity = Quantity::mfu;
  experiment.flops_per_token = 4.588e10;
  experiment.peak_tflops = 312;
  CHECK(quantity_of(simulated, problem, experiment) == Approx(0.641).epsilon(0.001));
}

TEST_CASE("amsp: LLaMA-30B on all 1,024 GPUs is one representative rank's schedule") {
  Problem problem = problem_of("scaling", 4);
  problem.model.layers = 60;
  problem.model.hidden = 6144;
  problem.model.heads = problem.model.kv_heads = 48;
  problem.model.ffn = 16384;
  problem.model.head_width = 0;
  const Schedule schedule = build_schedule(
      problem,
      "amsp:parameters=8x1,gradients=8x1,optimizer_state=8x4,overlap=gather+reduce,recompute=full",
      6);
  CHECK(schedule.fits());
  CHECK(schedule.tasks().size() < 5000);
  CHECK(simulate(schedule).tokens_per_second > 0);
}

}  // namespace spillway
