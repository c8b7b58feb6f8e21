// Training in bf16 on a device whose memory the host cannot address: a policy changes time, never
// numbers; commits, resumes and exports go through the device.

#include <catch2/catch.hpp>
#include <csignal>

#include "exec/data/safetensors.hpp"
#include "exec/run/training.hpp"
#include "tests/exec/child.hpp"
#include "tests/exec/cpu/hidden_device.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

// Placements and orders of every policy, all of one numerical class; states rest in every tier.
constexpr const char* policies[] = {
    "resident:recompute=needed",
    "resident:recompute=full",
    "zero-offload",
    "zero-offload:parameters=gpu",
    "zero-offload:parameters=host,checkpoints=host,sub_group_size=5000",
    "zero-infinity",
    "zero-infinity:pipeline_read=on,pipeline_write=on,sub_group_size=5000,max_reuse_distance=0",
    "zero-infinity:pipeline_write=on,gradients=host,max_in_cpu=20000,max_reuse_distance=20000",
    "zero-infinity:parameters=gpu,checkpoints=host",
    "zero-infinity:parameters=host,prefetch_bucket_size=0,max_reuse_distance=0",
    "deep-optimizer-states",
    "deep-optimizer-states:stride=2,sub_group_size=1,checkpoints=host",
    "deep-optimizer-states:stride=off",
    "fuyou",
    "fuyou:optimizer=serial",
    "fuyou:optimizer=naive,swap=0.3,checkpoints_ssd=1",
    "fuyou:swap=all",
    "greedysnake:snake=off",
    "greedysnake:snake=off,alpha=0.25,optimizer_ssd=0.3,parameters_ssd=1,checkpoints_ssd=1",
    "greedysnake:snake=off,alpha=1,optimizer_ssd=0.5,parameters_ssd=0.5,recompute=needed",
    "greedysnake:snake=off,gradients_gpu=0.5",
    "greedysnake:snake=off,updates=micro-batch,alpha=0.4,optimizer_ssd=0.6,parameters_ssd=0.5"};

// Each device knows the problem it is made for.
TrainingOptions in_bf16(TrainingOptions options) {
  options.problem.workload.precision = Precision::bf16;
  options.make_device = [](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
    return std::make_unique<HiddenDevice>(problem, gpu, host, 2);
  };
  return options;
}

TrainingOptions in_bf16(const Workbench& bench, const std::string& policy,
                        std::int64_t micro_batch) {
  TrainingOptions options = bench.options(policy);
  options.problem.workload.micro_batch = micro_batch;
  options.steps = 7;
  return in_bf16(options);
}

struct Part : Losses {
  std::int64_t first = 0;
  StoreLocation location;
};

// From the resume point, if there is one, until `stop_at` steps are reported (-1: to the end).
Part train_part(const TrainingOptions& options, std::int64_t stop_at = -1) {
  Training training(options);
  Part part;
  part.first = training.first_step();
  training.remove_previous_store();
  const TrainingResult result = training.run(
      [&](const StepResult& step) {
        part.of_step.push_back(step.loss);
        if (step.step + 1 == stop_at) training.request_stop();
      },
      nullptr);
  part.weights_hash = result.weights_hash;
  part.location = training.store_location();
  return part;
}

}  // namespace

TEST_CASE("the host cannot touch the memory of a hidden device, which can be copied to and from") {
  TrainingOptions options = in_bf16(Workbench(), "resident", 2);
  HiddenDevice device(options.problem, 8192, 4096);
  const std::array<std::byte, 3> given = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> found{};
  device.upload(5000, given);
  device.download(5000, found);
  CHECK(found == given);
  CHECK(device.highest_written(Tier::gpu) == 5003);
  const std::span<std::byte> memory = device.gpu_memory();
  for (const bool writes : {false, true}) {
    const ChildEnd end = run_in_child(
        [&](const auto& say) {
          std::signal(SIGSEGV, SIG_DFL);
          volatile std::byte* const place = memory.data() + 5000;
          if (writes) *place = std::byte{4};
          say(*place == std::byte{1} ? "read" : "wrote");
        },
        std::chrono::seconds(20));
    CHECK_FALSE(end.finished);
    CHECK(end.said.empty());
    CHECK((end.signal == SIGSEGV || end.signal == SIGABRT));
  }
}

// Gradients of several micro-batches are added up in fp32, the gradient of one alone is kept in
// bf16; both are clipped and not.
TEST_CASE("in bf16 every policy trains bit-identically to resident") {
  const Workbench bench(folder_for_many_runs());
  for (const std::int64_t micro_batch : {2, 8}) {
    for (const GradientClip& clip : {GradientClip{}, GradientClip{ClipScope::global, 0.05}}) {
      TrainingOptions options = in_bf16(bench, "resident", micro_batch);
      options.problem.workload.clip = clip;
      options = in_bf16(options);
      REQUIRE(options.problem.gradient_bytes() == (micro_batch == 8 ? 2 : 4));
      const Losses resident = train_within_plan(options);
      CHECK(resident.of_step.back() < resident.of_step.front());
      for (const char* policy : policies) {
        INFO(policy << ", micro-batches of " << micro_batch << ", clip " << to_string(clip));
        options.policy = policy;
        CHECK(difference(train_within_plan(options), resident) == "");
      }
    }
  }
}

// A rounding to bf16 is 2^-9 of a value at most. The initial loss, ln 256 = 5.5, comes from logits
// of about 1 through some ten rounded activations: 10 x 2^-9 of a logit, averaged over 128 tokens,
// stays below 1 % of it, and so does what 20 steps of learning rate 1e-3 make of it. Not the same
// numbers, or nothing was rounded.
TEST_CASE("losses in bf16 are those of fp32 within rounding, and not the same") {
  const Workbench bench;
  TrainingOptions options = bench.options("resident");
  const Losses exact = train_within_plan(options);
  for (const GradientWidth width : {GradientWidth::bits32, GradientWidth::bits16}) {
    options.problem.workload.gradient = width;
    options.problem.workload.micro_batch =
        width == GradientWidth::bits16 ? options.problem.workload.batch : 2;
    const Losses rounded = train_within_plan(in_bf16(options));
    REQUIRE(rounded.of_step.size() == exact.of_step.size());
    for (std::size_t s = 0; s < exact.of_step.size(); ++s) {
      INFO("step " << s);
      CHECK(rounded.of_step[s] == Approx(exact.of_step[s]).epsilon(0.01));
      CHECK(rounded.of_step[s] != exact.of_step[s]);
    }
  }
}

TEST_CASE("a training in bf16 goes on bit for bit under another policy, from any tier to any") {
  const Workbench bench(folder_for_many_runs());
  for (const std::int64_t micro_batch : {2, 8}) {
    TrainingOptions options = in_bf16(bench, "resident", micro_batch);
    options.steps = 60;
    const Losses whole = train_within_plan(options);
    options.durability = {DurabilityMode::on, 1};
    options.guard_bytes = 0;
    // State in gpu memory, on the ssd, in host memory, in two of them; and from each to itself.
    for (const auto& [before, after] : {std::pair{"resident", "resident"},
                                        {"resident", "zero-infinity:max_reuse_distance=0"},
                                        {"zero-infinity:max_reuse_distance=0", "resident"},
                                        {"zero-offload:parameters=host", "resident"},
                                        {"resident", "zero-offload:parameters=gpu"},
                                        {"deep-optimizer-states", "fuyou"},
                                        {"fuyou", "fuyou"},
                                        {"greedysnake:snake=off,optimizer_ssd=0.5,parameters_ssd=1",
                                         "deep-optimizer-states:stride=2"}}) {
      INFO(before << " to " << after << ", micro-batches of " << micro_batch);
      options.resume.reset();
      options.policy = before;
      const Part head = train_part(options, 5);
      REQUIRE(head.of_step.size() < 60);
      options.policy = after;
      options.resume = find_resume_point(head.location);
      const Part tail = train_part(options);
      Losses both = head;
      both.of_step.insert(both.of_step.end(), tail.of_step.begin(), tail.of_step.end());
      both.weights_hash = tail.weights_hash;
      CHECK(difference(both, whole) == "");
    }
  }
}

TEST_CASE("what is exported of a training in bf16 is its fp32 weights, from every tier") {
  const Workbench bench;
  const auto export_of = [&](const std::string& policy) {
    Training training(in_bf16(bench, policy, 2));
    training.run([](const StepResult&) {}, nullptr);
    training.export_model(Directory(bench.root()));
    const SafetensorsFile weights(bench.root() / "model.safetensors");
    std::vector<std::vector<float>> values;
    bool beyond_bf16 = false;
    for (const auto& tensor : weights.tensors()) {
      values.push_back(weights.read(tensor.name));
      for (const float value : values.back())
        beyond_bf16 = beyond_bf16 || to_float(to_bf16(value)) != value;
    }
    CHECK(beyond_bf16);
    return values;
  };
  const auto resident = export_of("resident");
  for (const char* policy : {"zero-offload", "zero-infinity", "fuyou"}) {
    INFO(policy);
    CHECK(export_of(policy) == resident);
  }
}

}  // namespace spillway::test
