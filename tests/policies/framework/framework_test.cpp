// What a framework adds to a schedule: memory, bytes, passes, waits; and what is wrong with its
// text.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "base/rounding.hpp"
#include "policies/common/policy.hpp"
#include "policies/cost/costs.hpp"
#include "policies/framework/framework.hpp"
#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/units.hpp"
#include "test_paths.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::uint64_t page(std::uint64_t bytes) { return round_up(bytes, buffer_alignment); }

Schedule laid_over(Problem problem, const std::string& policy, const std::string& framework) {
  problem.framework = framework;
  return build_schedule(problem, policy, 2);
}

std::uint64_t peak(const Problem& problem, const std::string& policy, const std::string& framework,
                   Tier tier) {
  return laid_over(problem, policy, framework).use(tier).peak_bytes;
}

}  // namespace

TEST_CASE("Our own framework adds nothing, every other built-in one something") {
  const Problem problem = tiny_problem(3, 2);
  for (const char* policy : {"zero-infinity", "zero-offload", "deep-optimizer-states"}) {
    INFO(policy);
    const std::uint64_t own = build_schedule(problem, policy, 2).fingerprint();
    CHECK(laid_over(problem, policy, "spillway").fingerprint() == own);
    for (const char* framework : {"deepspeed-0.9", "deep-optimizer-states", "greedysnake"})
      CHECK(laid_over(problem, policy, framework).fingerprint() != own);
  }
}

TEST_CASE("The hash of a framework is of its file alone") {
  const std::string own = framework_hash("spillway");
  CHECK(own.size() == 16);
  CHECK(framework_hash("spillway:memory.gpu=1MB") == own);
  CHECK(framework_hash(SPILLWAY_SOURCE_DIR "/frameworks/spillway.toml") == own);
  CHECK(framework_hash("deepspeed-0.9") != own);
}

TEST_CASE("A framework takes memory that no task touches") {
  Problem problem = tiny_problem(3, 1);
  problem.model = load_model("gpt2-124m", {"layers=3"});
  problem.workload.sequence = 1024;
  const auto N = static_cast<std::uint64_t>(problem.model.parameters());
  for (const std::string policy : {"zero-infinity", "zero-offload"}) {
    for (const std::int64_t b : {1, 5, 16}) {
      problem.workload.batch = problem.workload.micro_batch = b;
      // b layers' worth of recomputation and gradients (T (F + 6 C) elements), or 12 bytes for each
      // logit; scratch for one sequence is there anyway.
      const std::uint64_t layer = saved_bytes(problem, gpt_saved::all, 1) + 2 * 1024 * 10 * 768;
      const std::uint64_t scratch = backward_scratch_bytes(problem, saved_none);
      const auto sequences = static_cast<std::uint64_t>(b);
      const std::uint64_t logits = 12 * sequences * 1024 * 50257;
      const std::uint64_t beyond =
          page(std::max(sequences * layer, logits) - std::min(scratch, logits));
      const auto live = [&](const char* framework) {
        return laid_over(problem, policy, framework).use(Tier::gpu).live_peak_bytes;
      };
      CHECK(live("deepspeed-0.9:memory.caching_allocator=false") -
                live("deepspeed-0.9:memory.caching_allocator=false,"
                     "memory.whole_micro_batch=false") ==
            beyond);
    }
    // fp16 is looked through for overflow, bf16 is not.
    CHECK(peak(problem, policy, "deepspeed-0.9", Tier::host) -
              peak(problem, policy, "deepspeed-0.9:compute.fp16=false", Tier::host) ==
          page(3 * N));
  }
}

TEST_CASE("Halves of a layer are recomputed by themselves where a framework says so") {
  Problem problem = tiny_problem(3, 1);
  problem.model = load_model("gpt2-124m", {"layers=3"});
  problem.workload.sequence = 1024;
  problem.workload.batch = problem.workload.micro_batch = 32;
  const std::string base = "spillway:memory.whole_micro_batch=true,memory.logit_bytes=0";
  const auto live = [&](const std::string& more) {
    return laid_over(problem, "fuyou", base + more).use(Tier::gpu).live_peak_bytes;
  };
  // Of the feed-forward half: the norm's output (C), up, GELU and the gradient of that (F each), in
  // 16 bit.
  const std::uint64_t half = 32ULL * 1024 * (768 + 3 * 3072) * 2;
  const std::uint64_t scratch = backward_scratch_bytes(problem, saved_none);
  const std::uint64_t without =
      laid_over(problem, "fuyou", "spillway").use(Tier::gpu).live_peak_bytes;
  CHECK(live(",memory.checkpoints_per_layer=2") - without == page(half - scratch));
  CHECK(live("") > live(",memory.checkpoints_per_layer=2"));
  // With all of it swapped nothing is computed again: GELU's gradient is left.
  const auto swapped = [&](const std::string& framework) {
    return laid_over(problem, "fuyou:swap=all", framework).use(Tier::gpu).live_peak_bytes;
  };
  CHECK(swapped(base + ",memory.checkpoints_per_layer=2") - swapped("spillway") ==
        page(32ULL * 1024 * 3072 * 2 - scratch));
}

TEST_CASE("A framework moves pieces of layers where ours moves layers") {
  Problem problem = tiny_problem(6, 2);
  const auto held = [&](const std::string& more) {
    return peak(problem, "fuyou", "spillway:memory.layer_pieces=3" + more, Tier::gpu);
  };
  const std::uint64_t layers = held("");
  const std::uint64_t layer =
      static_cast<std::uint64_t>(unit_elements(problem.model, 0)) * problem.parameter_bytes();
  // At the peak there are two layers of parameters, and two of gradients.
  const std::uint64_t four = held(",memory.parameter_pieces=4");
  CHECK(static_cast<double>(layers - four) ==
        Approx(static_cast<double>(layer) * 2.0 / 3).margin(2 * buffer_alignment));
  const std::uint64_t both = held(",memory.parameter_pieces=4,memory.gradient_pieces=2");
  CHECK(both < four);
  CHECK(held(",memory.parameter_pieces=60") == layers);  // never more than the schedule's
  // Pieces take no time and no bytes of their own.
  problem.framework = "spillway";
  const Schedule own = build_schedule(problem, "fuyou", 2);
  const Schedule pieces = laid_over(problem, "fuyou",
                                    "spillway:memory.layer_pieces=3,memory.parameter_pieces=2,"
                                    "memory.gradient_pieces=1");
  REQUIRE(pieces.tasks().size() == own.tasks().size());
  for (TaskId id = 0; id < own.tasks().size(); ++id)
    CHECK(pieces.tasks()[id].bytes == own.tasks()[id].bytes);
}

TEST_CASE("The flat buffer of gradients is as large as the framework's, whatever the model") {
  const Problem problem = tiny_problem(3, 1);
  const auto use = [&](const char* framework) {
    return peak(problem, "zero-offload", framework, Tier::gpu);
  };
  const std::uint64_t more = use("spillway:gradient.bucket=500000000") - use("spillway");
  CHECK(static_cast<double>(more) == Approx(1e9).margin(2 * buffer_alignment));
}

TEST_CASE(
    "An update on the CPU takes as long under every policy priced in one framework, in bf16") {
  const auto seconds_per_parameter = [](const std::string& policy, const std::string& framework) {
    Problem problem = tiny_problem(3, 1);
    problem.machine.host.adam_params_per_second = 1e9;
    problem.machine.host.adam_bytes_per_param = 28;
    problem.machine.host.bandwidth = 0;
    problem.machine.host.wake_ns = 0;
    const Schedule schedule = laid_over(problem, policy, framework);
    const Costs costs(schedule.problem());
    double seconds = 0, parameters = 0;
    for (const Task& task : schedule.tasks()) {
      if (task.kind != TaskKind::optimizer || task.lane != Lane::cpu_optimizer) continue;
      seconds += costs.seconds(task);
      parameters += static_cast<double>(task.params);
    }
    REQUIRE(parameters > 0);
    return seconds / parameters;
  };
  const Framework deepspeed = load_framework("deepspeed-0.9");
  const double passes =
      static_cast<double>(deepspeed.cpu_pass_bytes + deepspeed.cpu_overflow_pass_bytes) *
      deepspeed.cpu_pass_time;
  REQUIRE(passes > 0);
  for (const char* policy : {"zero-infinity", "zero-offload", "deep-optimizer-states:stride=2",
                             "fuyou", "greedysnake"}) {
    INFO(policy);
    CHECK(seconds_per_parameter(policy, "spillway") == Approx(1e-9));
    CHECK(seconds_per_parameter(policy, "deepspeed-0.9") == Approx((1 + passes / 28) * 1e-9));
  }
}

TEST_CASE("Passes beside AdamW move their bytes, and take their time of the cores, not of DRAM") {
  const auto update = [](const std::string& framework, double dram) {
    Problem problem = tiny_problem(3, 1);
    problem.machine.host.adam_params_per_second = 1e9;
    problem.machine.host.adam_bytes_per_param = 28;
    problem.machine.host.bandwidth = dram;
    problem.machine.host.wake_ns = 0;
    const Schedule schedule = laid_over(problem, "zero-offload", framework);
    const Costs costs(schedule.problem());
    for (const Task& task : schedule.tasks()) {
      if (task.kind == TaskKind::optimizer)
        return costs.seconds(task) / static_cast<double>(task.params);
    }
    FAIL("no update");
    return 0.0;
  };
  const std::string passes = "spillway:cpu.pass_bytes=24,cpu.pass_time=";
  // 28 bytes and 24 that take 2.2 times as long, at 28 GB/s.
  CHECK(update(passes + "2.2", 1e12) == Approx((28 + 2.2 * 24) / 28 * 1e-9));
  // DRAM of 10 GB/s moves 52 bytes, however long the cores touch pages.
  CHECK(update("spillway", 1e10) == Approx(28e-10));
  for (const char* time : {"1", "1.5", "2.2"}) CHECK(update(passes + time, 1e10) == Approx(52e-10));
  // Twice the DRAM: the cores are the limit, and not half of the time.
  CHECK(update(passes + "2.2", 2e10) == Approx((28 + 2.2 * 24) / 28 * 1e-9));
}

TEST_CASE("Pinned buffers of another program are what its files say, whatever is trained") {
  Problem problem = tiny_problem(3, 1);
  problem.model = load_model("gpt2-124m", {"layers=12"});
  problem.workload.sequence = 256;
  problem.workload.batch = problem.workload.micro_batch = 1;
  const auto host = [&](const std::string& more) {
    return peak(problem, "fuyou", "spillway:memory.pinned_rounding=true" + more, Tier::host);
  };
  const std::uint64_t plain = host("");
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  // 9.6 GB are one allocation of 16 GiB, beside which what else lives may be packed less tightly.
  // Parameters of the schedule are in theirs.
  const std::uint64_t activations = host(",memory.activation_buffer=9.6GB") - plain;
  CHECK(activations >= 16 * gib);
  CHECK(activations < 16 * gib + gib / 16);
  const std::uint64_t parameters = host(",memory.parameter_buffer=3GB");
  CHECK(parameters < plain + 4 * gib);
  CHECK(parameters > plain + 4 * gib - 200'000'000);
  // Groups of at least 10 million elements: two layers of 7.1 million, in whole tensors; the
  // largest has 4 C^2 elements more than that at most. 16 million of 4 bytes are 64 MiB.
  const std::uint64_t optimizer =
      host(",memory.optimizer_buffers=100,memory.optimizer_group=10000000");
  CHECK(optimizer > plain + 85 * 64 * (gib / 1024));  // the schedule's are in them
  CHECK(optimizer <= plain + 100 * 64 * (gib / 1024));
  // A checkpoint has 256 x 768 elements of 2 bytes, 384 KiB: half a MiB is taken, for each half.
  const std::uint64_t checkpoints =
      host(",memory.pinned_checkpoints=true,memory.checkpoints_per_layer=2");
  constexpr std::uint64_t more = (2 * 512 - 384) * 1024;  // the last layer's may stay on the GPU
  CHECK((checkpoints - plain == 12 * more || checkpoints - plain == 11 * more));
}

TEST_CASE("Copies both ways are on one lane where the framework has one") {
  const Schedule schedule =
      laid_over(tiny_problem(3, 2), "zero-offload", "spillway:copies.one_lane=true");
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::d2h) CHECK(task.lane == Lane::pcie_h2d);
  }
}

TEST_CASE("A framework is read once for each text, and again where its file has changed") {
  CHECK(load_framework("ratel:host.sync=1us").sync_ns == 1000);
  CHECK(load_framework("ratel:host.sync=2us").sync_ns == 2000);
  CHECK(load_framework("ratel").sync_ns == load_framework("ratel").sync_ns);
  char name[] = "/tmp/framework-XXXXXX.toml";
  const int file = mkstemps(name, 5);
  REQUIRE(file >= 0);
  close(file);
  for (const char* bytes : {"1GB", "2GB"}) {
    std::ofstream(name) << "name = \"x\"\ndescription = \"y\"\n[memory]\nhost = \"" << bytes
                        << "\"\n";
    CHECK(load_framework(name).host_bytes == (bytes[0] == '1' ? 1'000'000'000 : 2'000'000'000));
  }
  std::remove(name);
}

TEST_CASE("What is wrong with a framework is said with what would be right") {
  CHECK_THROWS_WITH(load_framework("deepspeed"), Catch::Contains("unknown framework deepspeed"));
  CHECK_THROWS_WITH(load_framework("deepspeed-0.9:gradient.byts=2"),
                    Catch::Contains("gradient.byts"));
  CHECK_THROWS_WITH(load_framework("deepspeed-0.9:gradient.bytes=3"),
                    Catch::Contains("it is not 0, 2 or 4"));
  CHECK_THROWS_WITH(load_framework("spillway:host.operators=20"),
                    Catch::Contains("host.operator: it is missing"));
  CHECK_THROWS_WITH(load_framework("spillway:host.operator=10us"),
                    Catch::Contains("host.operators: it is missing"));
  CHECK_THROWS_WITH(load_framework("spillway:host.sync=2000s"),
                    Catch::Contains("more than 1000 s"));
  CHECK_THROWS_WITH(parse_framework("name = \"x\"", "x.toml"), Catch::Contains("description"));
  // What would not leave 64 bits alone, and what no program has.
  for (const char* key : {"memory.host_bytes_per_parameter=2e9",
                          "memory.host_bytes_per_parameter=1e300",
                          "memory.overflow_bytes_per_parameter=1e300",
                          "memory.gpu=2EB",
                          "memory.host=2EB",
                          "memory.parameter_buffer=2EB",
                          "memory.activation_buffer=2EB",
                          "memory.logit_bytes=1000000",
                          "memory.layer_pieces=1000000000",
                          "memory.parameter_pieces=1000000000",
                          "memory.gradient_pieces=1000000000",
                          "memory.least_optimizer_slots=1000000000",
                          "memory.parameter_slots=1000000000",
                          "memory.checkpoints_per_layer=3",
                          "memory.checkpoints_per_layer=0",
                          "memory.optimizer_buffers=3",
                          "memory.optimizer_group=3",
                          "gradient.bucket=10000000000000",
                          "cpu.pass_time=1e300",
                          "cpu.pass_time=0",
                          "cpu.pass_bytes=256",
                          "cpu.overflow_pass_bytes=256"}) {
    INFO(key);
    CHECK_THROWS_AS(load_framework(std::string("spillway:") + key), InputError);
  }
  CHECK_THROWS_WITH(parse_framework("name = \"x\"\ndescription = \"y\"\n[[wait]]\nat = "
                                    "\"lunch\"\nfor = \"all\"\n",
                                    "x.toml"),
                    Catch::Contains("lunch"));
}
