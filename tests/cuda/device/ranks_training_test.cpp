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
#include <stdexcept>
#include <string>
#include <vector>

#include "exec/cuda/ranks/nccl_links.hpp"
#include "exec/ranks/rank_gpus.hpp"
#include "tests/cuda/device/cuda_training.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/exec/ranks/local_ranks.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::CudaChoices;
using test::difference;
using test::Losses;
using test::on_cuda;
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
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    if (training.highest_use(tier) > training.schedule().use(tier).peak_bytes)
      throw std::runtime_error("more than planned was used of " + std::string(to_string(tier)));
  }
  return losses;
}

// `stop_after`: as above, of the last of them alone.
Losses train_together(const TrainingOptions& options, int processes, bool in_stages, Way way,
                      const CudaChoices& choices = {}, std::int64_t stop_after = 0) {
  std::mutex mutex;
  std::vector<Losses> all;
  test::run_ranks(processes, [&](RankTeam& team) {
    std::unique_ptr<RankGpus> gpus;
    if (way == Way::between_gpus)
      gpus = std::make_unique<RankGpus>(team, std::make_unique<cuda::NcclLinks>(0, ""), in_stages);
    TrainingOptions own = on_cuda(of_process(options, team, in_stages), choices);
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
      options.problem.workload.precision = Precision::bf16;
      options.steps = 3;
      return options;
    };
    const Losses alone = losses_of(on_cuda(with("resident")));
    for (const char* policy :
         {"1f1b", "gpipe:parameters=host,checkpoints=host", "zero-infinity", "interleaved"}) {
      for (const Way way : ways()) {
        INFO(model << ", " << policy << (way == Way::by_host ? ", by host" : ", between GPUs"));
        CHECK(difference(alone, train_together(with(policy), 2, true, way)) == "");
      }
    }
  }
}

// Stages under policies whose backward is two passes, against one process.
struct InTwoPasses {
  const char *model, *gelu_backward;
  Precision precision;
  std::int64_t sequences_at_once;
};

TEST_CASE("CUDA: stages whose gradients of weights come later train what one process trains") {
  const Workbench bench(test::folder_for_many_runs());
  for (const InTwoPasses& test : {InTwoPasses{"gpt-tiny", "kernel", Precision::bf16, 1},
                                  InTwoPasses{"gpt-tiny", "dgelu-bgrad", Precision::bf16, 2},
                                  InTwoPasses{"gpt-tiny", "dgelu", Precision::fp32, 1},
                                  InTwoPasses{"llama-tiny", "kernel", Precision::bf16, 2},
                                  InTwoPasses{"llama-tiny", "kernel", Precision::fp32, 1}}) {
    CudaChoices choices;
    choices.gelu_backward = test.gelu_backward;
    const auto with = [&](const char* policy) {
      TrainingOptions options = bench.options(policy, 2, 32, 4, test.model);
      options.problem.workload.precision = test.precision;
      options.problem.workload.sequences_at_once = test.sequences_at_once;
      options.steps = 2;
      return options;
    };
    const Losses alone = losses_of(on_cuda(with("resident"), choices));
    // Everything is saved for the backward, what memory has room for, nothing.
    for (const char* policy : {"zb-h1", "zb-h1:parameters=host,recompute=needed,checkpoints=host",
                               "zb-h1:optimizer_state=host,recompute=full"}) {
      INFO(test.model << ", " << policy << ", GELU's by " << test.gelu_backward << ", "
                      << test.sequences_at_once << " sequences at once");
      CHECK(difference(alone, train_together(with(policy), 2, true, Way::by_host, choices)) == "");
    }
  }
}

TEST_CASE("CUDA: a stage's plan has room for trying the algorithms of matrix products") {
  // A stage with one layer, whose parameters rest in host memory: they are not on the GPU while the
  // gradient of its weights is made.
  const Workbench bench(test::folder_for_many_runs());
  for (const char* recompute : {"off", "full"}) {
    TrainingOptions options = on_cuda(bench.options("resident", 3, 256, 1));
    Problem& problem = options.problem;
    problem.workload.precision = Precision::bf16;
    problem.workload.pipeline = problem.machine.cluster.gpus = 3;
    problem.rank = 1;
    problem.trains_on = Backend::cuda;
    const cuda::DeviceArray<std::byte> workspace(cuda::model_workspace_bytes(problem));
    const cuda::TestStream stream;
    const auto model = cuda::make_model_cuda<bf16>(
        problem, cuda::ModelWorkspace::carve(problem, workspace.data()), stream);
    const Schedule schedule = build_schedule(
        problem, std::string("zb-h1:parameters=host,checkpoints=host,recompute=") + recompute, 2);
    INFO("recompute=" << recompute);
    CHECK(schedule.use(Tier::gpu).peak_bytes >= model->rehearsal_bytes());
  }
}

TEST_CASE("CUDA: ranks train alike under every policy, and nearly what one process trains") {
  const Workbench bench(test::folder_for_many_runs());
  const auto with = [&](const char* policy) {
    TrainingOptions options = bench.options(policy, 2, 32, 4);
    options.problem.workload.precision = Precision::bf16;
    options.steps = 4;
    return options;
  };
  const Losses alone = losses_of(on_cuda(with("resident")));
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

TEST_CASE("CUDA: ranks with shards among some of them train alike where they sum alike", "[slow]") {
  const Workbench bench(test::folder_for_many_runs());
  const auto with = [&](const char* policy) {
    TrainingOptions options = bench.options(policy, 2, 32, 8);
    options.problem.workload.precision = Precision::bf16;
    options.steps = 2;
    return options;
  };
  const Losses alone = losses_of(on_cuda(with("resident")));
  const std::vector<std::vector<const char*>> alike = {
      {"zero", "zero:stage=2", "fsdp:overlap=none", "zero++:second=2x1"},
      {"mics:group=2x1", "fsdp:shard=hybrid,group=2x1"},
      {"resident", "amsp:parameters=2x1,gradients=1x1,optimizer_state=2x1"}};
  for (const auto& policies : alike) {
    const Losses first = train_together(with(policies.front()), 4, false, Way::by_host);
    REQUIRE(first.of_step.size() == alone.of_step.size());
    CHECK(first.of_step.front() == alone.of_step.front());
    CHECK(first.of_step.back() == Approx(alone.of_step.back()).epsilon(1e-3));
    for (const char* policy : policies) {
      for (const Way way : ways()) {
        INFO(policy << (way == Way::by_host ? ", by host" : ", between GPUs"));
        CHECK(difference(first, train_together(with(policy), 4, false, way)) == "");
      }
    }
  }
}

TEST_CASE("CUDA: ranks clip by the norm of all shards, wherever they are updated") {
  const Workbench bench(test::folder_for_many_runs());
  const auto with = [&](const char* policy) {
    TrainingOptions options = bench.options(policy, 2, 32, 4);
    options.problem.workload.precision = Precision::bf16;
    options.problem.workload.clip.scope = ClipScope::global;
    options.problem.workload.clip.limit = 0.5;
    options.steps = 3;
    return options;
  };
  const Losses on_gpu = train_together(with("resident"), 2, false, Way::by_host);
  CHECK(difference(on_gpu, train_together(with("zero-offload"), 2, false, Way::by_host)) == "");
  const Losses alone = losses_of(on_cuda(with("resident")));
  for (std::size_t s = 0; s < alone.of_step.size(); ++s)
    CHECK(on_gpu.of_step[s] == Approx(alone.of_step[s]).epsilon(1e-3));
  TrainingOptions unclipped = with("resident");
  unclipped.problem.workload.clip.scope = ClipScope::off;
  CHECK(difference(on_gpu, train_together(unclipped, 2, false, Way::by_host)) != "");
}

TEST_CASE("CUDA: ranks and stages end after the same step, whatever their lanes have begun") {
  const Workbench bench(test::folder_for_many_runs());
  for (const bool in_stages : {false, true}) {
    TrainingOptions options = bench.options("zero-infinity", 2, 32, 4);
    options.problem.workload.precision = Precision::bf16;
    options.steps = 12;
    for (const Way way : ways()) {
      INFO(in_stages << (way == Way::by_host ? ", by host" : ", between GPUs"));
      const Losses losses = train_together(options, 2, in_stages, way, {}, 2);
      CHECK(losses.of_step.size() >= 2);
      CHECK(losses.of_step.size() < 12);
    }
  }
}

}  // namespace
}  // namespace spillway
