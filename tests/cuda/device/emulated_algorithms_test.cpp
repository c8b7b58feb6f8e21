// Trainings whose algorithms were chosen by measurements that differ: what they share is every bit.
#ifdef SPILLWAY_EMULATED_GPU
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "exec/run/cuda_module.hpp"
#include "tests/cuda/device/cuda_training.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway {
namespace {

using test::CudaChoices;
using test::difference;
using test::in_bf16;
using test::Losses;
using test::train;
using test::Workbench;

TrainingOptions small(const Workbench& bench, const std::string& policy, std::int64_t steps,
                      const CudaChoices& choices = {}) {
  TrainingOptions o = bench.options(policy, 2, 32, 2);
  o.steps = steps;
  return in_bf16(o, choices);
}

// 2 and 5 add up in other orders; 3 and 7 in that of the first.
const std::map<int, double> seven_is_best = {{0, 100}, {2, 10}, {3, 80}, {5, 10}, {7, 60}},
                            three_is_best = {{0, 100}, {2, 10}, {3, 50}, {5, 10}, {7, 90}},
                            first_is_best = {{0, 10}};

// Products of a run, by number of their algorithm.
std::int64_t products(int algorithm) {
  return emulator::count("product by algorithm " + std::to_string(algorithm));
}

// Stopped some steps after the second of ten, and what it had lost until then.
struct Stopped {
  StoreLocation location;
  std::vector<double> losses;
};
Stopped stop_early(TrainingOptions o) {
  o.durability = {DurabilityMode::on, 1};
  o.keep_store = true;
  Stopped stopped;
  Training training(o);
  training.run(
      [&](const StepResult& step) {
        stopped.losses.push_back(step.loss);
        if (step.step == 1) training.request_stop();
      },
      nullptr);
  stopped.location = training.store_location();
  return stopped;
}

Losses go_on(TrainingOptions o, const Stopped& stopped, const CudaChoices& choices = {}) {
  o.durability = {DurabilityMode::on, 1};
  o.resume = find_resume_point(stopped.location);
  Training training(in_bf16(o, choices));
  emulator::reset_counts();
  Losses all{stopped.losses, 0};
  const TrainingResult result =
      training.run([&](const StepResult& step) { all.of_step.push_back(step.loss); }, nullptr);
  all.weights_hash = result.weights_hash;
  return all;
}

}  // namespace

TEST_CASE(
    "CUDA emulated: policies agree to the bit though each finds another algorithm the fastest") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  const Losses expected = train(small(bench, "resident", 3, {"mma", "kernel", false})).losses;
  int turn = 0;
  for (const std::string policy : {"resident", "zero-infinity", "greedysnake:snake=off", "fuyou"}) {
    INFO(policy);
    const bool seven = turn++ % 2 == 0;
    emulator::set_product_times(seven ? seven_is_best : three_is_best);
    Training training(small(bench, policy, 3));
    emulator::reset_counts();
    Losses losses;
    losses.weights_hash =
        training.run([&](const StepResult& step) { losses.of_step.push_back(step.loss); }, nullptr)
            .weights_hash;
    CHECK(difference(expected, losses) == "");
    // They did choose, and what they chose does all the work: no product was met for the first
    // time.
    CHECK(products(seven ? 7 : 3) > 0);
    CHECK(products(seven ? 3 : 7) == 0);
    CHECK(products(0) == 0);
    CHECK(products(2) + products(5) == 0);
    CHECK(emulator::count("cublasLtMatmulAlgoGetHeuristic") == 0);
  }
  emulator::reset();
}

TEST_CASE("CUDA emulated: no policy makes a product that was not settled before its first step",
          "[slow]") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  for (const PolicyInfo& policy : builtin_policies()) {
    for (const int micro_batches : {1, 2}) {
      INFO(policy.name << ", micro-batches " << micro_batches);
      TrainingOptions o = bench.options(policy.name, 2, 32, micro_batches);
      o.steps = 2;
      Training training(in_bf16(o));
      emulator::reset_counts();
      training.run([](const StepResult&) {}, nullptr);
      CHECK(emulator::count("cublasLtMatmul") > 0);
      CHECK(emulator::count("cublasLtMatmulAlgoGetHeuristic") == 0);
    }
  }
}

TEST_CASE("CUDA emulated: a resumed training computes by the algorithms that are recorded") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  emulator::set_product_times(seven_is_best);
  const Losses whole = train(small(bench, "resident", 10)).losses;
  const TrainingOptions o = small(bench, "zero-infinity", 10);
  const Stopped stopped = stop_early(o);
  const std::string text =
      TrainingRecord::parse(find_resume_point(stopped.location).record.identity.training)
          .algorithms;
  CHECK_THAT(text, Catch::StartsWith("cuBLASLt 130000 on compute capability 9.0"));
  // Now another would be chosen, if one were.
  emulator::set_product_times(three_is_best);
  CHECK(difference(whole, go_on(o, stopped)) == "");
  CHECK(products(7) > 0);
  CHECK(products(3) + products(0) == 0);
  emulator::reset();
}

TEST_CASE("CUDA emulated: untuned algorithms are recorded, too") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  const CudaChoices untuned{"mma", "kernel", false};
  const TrainingOptions o = small(bench, "zero-infinity", 10, untuned);
  const Stopped stopped = stop_early(o);
  CHECK_FALSE(TrainingRecord::parse(find_resume_point(stopped.location).record.identity.training)
                  .algorithms.empty());
  // With tuning it would be another training.
  CHECK_THROWS_WITH(go_on(o, stopped), Catch::Contains("tune_matmul is on"));
  emulator::set_product_times(seven_is_best);
  go_on(o, stopped, untuned);
  CHECK(products(0) > 0);
  CHECK(products(7) == 0);
  emulator::reset();
}

TEST_CASE("CUDA emulated: a training that cannot have its algorithms does not begin") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  const TrainingOptions o = small(bench, "zero-infinity", 10);
  const Stopped stopped = stop_early(o);
  SECTION("the libraries are others") {
    emulator::Machine machine;
    machine.cublaslt_version = 140000;
    emulator::set_machine(machine);
    CHECK_THROWS_WITH(go_on(o, stopped), Catch::Contains("cannot go on bit for bit") &&
                                             Catch::Contains("cuBLASLt 130000") &&
                                             Catch::Contains("140000"));
  }
  SECTION("the library refuses one") {
    emulator::fail("cublasLtMatmulAlgoCheck", 3, static_cast<cudaError_t>(15));
    CHECK_THROWS_AS(go_on(o, stopped), RecordedAlgorithmsRefused);
  }
  emulator::reset();
  // Nothing is lost: it goes on where they are to be had.
  CHECK(go_on(o, stopped).of_step.size() == 10);
}

TEST_CASE("CUDA emulated: a training of before there were records goes on as it was") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  TrainingOptions o = small(bench, "resident", 3, {"mma", "kernel", false});
  const Losses expected = train(o).losses;
  emulator::set_product_times(seven_is_best);
  o.make_device = [](const Problem& problem, std::uint64_t gpu_bytes, std::uint64_t host_bytes) {
    cuda::CudaDeviceOptions options{0, 1, "mma", "kernel", true};
    options.recorded_algorithms = "";
    auto device = std::make_unique<cuda::CudaDevice>(problem, gpu_bytes, host_bytes, options);
    CHECK(device->algorithms().empty());
    CHECK(emulator::count("cublasLtMatmul") == 0);
    return device;
  };
  emulator::reset_counts();
  CHECK(difference(expected, train(o).losses) == "");
  CHECK(products(0) > 0);
  CHECK(products(7) == 0);
  emulator::reset();
}

TEST_CASE("CUDA emulated: with GELU's slope in the product policies agree, and a resumed training",
          "[slow]") {
  const Workbench bench(test::folder_for_many_runs());
  emulator::reset();
  const Losses kernel = train(small(bench, "resident", 10)).losses;
  for (const std::string how : {"dgelu", "dgelu-bgrad"}) {
    INFO(how);
    const CudaChoices choices{"mma", how, true};
    const Losses expected = train(small(bench, "resident", 10, choices)).losses;
    CHECK(difference(kernel, expected) != "");
    CHECK(expected.of_step.back() == Approx(kernel.of_step.back()).epsilon(0.01));
    // fuyou keeps fc and makes GELU's output of it; the others recompute or keep all.
    for (const std::string policy : {"zero-infinity", "fuyou", "greedysnake:snake=off"}) {
      INFO(policy);
      CHECK(difference(expected, train(small(bench, policy, 10, choices)).losses) == "");
    }
    const TrainingOptions o = small(bench, "zero-infinity", 10, choices);
    const Stopped stopped = stop_early(o);
    CHECK_THROWS_WITH(go_on(o, stopped), Catch::Contains("gelu_backward is kernel"));
    CHECK(difference(expected, go_on(o, stopped, choices)) == "");
  }
}

}  // namespace spillway
#endif
