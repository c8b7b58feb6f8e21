// Several ranks and stages of a pipeline on the CUDA backend: their bytes go by way of the host,
// and the numbers are those of one process.
#include <catch2/catch.hpp>
#include <filesystem>
#include <mutex>

#include "tests/cuda/device/cuda_training.hpp"
#include "tests/exec/ranks/local_ranks.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::difference;
using test::in_bf16;
using test::Losses;
using test::Workbench;

// A process of `team`, on the GPU that all of them share here.
TrainingOptions of_process(TrainingOptions options, RankTeam& team, bool in_stages) {
  options.team = &team;
  options.problem.rank = team.rank();
  (in_stages ? options.problem.workload.pipeline : options.problem.workload.ranks) = team.size();
  options.problem.machine.cluster.gpus = team.size();
  for (fs::path& directory : options.ssd) {
    directory /= std::to_string(team.rank());
    fs::create_directories(directory);
  }
  return options;
}

Losses losses_of(const TrainingOptions& options) {
  Training training(options);
  Losses losses;
  losses.weights_hash =
      training.run([&](const StepResult& step) { losses.of_step.push_back(step.loss); }, nullptr)
          .weights_hash;
  return losses;
}

Losses train_together(const TrainingOptions& options, int processes, bool in_stages) {
  std::mutex mutex;
  std::vector<Losses> all;
  test::run_ranks(processes, [&](RankTeam& team) {
    const Losses losses = losses_of(in_bf16(of_process(options, team, in_stages)));
    const std::lock_guard lock(mutex);
    all.push_back(losses);
  });
  for (const Losses& one : all) CHECK(difference(all.front(), one) == "");
  return all.front();
}

TEST_CASE("CUDA: stages of a pipeline train what one process trains") {
  const Workbench bench(test::folder_for_many_runs());
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    const auto with = [&](const char* policy) {
      TrainingOptions options = bench.options(policy, 2, 32, 2, model);
      options.steps = 4;
      return options;
    };
    const Losses alone = losses_of(in_bf16(with("resident")));
    for (const char* policy : {"1f1b", "gpipe:parameters=host,checkpoints=host", "zero-infinity"}) {
      INFO(model << ", " << policy);
      CHECK(difference(alone, train_together(with(policy), 2, true)) == "");
    }
  }
}

TEST_CASE("CUDA: gradients of weights that come later are refused, for there are no such kernels") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions options = bench.options("zb-h1", 2, 32, 2);
  CHECK_THROWS_WITH(train_together(options, 2, true),
                    Catch::Contains("kernels of the CPU backend"));
}

TEST_CASE("CUDA: ranks train alike under every policy, and nearly what one process trains") {
  const Workbench bench(test::folder_for_many_runs());
  const auto with = [&](const char* policy) {
    TrainingOptions options = bench.options(policy, 2, 32, 4);
    options.steps = 4;
    return options;
  };
  const Losses alone = losses_of(in_bf16(with("resident")));
  const Losses together = train_together(with("resident"), 2, false);
  REQUIRE(together.of_step.size() == alone.of_step.size());
  CHECK(together.of_step.front() == alone.of_step.front());
  for (std::size_t s = 0; s < alone.of_step.size(); ++s)
    CHECK(together.of_step[s] == Approx(alone.of_step[s]).epsilon(1e-3));
  for (const char* policy : {"zero-offload", "zero-infinity", "greedysnake:snake=off"}) {
    INFO(policy);
    CHECK(difference(together, train_together(with(policy), 2, false)) == "");
  }
}

}  // namespace
}  // namespace spillway
