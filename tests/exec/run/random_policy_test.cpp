// The promise of the executor at its widest: a policy that makes any legal choice trains
// bit-identically to everything resident.
#include "tests/policies/random_policy.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "tests/exec/cpu/hidden_device.hpp"
#include "tests/exec/io/fault_drive.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int seeds_by_default = 60;
#else
constexpr int seeds_by_default = 500;
#endif

// SPILLWAY_TEST_SEEDS: how many; SPILLWAY_TEST_SEED: the first one, to repeat a failure.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

// A small problem of a seed, and training with everything resident, which is done once for each.
class Baselines {
 public:
  explicit Baselines(const Workbench& bench) : bench_(bench) {}

  TrainingOptions options(std::uint64_t seed) const {
    std::mt19937_64 random(seed);
    const auto between = [&](std::uint64_t low, std::uint64_t high) {
      return static_cast<int>(low + random() % (high - low + 1));
    };
    const int layers = between(1, 3), hidden = 16 * between(1, 2), micro_batches = between(1, 4);
    TrainingOptions o = bench_.options("resident", layers, hidden, micro_batches,
                                       trained_models[random() % std::size(trained_models)]);
    o.problem.workload.micro_batch = between(1, 2);
    o.problem.workload.batch = o.problem.workload.micro_batch * micro_batches;
    o.problem.workload.sequence = 8 * between(1, 2);
    freeze_at_random(o.problem.model, random);
    if (random() % 2 == 0) put_on_sets(o, {1, 1}, random());
    // Gradients of these models have norms of about 1.
    const GradientClip clips[] = {{}, {ClipScope::global, 0.1}, {ClipScope::layer, 0.1}};
    o.problem.workload.clip = clips[random() % 3];
    if (random() % 4 == 0) o.problem.workload.on_nonfinite = OnNonFinite::skip;
    if (random() % 3 == 0) o.problem.workload.moments = MomentWidth::bf16;
    o.guard_bytes = 1 << 16;
    // Now and then more than one run of the schedule, the last one shorter.
    o.steps = seed % 8 == 0 ? 7 : 3;
    if (seed % 8 == 0) o.steps_per_run = 5;
    if (random() % 2 == 0) o.problem.workload.precision = Precision::bf16;
    if (random() % 3 == 0) {  // on a device whose memory the host cannot touch
      o.make_device = [](const Problem& problem, std::uint64_t gpu, std::uint64_t host) {
        return std::make_unique<HiddenDevice>(problem, gpu, host);
      };
    }
    return o;
  }
  const Losses& of(const TrainingOptions& o) {
    const Workload& w = o.problem.workload;
    const auto [entry, is_new] =
        losses_.try_emplace({model_to_toml(o.problem.model), w.batch, w.micro_batch, w.sequence,
                             o.steps, to_string(w.clip), w.precision, w.moments});
    if (is_new) entry->second = train_within_plan(o);
    return entry->second;
  }

 private:
  using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::string, Precision, MomentWidth>;
  const Workbench& bench_;
  std::map<Key, Losses> losses_;
};

// Every other seed over a drive that does all that a kernel may, the others over the machine's own;
// of either, every other one over threads. Every third seed commits its steps.
Losses train_at_random(TrainingOptions options, const RandomPolicyOptions& policy) {
  if (policy.seed % 3 == 0)
    options.durability = {DurabilityMode::on, static_cast<std::int64_t>(1 + policy.seed / 3 % 4)};
  options.make_policy = [policy] { return make_random_policy(policy); };
  FaultPlan plan;
  plan.chances = {0.1, 0.05, 0.05, 0.05, 0.05};
  FaultDrive drive(policy.seed, plan);
  const bool over_threads = policy.seed / 2 % 2 == 1;
  options.make_ring = policy.seed % 2 == 1
                          ? drive.rings(over_threads)
                          : factory_of(over_threads ? IoMethod::threads : IoMethod::uring);
  return train_within_plan(options);
}

}  // namespace

TEST_CASE("any legal choice of a policy leaves every loss and every weight as resident has them",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  Baselines resident(bench);
  const std::uint64_t first = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  const std::uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", seeds_by_default);
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    INFO("seed " << seed << " (SPILLWAY_TEST_SEED=" << seed
                 << " SPILLWAY_TEST_SEEDS=1 repeats it)");
    const TrainingOptions options = resident.options(seed);
    const Losses& expected = resident.of(options);
    REQUIRE(difference(train_at_random(options, {seed, true}), expected) == "");
  }
}

// Micro-batches added in any order: each of a step's gradients differs by the rounding of a sum of
// at most 4 terms, AdamW's normalised step makes that a few ulp of the learning rate 1e-3 in a
// weight, and 12 steps of it move a loss of order 1 by less than 1e-4 of itself (see "snake order
// agrees to fp32 rounding").
TEST_CASE("micro-batches added in any order agree with resident to fp32 rounding", "[store]") {
  const Workbench bench(folder_for_many_runs());
  Baselines resident(bench);
  const std::uint64_t first = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  const std::uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", seeds_by_default) / 10 + 1;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    INFO("seed " << seed);
    const TrainingOptions options = resident.options(seed);
    const Losses& expected = resident.of(options);
    const Losses found = train_at_random(options, {seed, false});
    REQUIRE(found.of_step.size() == expected.of_step.size());
    for (std::size_t s = 0; s < found.of_step.size(); ++s) {
      INFO("step " << s);
      CHECK(std::abs(found.of_step[s] - expected.of_step[s]) <= 1e-4 * expected.of_step[s]);
    }
  }
}

// From one policy to the next, none of which places or orders anything as the one before: each run
// is stopped after some step and goes on from its commit.
TEST_CASE("a training that is stopped and goes on under one random policy after another is exact",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  Baselines resident(bench);
  const std::uint64_t first = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  const std::uint64_t seeds = from_environment("SPILLWAY_TEST_SEEDS", seeds_by_default) / 20 + 1;
  std::size_t stops = 0;
  for (std::uint64_t seed = first; seed < first + seeds; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    TrainingOptions options = resident.options(seed);
    options.steps = 40;
    const Losses& expected = resident.of(options);
    Losses found;
    while (found.of_step.size() < expected.of_step.size()) {
      const RandomPolicyOptions policy{random(), true};
      INFO("policy of seed " << policy.seed << " from step " << found.of_step.size());
      options.make_policy = [policy] { return make_random_policy(policy); };
      options.durability = {DurabilityMode::on, static_cast<std::int64_t>(1 + random() % 4)};
      if (random() % 3 == 0) std::swap(options.ssd[0], options.ssd[1]);
      const std::size_t stop_at = found.of_step.size() + 1 + random() % 8;
      Training training(options);
      REQUIRE(training.first_step() == static_cast<std::int64_t>(found.of_step.size()));
      training.remove_previous_store();
      const TrainingResult result = training.run(
          [&](const StepResult& step) {
            found.of_step.push_back(step.loss);
            if (found.of_step.size() == stop_at) training.request_stop();
          },
          nullptr);
      REQUIRE(result.steps == static_cast<std::int64_t>(found.of_step.size()));
      found.weights_hash = result.weights_hash;
      if (result.steps < options.steps) {
        ++stops;
        options.resume = find_resume_point(training.store_location());
      }
    }
    REQUIRE(difference(found, expected) == "");
  }
  CHECK(stops > seeds);
}

}  // namespace spillway::test
