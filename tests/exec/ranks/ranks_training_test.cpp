// Several ranks train what one rank trains that sums gradients in as many groups: bit by bit, under
// every policy.
#include <fmt/format.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <mutex>

#include "base/errors.hpp"
#include "tests/exec/cpu/hidden_device.hpp"
#include "tests/exec/ranks/local_ranks.hpp"
#include "tests/exec/streams/stream_device.hpp"
#include "tests/exec/training_support.hpp"
#include "tests/policies/input_error.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::Losses;
using test::Workbench;

// Those of one of several ranks.
TrainingOptions options_of_rank(const TrainingOptions& options, RankTeam& team) {
  TrainingOptions own = options;
  own.team = &team;
  own.problem.rank = team.rank();
  own.problem.workload.ranks = own.problem.workload.gradient_groups = team.size();
  own.problem.machine.cluster.gpus = team.size();
  for (fs::path& directory : own.ssd) {
    directory /= fmt::format("rank-{}", team.rank());
    fs::create_directories(directory);
  }
  return own;
}

Losses train_alone(TrainingOptions options, std::int64_t groups, GradientMeshes meshes = {}) {
  options.problem.workload.gradient_groups = groups;
  options.problem.workload.group_meshes = meshes;
  return test::train_within_plan(options);
}

// What every rank says; they say the same.
Losses train_on_ranks(const TrainingOptions& options, int ranks, bool on_streams = false) {
  std::mutex mutex;
  std::vector<Losses> all;
  test::run_ranks(ranks, [&](RankTeam& team) {
    TrainingOptions own = options_of_rank(options, team);
    test::StreamRecord record;
    if (on_streams) {
      own.make_device = [](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
        return std::make_unique<test::HiddenDevice>(problem, gpu, host);
      };
      own = test::on_streams(own, record, {});
    }
    Training training(own);
    Losses losses;
    losses.weights_hash =
        training.run([&](const StepResult& step) { losses.of_step.push_back(step.loss); }, nullptr)
            .weights_hash;
    const std::lock_guard lock(mutex);
    all.push_back(losses);
  });
  for (const Losses& one : all) CHECK(test::difference(all.front(), one) == "");
  return all.front();
}

// `micro_batches` of each rank.
TrainingOptions wide_options(const Workbench& bench, const std::string& policy, int ranks,
                             int micro_batches, const std::string& model = "gpt-tiny") {
  TrainingOptions options = bench.options(policy, 3, 64, ranks * micro_batches, model);
  options.steps = 5;
  return options;
}

const char* const trained_by_ranks[] = {
    "resident", "zero-offload",          "zero-infinity", "deep-optimizer-states",
    "fuyou",    "greedysnake:snake=off", "spillway"};

TEST_CASE("ranks: groups of micro-batches change the last bits of a gradient, and nothing else") {
  const Workbench bench;
  const TrainingOptions options = wide_options(bench, "resident", 2, 4);
  const Losses one = train_alone(options, 1), two = train_alone(options, 2),
               four = train_alone(options, 4);
  CHECK(one.of_step.front() == two.of_step.front());  // before the first update
  CHECK(one.weights_hash != two.weights_hash);
  CHECK(two.weights_hash != four.weights_hash);
  for (std::size_t s = 0; s < one.of_step.size(); ++s)
    CHECK(two.of_step[s] == Approx(one.of_step[s]).epsilon(1e-4));
}

TEST_CASE("ranks: every policy trains on several ranks what one rank trains in as many groups") {
  for (const int ranks : {2, 3}) {
    for (const char* model : {"gpt-tiny", "llama-tiny"}) {
      const Workbench bench;
      const Losses alone = train_alone(wide_options(bench, "resident", ranks, 2, model), ranks);
      for (const char* policy : trained_by_ranks) {
        INFO(ranks << " ranks, " << model << ", " << policy);
        const TrainingOptions options = wide_options(bench, policy, ranks, 2, model);
        CHECK(test::difference(alone, train_on_ranks(options, ranks)) == "");
      }
    }
  }
}

TEST_CASE("ranks: the same where the host does not reach GPU memory, and lanes are streams") {
  const Workbench bench;
  const Losses alone = train_alone(wide_options(bench, "resident", 2, 2), 2);
  for (const char* policy : trained_by_ranks) {
    INFO(policy);
    const TrainingOptions options = wide_options(bench, policy, 2, 2);
    CHECK(test::difference(alone, train_on_ranks(options, 2, true)) == "");
  }
}

TEST_CASE("ranks: the same in bf16, clipped, with narrow moments, a micro-batch each") {
  const Workbench bench;
  for (const int ranks : {2, 4}) {
    const auto with = [&](const char* policy) {
      TrainingOptions options = wide_options(bench, policy, ranks, 1, "qwen-tiny");
      options.problem.workload.precision = Precision::bf16;
      options.problem.workload.moments = MomentWidth::bf16;
      options.problem.workload.clip = {ClipScope::global, 0.5};
      return options;
    };
    const Losses alone = train_alone(with("resident"), ranks);
    for (const char* policy : trained_by_ranks) {
      INFO(ranks << " ranks, " << policy);
      CHECK(test::difference(alone, train_on_ranks(with(policy), ranks)) == "");
    }
  }
}

// Policies whose ranks share out model states by meshes, for so many ranks, and the meshes.
struct Sharded {
  int ranks;
  const char* policy;
  GradientMeshes meshes;
};
const Sharded sharded_policies[] = {
    {3, "zero", {0, 3, 3}},
    {4, "zero:stage=1", {}},
    {4, "zero:stage=2", {0, 4, 1}},
    {4, "mics:group=2x1", {2, 2, 2}},
    {4, "fsdp:shard=hybrid,group=2x1,overlap=none", {2, 2, 2}},
    {4, "zero++:second=2x1", {0, 4, 2}},
    {2, "amsp:parameters=1x1,gradients=1x1,optimizer_state=1x1", {1, 1, 1, true}},
    {4, "amsp:parameters=2x1,gradients=1x1,optimizer_state=4x1", {0, 1, 2, true}},
    {4, "amsp:parameters=1x1,gradients=2x1,optimizer_state=4x1", {0, 2, 1, true}},
    {4, "amsp:parameters=2x1,gradients=1x1,optimizer_state=4x1,spread=broadcast", {0, 1, 2, true}},
    {4, "zero-infinity:parameters=host", {}},
    {4,
     "spillway:parameters.rest=gpu:1,optimizer_state.rest=host:1,shards.parameters=1x1,"
     "shards.gradients=2x1,shards.optimizer_state=4x1",
     {0, 2, 1}},
};

TEST_CASE("ranks: with shards among some of them they have the bits of one rank that sums alike") {
  for (const auto& [ranks, policy, meshes] : sharded_policies) {
    for (const char* model : {"gpt-tiny", "qwen-tiny"}) {
      for (const ClipScope scope : {ClipScope::global, ClipScope::layer}) {
        INFO(ranks << " ranks, " << model << ", " << policy << ", clip "
                   << to_string(GradientClip{scope, 0.3}));
        const Workbench bench;
        const auto with = [&](const char* of) {
          TrainingOptions options = wide_options(bench, of, ranks, 2, model);
          options.problem.workload.clip = {scope, 0.3};
          options.steps = 3;
          return options;
        };
        const Losses alone = train_alone(with("resident"), ranks, meshes);
        CHECK(test::difference(alone, train_on_ranks(with(policy), ranks)) == "");
      }
    }
  }
}

TEST_CASE("ranks: adapters and the last layers alone, the frozen weights shared out, too") {
  const auto train = [](const Sharded& by, const char* model, bool adapters) {
    INFO(by.ranks << " ranks, " << model << ", " << by.policy << ", adapters " << adapters);
    const Workbench bench;
    const auto with = [&](const char* policy) {
      TrainingOptions options = wide_options(bench, policy, by.ranks, 2, model);
      options.steps = 3;
      options.problem.workload.clip = {ClipScope::global, 0.3};
      if (!adapters) {
        options.problem.model.frozen_layers = 1;
        return options;
      }
      options.problem.model.lora_rank = 4 * by.ranks;
      options.problem.model.lora_alpha = 8;
      options.problem.model.lora_dropout = 0.1;
      return options;
    };
    const Losses alone = train_alone(with("resident"), by.ranks, by.meshes);
    CHECK(test::difference(alone, train_on_ranks(with(by.policy), by.ranks)) == "");
    CHECK(alone.of_step.front() != alone.of_step.back());
  };
  for (const bool adapters : {true, false}) {
    for (const char* policy : trained_by_ranks) {
      train({2, policy, {}}, "gpt-tiny", adapters);
      train({3, policy, {}}, "qwen-tiny", adapters);
    }
    train({2, "spillway:parameters.rest=host:0.5+ssd:0.5,optimizer_state.rest=ssd:1", {}},
          "llama-tiny", adapters);
    for (const Sharded& by : sharded_policies) train(by, "llama-tiny", adapters);
  }
}

TEST_CASE("ranks: the same where lanes are streams, in bf16, with a micro-batch each") {
  for (const auto& [ranks, policy, meshes] : sharded_policies) {
    INFO(ranks << " ranks, " << policy);
    const Workbench bench;
    const auto with = [&](const char* of) {
      TrainingOptions options = wide_options(bench, of, ranks, 1, "llama-tiny");
      options.problem.workload.precision = Precision::bf16;
      options.steps = 3;
      return options;
    };
    const Losses alone = train_alone(with("resident"), ranks, meshes);
    CHECK(test::difference(alone, train_on_ranks(with(policy), ranks, true)) == "");
  }
}

TEST_CASE("ranks: the norm of a gradient whose parts several ranks have counts each once") {
  const auto norms_of = [](const char* policy) {
    const Workbench bench;
    TrainingOptions options = wide_options(bench, policy, 2, 2);
    options.steps = 2;
    std::mutex mutex;
    std::vector<double> norms;
    test::run_ranks(2, [&](RankTeam& team) {
      Training training(options_of_rank(options, team));
      training.run(
          [&](const StepResult& step) {
            const std::lock_guard lock(mutex);
            if (team.leads()) norms.push_back(step.gradient_norm);
          },
          nullptr);
    });
    return norms;
  };
  const std::vector<double> once = norms_of("resident"), copies = norms_of(
                                                             "amsp:parameters=1x1,gradients=1x1,"
                                                             "optimizer_state=1x1");
  REQUIRE(once.size() == 2);
  REQUIRE(copies.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) CHECK(copies[s] == Approx(once[s]).epsilon(1e-9));
}

TEST_CASE("ranks: what differs between them is refused by all before anything starts") {
  const Workbench bench;
  const TrainingOptions options = wide_options(bench, "resident", 2, 2);
  check_error(
      [&] {
        test::run_ranks(2, [&](RankTeam& team) {
          TrainingOptions own = options_of_rank(options, team);
          own.seed = static_cast<std::uint64_t>(team.rank()) + 1;
          Training{own};
        });
      },
      "the ranks do not agree on settings and data", "mpirun");
  for (const fs::path& directory : options.ssd) {
    for (const auto& entry : fs::recursive_directory_iterator(directory))
      CHECK(entry.is_directory());
  }
}

}  // namespace
}  // namespace spillway
