// Training on a drive that fails: every loss is what it would have been, or training stops and says
// which file, where in it, and what to do. Never a wrong number, never a hang.
#include <fmt/format.h>

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <random>

#include "tests/exec/child.hpp"
#include "tests/exec/io/fault_drive.hpp"
#include "tests/exec/io/rings.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {
namespace {

constexpr std::chrono::seconds limit(120);

// Whether a flipped bit on the drive is found. Without checksums it cannot be.
constexpr bool store_has_checksums = true;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int rounds = 10;
#else
constexpr int rounds = 40;
#endif

constexpr std::array policies = {
    "zero-infinity:max_reuse_distance=0,parameters=ssd", "fuyou:swap=0.5,checkpoints_ssd=1",
    "greedysnake:snake=off,alpha=0.5,optimizer_ssd=1,parameters_ssd=1,checkpoints_ssd=1"};

TrainingOptions options_of(const Workbench& bench, const std::string& policy) {
  TrainingOptions options = bench.options(policy, 2, 16, 2);
  options.steps = 4;
  return options;
}

// All of a training's losses, to the bit, as text.
std::string train_to_text(TrainingOptions options, FaultDrive& drive, bool over_threads) {
  options.make_ring = drive.rings(over_threads);
  std::string text;
  Training training(std::move(options));
  const TrainingResult result = training.run(
      [&](const StepResult& step) { text += fmt::format("{} {:a}\n", step.step, step.loss); },
      nullptr);
  return text + fmt::format("weights {:x}\n", result.weights_hash);
}

struct Undisturbed {
  std::string losses;
  std::uint64_t requests = 0;
};

class Baselines {
 public:
  explicit Baselines(const Workbench& bench) : bench_(bench) {}
  const Undisturbed& of(const std::string& policy) {
    const auto [entry, is_new] = runs_.try_emplace(policy);
    if (is_new) {
      FaultDrive drive(0);
      entry->second.losses = train_to_text(options_of(bench_, policy), drive, false);
      entry->second.requests = drive.requests();
    }
    return entry->second;
  }

 private:
  const Workbench& bench_;
  std::map<std::string, Undisturbed> runs_;
};

// In a process of its own, so that a hang is seen.
ChildEnd train_in_child(const Workbench& bench, const std::string& policy, std::uint64_t seed,
                        const FaultPlan& plan, bool over_threads) {
  return run_in_child(
      [&](const auto& say) {
        FaultDrive drive(seed, plan);
        say(train_to_text(options_of(bench, policy), drive, over_threads));
      },
      limit);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// "WHAT of FILE at OFFSET failed: WHY | REMEDY"
void check_failure(const std::string& message) {
  INFO(message);
  CHECK(contains(message, "spillway-store-"));
  CHECK((contains(message, "offset ") || contains(message, "sync of ")));
  const std::size_t bar = message.find(" | ");
  REQUIRE(bar != std::string::npos);
  CHECK(message.size() > bar + 10);
}

}  // namespace

TEST_CASE("one fault at a random request: training goes on exactly, or stops and says where",
          "[store]") {
  const Workbench bench(folder_for_many_runs());
  Baselines undisturbed(bench);
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const char* policy : policies) REQUIRE(undisturbed.of(policy).requests > 50);
  std::vector<Fault> faults = {Fault::io_error, Fault::no_space, Fault::short_transfer,
                               Fault::interrupted, Fault::again};
  if (store_has_checksums) faults.insert(faults.end(), {Fault::flipped_read, Fault::flipped_write});
  std::size_t stopped = 0, went_on = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string policy = policies[random() % policies.size()];
    const Undisturbed& expected = undisturbed.of(policy);
    FaultPlan plan;
    plan.once = FaultPlan::Once{faults[static_cast<std::size_t>(round) % faults.size()],
                                random() % expected.requests};
    const bool over_threads = random() % 2 == 0;
    INFO("round " << round << ": " << policy << (over_threads ? ", over threads, " : ", ")
                  << to_string(plan.once->fault) << " at request " << plan.once->at_request);
    const ChildEnd end = train_in_child(bench, policy, random(), plan, over_threads);
    REQUIRE_FALSE(end.timed_out);
    REQUIRE(end.signal == 0);
    if (end.finished) {
      ++went_on;
      CHECK(end.said == expected.losses);
    } else {
      ++stopped;
      CHECK((plan.once->fault == Fault::io_error || plan.once->fault == Fault::no_space ||
             plan.once->fault == Fault::flipped_write));
      check_failure(end.uncaught);
    }
  }
  CHECK(stopped > 0);
  CHECK(went_on > 0);
}

TEST_CASE("a drive that is slow, short and busy all the time changes no loss", "[store]") {
  const Workbench bench(folder_for_many_runs());
  Baselines undisturbed(bench);
  const std::uint64_t seed = std::random_device{}();
  INFO("seed " << seed);
  const bool over_threads = GENERATE(false, true);
  for (const char* policy : policies) {
    for (const bool volatile_cache : {false, true}) {
      FaultPlan plan;
      plan.chances = {0.2, 0.1, 0.1, 0.1, 0.1};
      plan.volatile_cache = volatile_cache;
      plan.cache_bytes = 1 << 20;
      plan.most_latency = std::chrono::microseconds(200);
      INFO(policy << (volatile_cache ? ", with a volatile cache" : "")
                  << (over_threads ? ", over threads" : ""));
      const ChildEnd end = train_in_child(bench, policy, seed, plan, over_threads);
      REQUIRE_FALSE(end.timed_out);
      CHECK(end.uncaught == "");
      CHECK(end.said == undisturbed.of(policy).losses);
    }
  }
}

TEST_CASE("a directory of the ssd tier that vanishes: exact, or stopped with a message",
          "[store]") {
  const Workbench bench;
  Baselines undisturbed(bench);
  const IoMethod ring = GENERATE(from_range(rings()));
  for (const char* policy : policies) {
    INFO(policy << " over " << to_string(ring));
    const ChildEnd end = run_in_child(
        [&](const auto& say) {
          TrainingOptions options = options_of(bench, policy);
          options.make_ring = factory_of(ring);
          options.ssd = {bench.root() / "ssd-a", bench.root() / "vanishes"};
          std::filesystem::create_directories(options.ssd[1]);
          const std::filesystem::path vanishes = options.ssd[1];
          Training training(std::move(options));
          std::string text;
          const TrainingResult result = training.run(
              [&](const StepResult& step) {
                text += fmt::format("{} {:a}\n", step.step, step.loss);
                std::filesystem::remove_all(vanishes);
              },
              nullptr);
          say(text + fmt::format("weights {:x}\n", result.weights_hash));
        },
        limit);
    REQUIRE_FALSE(end.timed_out);
    REQUIRE(end.signal == 0);
    if (end.finished) {
      CHECK(end.said == undisturbed.of(policy).losses);
    } else {
      INFO(end.uncaught);
      CHECK(contains(end.uncaught, "vanishes"));
      CHECK(contains(end.uncaught, " | "));
    }
  }
}

}  // namespace spillway::test
