// Several ranks and stages of a pipeline on the CUDA backend: their bytes go from GPU to GPU, or by
// way of the host, and the numbers are those of one process.
//
// On a real GPU, which all ranks share here, that takes an NCCL that knows
// NCCL_MULTI_RANK_GPU_ENABLE; with others the host's way alone is tried.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "exec/cuda/ranks/nccl_links.hpp"
#include "exec/ranks/rank_gpus.hpp"
#include "tests/cuda/device/cuda_training.hpp"
#include "tests/exec/ranks/local_ranks.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::difference;
using test::in_bf16;
using test::Losses;
using test::Workbench;

enum class Way { between_gpus, by_host };

// Whether NCCL can be used by ranks that share a GPU.
bool has_links() {
  static const bool has = [] {
    ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    try {
      test::run_ranks(2, [](RankTeam& team) {
        const RankGpus gpus(team, std::make_unique<cuda::NcclLinks>(0, ""), false);
      });
    } catch (const MachineError& error) {
      WARN("links between GPUs are not tried: " << error.what());
      return false;
    }
    return true;
  }();
  return has;
}

std::vector<Way> ways() {
  return has_links() ? std::vector{Way::by_host, Way::between_gpus} : std::vector{Way::by_host};
}

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

// `stop_after`: steps after which it is asked to end; 0: it is not.
Losses losses_of(const TrainingOptions& options, std::int64_t stop_after = 0) {
  Training training(options);
  Losses losses;
  losses.weights_hash = training
                            .run(
                                [&](const StepResult& step) {
                                  losses.of_step.push_back(step.loss);
                                  if (step.step + 1 == stop_after) training.request_stop();
                                },
                                nullptr)
                            .weights_hash;
  return losses;
}

// `stop_after`: as above, of the last of them alone.
Losses train_together(const TrainingOptions& options, int processes, bool in_stages, Way way,
                      std::int64_t stop_after = 0) {
  std::mutex mutex;
  std::vector<Losses> all;
  test::run_ranks(processes, [&](RankTeam& team) {
    std::unique_ptr<RankGpus> gpus;
    if (way == Way::between_gpus)
      gpus = std::make_unique<RankGpus>(team, std::make_unique<cuda::NcclLinks>(0, ""), in_stages);
    TrainingOptions own = in_bf16(of_process(options, team, in_stages));
    own.gpus = gpus.get();
    const Losses losses = losses_of(own, team.rank() + 1 == processes ? stop_after : 0);
    team.barrier();
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
      options.problem.model.layers = 4;
      options.steps = 3;
      return options;
    };
    const Losses alone = losses_of(in_bf16(with("resident")));
    for (const char* policy :
         {"1f1b", "gpipe:parameters=host,checkpoints=host", "zero-infinity", "interleaved"}) {
      for (const Way way : ways()) {
        INFO(model << ", " << policy << (way == Way::by_host ? ", by host" : ", between GPUs"));
        CHECK(difference(alone, train_together(with(policy), 2, true, way)) == "");
      }
    }
  }
}

TEST_CASE("CUDA: gradients of weights that come later are refused, for there are no such kernels") {
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions options = bench.options("zb-h1", 2, 32, 2);
  CHECK_THROWS_WITH(train_together(options, 2, true, Way::by_host),
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
  const Losses together = train_together(with("resident"), 2, false, Way::by_host);
  REQUIRE(together.of_step.size() == alone.of_step.size());
  CHECK(together.of_step.front() == alone.of_step.front());
  for (std::size_t s = 0; s < alone.of_step.size(); ++s)
    CHECK(together.of_step[s] == Approx(alone.of_step[s]).epsilon(1e-3));
  for (const char* policy :
       {"resident", "zero-offload", "zero-infinity", "greedysnake:snake=off"}) {
    for (const Way way : ways()) {
      INFO(policy << (way == Way::by_host ? ", by host" : ", between GPUs"));
      CHECK(difference(together, train_together(with(policy), 2, false, way)) == "");
    }
  }
}

TEST_CASE("CUDA: ranks and stages end after the same step, whatever their lanes have begun") {
  const Workbench bench(test::folder_for_many_runs());
  for (const bool in_stages : {false, true}) {
    TrainingOptions options = bench.options("zero-infinity", 2, 32, 4);
    options.steps = 12;
    for (const Way way : ways()) {
      INFO(in_stages << (way == Way::by_host ? ", by host" : ", between GPUs"));
      const Losses losses = train_together(options, 2, in_stages, way, 2);
      CHECK(losses.of_step.size() >= 2);
      CHECK(losses.of_step.size() < 12);
    }
  }
}

}  // namespace
}  // namespace spillway
