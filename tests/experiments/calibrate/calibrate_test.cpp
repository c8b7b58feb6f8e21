#include "experiments/calibrate/calibrate.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "base/errors.hpp"
#include "exec/store/ssd_store.hpp"
#include "experiments/calibrate/drive_bench.hpp"
#include "experiments/calibrate/reference_kernels.hpp"
#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

TEST_CASE(
    "a calibrated machine has every figure with its samples, and prices every policy without "
    "guessing",
    "[slow]") {
  const test::TemporaryFolder folder;
  CalibrationOptions options;
  options.model = load_model("gpt-tiny", {"hidden=32", "layers=2"});
  options.sequence = 32;
  options.micro_batches = {1, 2, 4};
  options.ssd = {folder.path()};
  options.most_seconds_per_figure = 0.2;
  int last = -1, all = 0;
  const Machine machine = calibrate(options, [&](const std::string& what, int done, int planned) {
    CHECK_FALSE(what.empty());
    CHECK(done == last + 1);  // progress moves one by one, and the total does not change under way
    if (last >= 0) CHECK(planned == all);
    last = done;
    all = planned;
  });
  CHECK(last + 1 == all);
  CHECK(fs::is_empty(folder.path()));  // test files are gone

  for (const double rate :
       {machine.gpu.flops, machine.pcie.h2d, machine.pcie.d2h, machine.host.bandwidth,
        machine.host.core_bandwidth, machine.host.adam_params_per_second, machine.ssd.read,
        machine.ssd.write}) {
    CHECK(rate > 0);
  }
  CHECK(machine.gpu.is_cpu);
  for (const KernelTime& time : machine.kernels) {
    INFO(time.kind << " " << time.shape);
    CHECK(time.samples_ns.size() >= 10);
    CHECK(time.median_ns > 0);
  }
  // The table of queue depths ends with the executor's own depth and the full bandwidth.
  REQUIRE(machine.ssd.by_queue_depth.size() >= 3);
  CHECK(machine.ssd.by_queue_depth.begin()->first == 1);
  CHECK(machine.ssd.by_queue_depth.rbegin()->first == SsdStoreOptions{}.queue_depth);
  CHECK(machine.ssd.by_queue_depth.rbegin()->second.read == 1);
  CHECK(machine.ssd.queue_depth == SsdStoreOptions{}.queue_depth);
  CHECK(machine.ssd.at_queue_depth().write == machine.ssd.write);
  for (const auto& [depth, row] : machine.ssd.by_queue_depth) {
    INFO("depth " << depth);
    CHECK((row.read > 0 && row.read <= 1 && row.write > 0 && row.write <= 1));
  }
  // Mixes of reads and writes, measured in the same passes as either alone, have gains that the
  // law can have.
  CHECK(machine.ssd.law == SsdLaw::mixed);
  REQUIRE(machine.ssd.by_read_share.size() == 3);
  for (const double share : {0.25, 0.5, 0.75}) {
    REQUIRE(machine.ssd.by_read_share.count(share) == 1);
    CHECK(machine.ssd.by_read_share.at(share) >= 1);
    CHECK(machine.ssd.by_read_share.at(share) <= 2);
  }
  CHECK(machine.sources.at("ssd.by_read_share").find("read share 0.75") != std::string::npos);
  CHECK(machine.sources.at("ssd.law").find("of 20 runs") != std::string::npos);
  // References of the drives are timed between their figures, too.
  for (const KernelTime& reference : machine.references) {
    if (reference.kind == "read" || reference.kind == "write")
      CHECK(std::ssize(reference.samples_ns) == 2 * calibration_rounds + drive_figures(false));
  }
  // The file holds all of it.
  CHECK(machine_to_toml(parse_machine(machine_to_toml(machine), "round trip")) ==
        machine_to_toml(machine));

  Problem problem;
  problem.model = options.model;
  problem.machine = machine;
  for (const std::int64_t micro_batch : options.micro_batches) {
    problem.workload = {4, micro_batch, 32, Precision::fp32, GradientWidth::automatic};
    for (const char* policy :
         {"resident", "resident:recompute=needed", "zero-offload", "zero-infinity", "fuyou",
          "greedysnake", "fuyou:swap=auto", "fuyou:swap=0.4", "fuyou:recompute=needed"}) {
      INFO(policy << " " << micro_batch);
      CHECK(simulate(build_schedule(problem, policy, 4)).extrapolates.empty());
    }
  }
}

TEST_CASE("What is done between the figures of a drive is no work of the drive's") {
  const test::TemporaryFolder folder;
  const Arena memory(std::uint64_t{64} << 20);
  const SamplingRule rule = {5, 1, 1, 5};
  const auto cores_with = [&](const std::function<void(const std::string&)>& next) {
    Machine machine = load_machine("testbed");
    measure_drives({folder.path()}, usual_io(), true, rule, memory, machine, next);
    return machine.ssd.cores;
  };
  const auto spin = [](const std::string&) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    while (std::chrono::steady_clock::now() < until) {
    }
  };
  // Spinning is one core; three times 0.4 s are most of the time.
  const double cores = cores_with([](const std::string&) {}), beside = cores_with(spin);
  INFO(cores << " and " << beside);
  CHECK(beside - cores < 0.4 * (1 - std::min(cores, 1.0)) + 0.1);
}

TEST_CASE("what cannot be measured is an error that says what") {
  CalibrationOptions options;
  options.model = load_model("gpt-tiny", {"hidden=32", "layers=1"});
  options.sequence = 16;
  options.micro_batches = {1};
  options.most_seconds_per_figure = 0;
  options.ssd = {"/nonexistent/folder"};
  CHECK_THROWS_AS(calibrate(options, [](const std::string&, int, int) {}), InputError);
}

}  // namespace
}  // namespace spillway
