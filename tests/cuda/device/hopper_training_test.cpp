// Training with Hopper's kernels of attention, on a GPU that is one (the emulated one is): the same
// promises as with those for every GPU.
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "exec/cuda/attention/attention_choice.hpp"
#include "tests/cuda/device/cuda_training.hpp"

namespace spillway {
namespace {

using test::train;
using test::Trained;
using test::Workbench;

// Heads of 64; two tiles of keys, the second not full.
TrainingOptions options_of(const Workbench& bench, const std::string& policy,
                           const std::string& attention) {
  TrainingOptions o = bench.options(policy, 1, 64, 1);
  o.problem.model.heads = o.problem.model.kv_heads = 1;
  o.problem.workload.sequence = 140;
  o.steps = 3;
  return test::in_bf16(o, {attention});
}

TEST_CASE("CUDA on a Hopper: policies agree with its own attention, and stopping changes nothing",
          "[hopper][slow]") {
  if (!cuda::is_hopper()) return;
  const Workbench bench(test::folder_for_many_runs());
  const Trained resident = train(options_of(bench, "resident", "wgmma"));
  for (const char* policy : {"zero-infinity", "fuyou:swap=0.5,checkpoints_ssd=1"}) {
    INFO(policy);
    CHECK(difference(resident.losses, train(options_of(bench, policy, "wgmma")).losses) == "");
  }
  // Sums in another order: the same within roundings of bf16.
  const Trained usual = train(options_of(bench, "resident", "mma"));
  CHECK(usual.losses.weights_hash != resident.losses.weights_hash);
  for (std::size_t s = 0; s < usual.losses.of_step.size(); ++s)
    CHECK(usual.losses.of_step[s] == Approx(resident.losses.of_step[s]).epsilon(0.01));

  TrainingOptions o = options_of(bench, "zero-infinity", "wgmma");
  o.durability = {DurabilityMode::on, 1};
  o.keep_store = true;
  StoreLocation location;
  {
    Training training(o);
    training.run([&](const StepResult&) { training.request_stop(); }, nullptr);
    location = training.store_location();
  }
  o = options_of(bench, "fuyou", "wgmma");
  o.durability = {DurabilityMode::on, 1};
  o.resume = find_resume_point(location);
  CHECK(o.resume->record.version < o.steps);
  CHECK(train(o).losses.weights_hash == resident.losses.weights_hash);
  o = options_of(bench, "fuyou", "mma");
  o.resume = find_resume_point(location);
  CHECK_THROWS_WITH(train(o), Catch::Contains("SPILLWAY_CUDA_ATTENTION is mma"));
}

TEST_CASE("CUDA on a Hopper: what its attention does not compute is refused", "[hopper]") {
  if (!cuda::is_hopper()) return;
  const Workbench bench(test::folder_for_many_runs());
  TrainingOptions o = options_of(bench, "resident", "wgmma");
  o.problem.model.heads = o.problem.model.kv_heads = 4;
  CHECK_THROWS_AS(train(test::in_bf16(o, {"wgmma"})), InputError);
  o = options_of(bench, "resident", "wgmma");
  o.problem.workload.precision = Precision::fp32;
  CHECK_THROWS_AS(train(test::on_cuda(o, {"wgmma"})), InputError);
}

}  // namespace
}  // namespace spillway
