// Stages of a pipeline train what one process trains with the same micro-batches: bit by bit, under
// every policy.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <mutex>

#include "exec/data/dataset.hpp"
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

TrainingOptions options_of_stage(const TrainingOptions& options, RankTeam& team) {
  TrainingOptions own = options;
  own.team = &team;
  own.problem.rank = team.rank();
  own.problem.workload.pipeline = own.problem.machine.cluster.gpus = team.size();
  for (fs::path& directory : own.ssd) {
    directory /= fmt::format("rank-{}", team.rank());
    fs::create_directories(directory);
  }
  return own;
}

struct Course {
  Losses losses;
  std::vector<double> norms, evaluations;
};

Course train(const TrainingOptions& options) {
  Course course;
  Training training(options);
  training.on_evaluation([&](const EvaluationResult& result) {
    course.evaluations.push_back(result.loss);
    return true;
  });
  course.losses.weights_hash = training
                                   .run(
                                       [&](const StepResult& step) {
                                         course.losses.of_step.push_back(step.loss);
                                         course.norms.push_back(step.gradient_norm);
                                       },
                                       nullptr)
                                   .weights_hash;
  return course;
}

// What every stage says; they say the same.
Course train_in_stages(const TrainingOptions& options, int stages) {
  std::mutex mutex;
  std::vector<Course> all;
  test::run_ranks(stages, [&](RankTeam& team) {
    const Course one = train(options_of_stage(options, team));
    const std::lock_guard lock(mutex);
    all.push_back(one);
  });
  for (const Course& one : all) {
    CHECK(test::difference(all.front().losses, one.losses) == "");
    CHECK(one.norms == all.front().norms);
    CHECK(one.evaluations == all.front().evaluations);
  }
  return all.front();
}

void check_same(const Course& one, const Course& other) {
  CHECK(test::difference(one.losses, other.losses) == "");
  CHECK(one.norms == other.norms);
  CHECK(one.evaluations == other.evaluations);
}

const char* const trained_in_stages[] = {"gpipe",
                                         "1f1b",
                                         "1f1b:parameters=ssd,optimizer_state=ssd,checkpoints=ssd",
                                         "gpipe:optimizer_state=host,recompute=full",
                                         "zb-h1",
                                         "zb-h1:parameters=host,recompute=needed,checkpoints=ssd",
                                         "resident",
                                         "zero-offload",
                                         "zero-infinity",
                                         "deep-optimizer-states",
                                         "fuyou",
                                         "greedysnake:snake=off",
                                         "spillway"};

TEST_CASE("stages: every policy trains in stages what one process trains") {
  for (const int stages : {2, 3}) {
    for (const char* model : {"gpt-tiny", "llama-tiny"}) {
      const Workbench bench;
      const auto with = [&](const std::string& policy) {
        TrainingOptions options = bench.options(policy, 4, 64, 3, model);
        options.steps = 5;
        return options;
      };
      const Course alone = train(with("resident"));
      for (const char* policy : trained_in_stages) {
        INFO(stages << " stages, " << model << ", " << policy);
        const Course course = train_in_stages(with(policy), stages);
        CHECK(test::difference(alone.losses, course.losses) == "");
        // Where nothing is clipped they are added up by updates, which policies cut.
        for (std::size_t s = 0; s < alone.norms.size(); ++s)
          CHECK(course.norms[s] == Approx(alone.norms[s]));
      }
    }
  }
}

TEST_CASE("stages: the same where the host does not reach GPU memory, and lanes are streams") {
  const Workbench bench;
  const auto with = [&](const char* policy) {
    TrainingOptions options = bench.options(policy, 4, 64, 2);
    options.steps = 5;
    return options;
  };
  const Course alone = train(with("resident"));
  for (const char* policy : {"1f1b", "zb-h1", "gpipe:optimizer_state=host", "zero-infinity"}) {
    INFO(policy);
    std::mutex mutex;
    std::vector<Course> all;
    test::run_ranks(2, [&](RankTeam& team) {
      TrainingOptions own = options_of_stage(with(policy), team);
      test::StreamRecord record;
      own.make_device = [](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
        return std::make_unique<test::HiddenDevice>(problem, gpu, host);
      };
      const Course one = train(test::on_streams(own, record, {}));
      const std::lock_guard lock(mutex);
      all.push_back(one);
    });
    for (const Course& one : all) CHECK(test::difference(alone.losses, one.losses) == "");
  }
}

TEST_CASE("stages: the same in bf16, clipped, with narrow moments, in chunks, and evaluated") {
  const Workbench bench;
  for (const ClipScope scope : {ClipScope::global, ClipScope::layer}) {
    const auto with = [&](const char* policy) {
      TrainingOptions options = bench.options(policy, 8, 64, 4, "qwen-tiny");
      options.steps = 6;
      options.problem.workload.precision = Precision::bf16;
      options.problem.workload.moments = MomentWidth::bf16;
      options.problem.workload.clip = {scope, 0.5};
      options.evaluations = {std::make_shared<const Dataset>(options.data, 7), 3, 2};
      return options;
    };
    const Course alone = train(with("resident"));
    for (const int stages : {2, 4}) {
      for (const char* policy : {"1f1b", "interleaved", "zb-h1", "zero-infinity"}) {
        INFO(stages << " stages, " << policy);
        check_same(alone, train_in_stages(with(policy), stages));
      }
    }
  }
}

}  // namespace
}  // namespace spillway
