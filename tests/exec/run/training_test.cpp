// The promise of the executor: a policy changes time, never numbers; memory is what was planned.
#include <fmt/format.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/errors.hpp"
#include "exec/cpu/cpu_device.hpp"
#include "exec/data/dataset.hpp"
#include "exec/data/safetensors.hpp"
#include "exec/run/executor.hpp"
#include "exec/run/training.hpp"
#include "policies/common/run_record.hpp"
#include "tests/exec/training_support.hpp"
#include "tests/policies/input_error.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;
using test::Workbench;

struct Outcome {
  std::vector<double> losses, norms;
  std::uint64_t hash = 0;
};

Outcome train(const TrainingOptions& options) {
  Training training(options);
  Outcome outcome;
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        REQUIRE(step.step ==
                static_cast<std::int64_t>(outcome.losses.size()));  // in order, none missing
        outcome.losses.push_back(step.loss);
        outcome.norms.push_back(step.gradient_norm);
      },
      nullptr);
  outcome.hash = result.weights_hash;
  REQUIRE(outcome.losses.size() == static_cast<std::size_t>(options.steps));
  // Planned = used, to the byte, as the lanes counted it; and no byte beyond it was ever written.
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    INFO(options.policy << " " << to_string(tier));
    CHECK(training.highest_use(tier) == training.schedule().use(tier).peak_bytes);
  }
  // And in the memory itself: the last planned page was written, and no byte of the guard beyond
  // it.
  for (const Tier tier : {Tier::gpu, Tier::host}) {
    INFO(options.policy << " " << to_string(tier));
    const std::uint64_t peak = training.schedule().use(tier).peak_bytes;
    CHECK(training.highest_written(tier) <= peak);
    if (peak > 0) CHECK(training.highest_written(tier) > peak - buffer_alignment);
  }
  return outcome;
}

void check_identical(const Outcome& a, const Outcome& b, const std::string& what) {
  INFO(what);
  for (std::size_t step = 0; step < a.losses.size(); ++step) {
    INFO("step " << step);
    REQUIRE(a.losses[step] == b.losses[step]);
  }
  CHECK(a.hash == b.hash);
}

TEST_CASE("every policy trains bit-identically to resident: 20 steps of 4 micro-batches") {
  for (const char* model : test::trained_models) {
    INFO(model);
    const Workbench bench;
    const Outcome resident = train(bench.options("resident", 3, 32, 4, model));
    CHECK(resident.losses.back() < resident.losses.front());
    for (const PolicyInfo& policy : builtin_policies()) {
      // Snake order adds micro-batches in another order; it has its own test.
      const std::string text = policy.name == "greedysnake" ? "greedysnake:snake=off" : policy.name;
      const Outcome outcome = train(bench.options(text, 3, 32, 4, model));
      check_identical(resident, outcome, text);
      // The norm is a sum over the same elements, in pieces that depend on the policy.
      for (std::size_t s = 0; s < outcome.norms.size(); ++s) {
        CHECK(outcome.norms[s] == Approx(resident.norms[s]).epsilon(1e-12));
      }
    }
  }
}

TEST_CASE("every policy trains adapters and last layers bit-identically to resident") {
  // In any cut into micro-batches: with dropout, a sequence has the same mask in all of them.
  const auto adapters = [](ModelSpec& model) {
    model.lora_rank = 4;
    model.lora_dropout = 0.1;
  };
  const auto adapters_of_two = [](ModelSpec& model) {
    model.lora_rank = 2;
    model.lora_targets = model.architecture == Architecture::gpt ? "c_attn,c_fc" : "q_proj,v_proj";
  };
  const auto last_layer = [](ModelSpec& model) { model.frozen_layers = model.layers - 1; };
  using Freeze = std::function<void(ModelSpec&)>;
  for (const Freeze& freeze : {Freeze(adapters), Freeze(adapters_of_two), Freeze(last_layer)}) {
    for (const char* model : test::trained_models) {
      const Workbench bench;
      TrainingOptions options = bench.options("resident", 3, 32, 4, model);
      freeze(options.problem.model);
      INFO(model << ", rank " << options.problem.model.lora_rank);
      options.steps = 1;
      const Outcome first = train(options);
      options.steps = 5;
      const Outcome resident = train(options);
      CHECK(resident.losses.front() == first.losses.front());
      CHECK(resident.hash != first.hash);  // something is trained
      for (const PolicyInfo& policy : builtin_policies()) {
        options.policy = policy.name == "greedysnake" ? "greedysnake:snake=off" : policy.name;
        for (const std::int64_t micro_batch : {2, 8}) {
          options.problem.workload.micro_batch = micro_batch;
          check_identical(resident, train(options),
                          fmt::format("{}, micro-batches of {}", options.policy, micro_batch));
        }
      }
    }
  }
}

TEST_CASE("every option that moves bytes or time leaves the numbers alone") {
  const Workbench bench;
  TrainingOptions options = bench.options("resident");
  options.steps = 7;
  const Outcome resident = train(options);
  for (const char* policy :
       {"resident:recompute=needed",
        "resident:recompute=full",
        "zero-offload:parameters=gpu",
        "zero-offload:parameters=host,checkpoints=host,max_reuse_distance=0",
        "zero-offload:parameters=host,checkpoints=host,sub_group_size=5000",
        "zero-infinity:max_reuse_distance=0",
        "zero-infinity:pipeline_read=on,pipeline_write=on,sub_group_size=5000,max_reuse_distance=0",
        "zero-infinity:pipeline_read=on,sub_group_size=1,reduce_bucket_size=1",
        "zero-infinity:pipeline_write=on,gradients=host,max_in_cpu=20000,max_reuse_distance=20000",
        "zero-infinity:parameters=host,prefetch_bucket_size=0,max_reuse_distance=0",
        "zero-infinity:parameters=gpu,checkpoints=host",
        "zero-infinity:checkpoints=gpu,recompute=needed,param_buffer_count=1,max_reuse_distance=0",
        "zero-infinity:prefetch_bucket_size=5000,max_live_parameters=9000,max_reuse_distance=0",
        "deep-optimizer-states:stride=off",
        "deep-optimizer-states:stride=2,sub_group_size=1,checkpoints=host",
        "deep-optimizer-states:stride=3,sub_group_size=5000,staging=double,recompute=needed",
        "fuyou:optimizer=serial",
        "fuyou:optimizer=naive",
        "fuyou:checkpoints_ssd=1,recompute=needed,swap=none",
        "fuyou:swap=auto",
        "fuyou:swap=all",
        "fuyou:swap=0.5,checkpoints_ssd=0.5",
        "fuyou:swap=0.3,checkpoints_ssd=1,optimizer=naive,activations_ahead=0",
        "fuyou:swap=20KiB,group=2048,state_buffers=3,backward_ahead=0,forward_ahead=2",
        "fuyou:swap=0.8,group=4e4,optimizer=serial",
        "greedysnake:snake=off,alpha=0",
        "greedysnake:snake=off,alpha=0.5,optimizer_ssd=1",
        "greedysnake:snake=off,alpha=1,optimizer_ssd=0.5,parameters_ssd=0.5",
        "greedysnake:snake=off,alpha=0.25,optimizer_ssd=0.3,parameters_ssd=1,checkpoints_ssd=1,"
        "recompute=needed",
        "greedysnake:snake=off,gradients_gpu=0.5",
        "greedysnake:snake=off,updates=micro-batch",
        "greedysnake:snake=off,updates=micro-batch,alpha=1,gradients_gpu=1",
        "greedysnake:snake=off,updates=micro-batch,alpha=0.4,optimizer_ssd=0.6,parameters_ssd=0.5",
        "greedysnake:snake=off,updates=micro-batch,alpha=0,optimizer_ssd=1,parameters_ssd=1"}) {
    options.policy = policy;
    check_identical(resident, train(options), policy);
  }
}

TEST_CASE("a schedule that a framework was laid over is never run") {
  const Workbench bench;
  const TrainingOptions own = bench.options("zero-infinity:parameters=host");
  for (const char* framework : {"deepspeed-0.9", "spillway:memory.host=1MB"}) {
    INFO(framework);
    TrainingOptions options = own;
    options.problem.framework = framework;
    const std::string refusal = std::string("framework ") + framework + ":";

    bool made_device = false;  // which takes the memory
    options.make_device = [&](const Problem&, std::uint64_t, std::uint64_t) {
      made_device = true;
      return std::unique_ptr<Device>();
    };
    check_error([&] { Training{options}; }, refusal, "out");
    CHECK_FALSE(made_device);
    for (const fs::path& directory : options.ssd) CHECK(fs::is_empty(directory));

    // Nor by an executor that is given one: no task of it starts.
    const Schedule schedule = build_schedule(options.problem, options.policy, 1);
    CpuDevice device(options.problem, schedule.use(Tier::gpu).peak_bytes,
                     schedule.use(Tier::host).peak_bytes, 1);
    const auto dataset = std::make_shared<const Dataset>(options.data, options.seed);
    Executor executor(device, nullptr, dataset, {});
    Trace trace = make_trace(schedule, "executor");
    check_error(
        [&] {
          executor.run(
              schedule, 0, [](const StepResult&) {}, &trace);
        },
        refusal, "out");
    CHECK(trace.spans.empty());
  }
}

TEST_CASE("the cut into micro-batches leaves the numbers alone, too") {
  const Workbench bench;
  TrainingOptions options = bench.options("resident");
  options.steps = 5;
  const Outcome whole = train(options);
  for (const std::int64_t micro_batch : {1, 4, 8}) {
    for (const char* policy : {"resident", "zero-infinity:max_reuse_distance=0",
                               "deep-optimizer-states:sub_group_size=1", "fuyou", "fuyou:swap=0.6",
                               "greedysnake:snake=off"}) {
      options.problem.workload.micro_batch = micro_batch;
      options.policy = policy;
      check_identical(whole, train(options),
                      fmt::format("{} in micro-batches of {}", policy, micro_batch));
    }
  }
}

// In snake order odd layers add their micro-batches in descending order. One gradient sum of M
// terms then differs by at most about M ulp, relative to the sum of magnitudes; AdamW's normalised
// step makes an ulp in a gradient at most a few ulp of the learning rate in a weight. Over 20 steps
// of learning rate 1e-3 the loss, of order 1, may move by 20 x 4 x 2^-24 x O(1): the bound is 1e-4
// relative, a hundred times as much as seen.
TEST_CASE("snake order agrees to fp32 rounding") {
  const Workbench bench;
  const Outcome resident = train(bench.options("resident"));
  for (const char* policy : {"greedysnake", "greedysnake:alpha=0",
                             "greedysnake:alpha=0.5,optimizer_ssd=1,checkpoints_ssd=1"}) {
    const Outcome snake = train(bench.options(policy));
    for (std::size_t s = 0; s < snake.losses.size(); ++s) {
      INFO(policy << " step " << s);
      CHECK(std::abs(snake.losses[s] - resident.losses[s]) <= 1e-4 * resident.losses[s]);
    }
  }
  // All of it is one numerical class: the delayed fraction, the placement and what AdamW takes at a
  // time change nothing.
  const Outcome undelayed = train(bench.options("greedysnake:alpha=0"));
  for (const char* policy :
       {"greedysnake:alpha=0.4,optimizer_ssd=0.7,parameters_ssd=0.2",
        "greedysnake:alpha=0.7,updates=micro-batch",
        "greedysnake:alpha=0.3,updates=micro-batch,optimizer_ssd=1,parameters_ssd=1"}) {
    check_identical(undelayed, train(bench.options(policy)), policy);
  }
}

// Losses show what forward used, the hash of the weights what the epilogue left: the same bytes for
// every fraction that is delayed, after one step as after several. Eight micro-batches of one
// sequence, four of them in the middle, whose checkpoints go to the SSD.
TEST_CASE("no fraction that greedysnake delays changes a loss, or leaves a stale weight") {
  const Workbench bench;
  TrainingOptions options = bench.options("resident");
  options.problem.workload.micro_batch = 1;
  for (const std::int64_t steps : {1, 4}) {
    options.steps = steps;
    options.policy = "resident";
    const Outcome resident = train(options);
    for (const char* updates : {"layer", "micro-batch"}) {
      for (const double alpha : {0.0, 0.1, 0.25, 0.5, 0.75, 1.0}) {
        options.policy = fmt::format(
            "greedysnake:snake=off,updates={},alpha={},optimizer_ssd=0.5,parameters_ssd=0.5,"
            "checkpoints_ssd=1",
            updates, alpha);
        check_identical(resident, train(options), options.policy);
      }
    }
  }
}

TEST_CASE("the same run twice gives the same bytes, another seed gives others") {
  const Workbench bench;
  TrainingOptions options = bench.options("fuyou");
  options.steps = 3;
  const Outcome once = train(options);
  check_identical(once, train(options), "twice");
  options.seed = 2;
  CHECK(train(options).hash != once.hash);
}

TEST_CASE("training in tight memory: the limits are kept, and one byte less does not fit") {
  const Workbench bench;
  TrainingOptions options = bench.options("zero-infinity");
  options.steps = 3;
  const Outcome roomy = train(options);
  const Schedule plan = build_schedule(options.problem, options.policy, 3);
  options.problem.machine.gpu.memory = plan.use(Tier::gpu).peak_bytes;
  options.problem.machine.host.memory = plan.use(Tier::host).peak_bytes;
  options.problem.machine.ssd.capacity = plan.use(Tier::ssd).peak_bytes;
  check_identical(roomy, train(options), "exactly as much memory as planned");
  options.problem.machine.host.memory -= 1;
  CHECK_THROWS_AS(Training(options), FitError);
}

TEST_CASE("a recorded trace has every span of the schedule, lanes in order, edges respected") {
  const Workbench bench;
  TrainingOptions options = bench.options("greedysnake:optimizer_ssd=1,checkpoints_ssd=1");
  options.steps = 13;
  Training training(options);
  Trace trace;
  training.run([](const StepResult&) {}, &trace);
  const Schedule& schedule = training.schedule();
  REQUIRE(schedule.steps() == 13);
  REQUIRE(trace.spans.size() == schedule.tasks().size());
  std::vector<std::int64_t> lane_end(lane_count, 0);
  for (const Span& span : trace.spans) {
    REQUIRE(span.start_ns <= span.end_ns);
    CHECK(span.start_ns >= lane_end[span.lane]);
    lane_end[span.lane] = span.end_ns;
    for (const TaskId next : schedule.successors(span.task)) {
      CHECK(trace.spans[next].start_ns >= span.end_ns);
    }
  }
  CHECK(rebuild_schedule(trace, "trace").fingerprint() == schedule.fingerprint());
}

TEST_CASE("what is exported is the trained model, whatever the policy") {
  const Workbench bench;
  TrainingOptions options = bench.options("resident");
  options.steps = 2;
  const auto export_of = [&](const std::string& policy, const std::string& name) {
    options.policy = policy;
    Training training(options);
    training.run([](const StepResult&) {}, nullptr);
    fs::create_directories(bench.root() / name);
    training.export_model(Directory(bench.root() / name));
    return SafetensorsFile(bench.root() / name / "model.safetensors");
  };
  const SafetensorsFile a = export_of("resident", "a");
  const SafetensorsFile b = export_of("fuyou", "b");
  const ModelSpec& model = options.problem.model;
  REQUIRE(a.tensors().size() == static_cast<std::size_t>(4 + 12 * model.layers));
  std::int64_t elements = 0;
  for (const auto& tensor : a.tensors()) {
    CHECK(a.read(tensor.name) == b.read(tensor.name));
    elements += static_cast<std::int64_t>(a.read(tensor.name).size());
  }
  CHECK(elements == model.parameters());
  // Conv1D matrices are [in, out].
  for (const auto& tensor : a.tensors()) {
    if (tensor.name == "transformer.h.0.mlp.c_fc.weight") {
      CHECK(tensor.shape == std::vector<std::int64_t>{model.hidden, model.ffn});
    }
  }
}

TEST_CASE("a failing report stops all lanes and comes out of run") {
  const Workbench bench;
  TrainingOptions options = bench.options("zero-infinity");
  Training training(options);
  CHECK_THROWS_WITH(training.run(
                        [](const StepResult& step) {
                          if (step.step == 3) throw std::runtime_error("enough");
                        },
                        nullptr),
                    "enough");
}

TEST_CASE("what cannot start says so") {
  const Workbench bench;
  TrainingOptions options = bench.options("fuyou");
  options.ssd.clear();
  CHECK_THROWS_AS(Training(options), InputError);
  options = bench.options("resident");
  options.data = {bench.root() / "absent.txt"};
  CHECK_THROWS_AS(Training(options), InputError);
  options = bench.options("resident");
  options.optimizer.learning_rate = 1e30;
  Training diverges(options);
  CHECK_THROWS_AS(diverges.run([](const StepResult&) {}, nullptr), MachineError);
}

}  // namespace
}  // namespace spillway
