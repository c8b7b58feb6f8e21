#include "experiments/calibrate/quick_machine.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/errors.hpp"
#include "experiments/calibrate/calibrate_briefly.hpp"
#include "policies/common/policy.hpp"
#include "policies/model/units.hpp"
#include "sim/simulate.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

namespace fs = std::filesystem;

QuickMachineRequest small_request(const fs::path& drive) {
  QuickMachineRequest request;
  request.model = load_model("gpt-tiny", {"hidden=32", "layers=2"});
  request.workload.batch = request.workload.micro_batch = 2;
  request.workload.sequence = 32;
  request.workload.precision = Precision::fp32;
  request.micro_batches = {2, 1};
  request.drives.all = {drive};
  return request;
}

struct Measurement {
  QuickMachine result;
  int begun = 0, figures = 0;
};

Measurement measure(const QuickMachineRequest& request, const std::optional<fs::path>& cache) {
  Measurement measurement;
  measurement.result = quick_machine(
      request, cache, [&] { ++measurement.begun; },
      [&](const std::string&, int done, int all) {
        CHECK(done == measurement.figures++);
        CHECK(done < all);
      },
      {});
  return measurement;
}

Problem problem_of(const char* model, std::int64_t micro_batch, std::int64_t sequence) {
  Problem problem;
  problem.model = load_model(model);
  problem.workload = {micro_batch, micro_batch, sequence, Precision::fp32,
                      GradientWidth::automatic};
  return problem;
}

}  // namespace

TEST_CASE("a machine measured briefly prices every policy at the shapes that will be trained") {
  const test::TemporaryFolder drive, cache;
  std::ofstream(drive / "spillway-store-0.bin") << "the store of a training";
  const QuickMachineRequest request = small_request(drive.path());
  const Measurement first = measure(request, cache / "c");
  CHECK(first.begun == 1);
  CHECK(first.figures > 10);
  CHECK(first.result.measured_now);
  CHECK(first.result.not_kept == "");
  CHECK(fs::exists(first.result.kept_in));
  // What was on the drive is as it was, and there is nothing else.
  CHECK(std::distance(fs::directory_iterator(drive.path()), {}) == 1);
  CHECK(fs::file_size(drive / "spillway-store-0.bin") == 23);

  Problem problem;
  problem.model = request.model;
  problem.machine = first.result.machine;
  for (const std::int64_t micro_batch : request.micro_batches) {
    problem.workload = {2, micro_batch, 32, Precision::fp32, GradientWidth::automatic};
    for (const char* policy :
         {"resident", "zero-offload", "zero-infinity", "fuyou", "greedysnake", "fuyou:swap=auto"}) {
      INFO(policy << " " << micro_batch);
      CHECK(simulate(build_schedule(problem, policy, 4)).extrapolates.empty());
    }
  }

  const Measurement again = measure(request, cache / "c");
  CHECK(again.begun + again.figures == 0);
  CHECK_FALSE(again.result.measured_now);
  CHECK(machine_to_toml(again.result.machine) == machine_to_toml(first.result.machine));

  // Damaged: measured anew, and whole again.
  std::ofstream(first.result.kept_in, std::ios::app) << "gpu.flops = 1e30\n";
  CHECK(measure(request, cache / "c").result.measured_now);
  CHECK_FALSE(measure(request, cache / "c").result.measured_now);
}

TEST_CASE("what identifies a measurement: program, computer, device, drives, kernels, threads") {
  const test::TemporaryFolder drive, root;
  const QuickMachineRequest request = small_request(drive.path());
  std::set<std::string> all = {identity_of(request)};
  CHECK(identity_of(request) == *all.begin());
  CHECK_THAT(identity_of(request), Catch::Contains(SPILLWAY_VERSION));
  const auto differs = [&](const auto& change) {
    QuickMachineRequest other = request;
    change(other);
    CHECK(all.insert(identity_of(other)).second);
  };
  differs([](auto& r) { r.device = "GPU 0: some name"; });
  differs([](auto& r) { r.threads = 2; });
  differs([](auto& r) { r.drives.all = {"/proc"}; });
  if (usual_io().method == IoMethod::uring)
    differs([](auto& r) { r.io = choose_io(IoMethod::threads); });
  differs([](auto& r) { r.drives.all.push_back(r.drives.all[0]); });
  differs([](auto& r) { r.model.hidden *= 2; });
  differs([](auto& r) { r.workload.sequence *= 2; });
  differs([](auto& r) { r.workload.precision = Precision::bf16; });
  differs([](auto& r) { r.workload.sequences_at_once = 2; });
  differs([](auto& r) { r.micro_batches = {1}; });
  // Another folder of the same drive, and more layers, take the same time.
  QuickMachineRequest same = request;
  same.drives.all = {drive.path().parent_path()};
  same.model.layers = 7;
  CHECK(identity_of(same) == identity_of(request));
  // Another computer.
  CHECK(all.insert(identity_of(request, root.path())).second);
  fs::create_directory(root / "etc");
  std::ofstream(root / "etc/machine-id") << "0123456789abcdef\n";
  CHECK(all.insert(identity_of(request, root.path())).second);
}

TEST_CASE("a drive that cannot be measured is left out, told, and not kept") {
  const test::TemporaryFolder drive, cache;
  const QuickMachineRequest request = small_request("/proc");
  std::string told;
  const QuickMachine machine = quick_machine(
      request, cache / "c", [] {}, [](const std::string&, int, int) {},
      [&](const std::string& text) { told += text; });
  CHECK_THAT(told, Catch::Contains("the drive could not be measured"));
  CHECK(machine.machine.ssd.count == 0);
  CHECK(machine.machine.gpu.flops > 0);
  CHECK(machine.not_kept == "its drive could not be measured");
  CHECK(machine.kept_in.empty());
}

TEST_CASE("what is thrown while measuring comes out, and leaves nothing") {
  const test::TemporaryFolder drive, cache;
  struct Stop {};
  const QuickMachineRequest request = small_request(drive.path());
  for (const int after : {0, 5, 20}) {
    const auto stop = [&](const std::string&, int done, int) {
      if (done == after) throw Stop();
    };
    CHECK_THROWS_AS(quick_machine(request, cache / "c", [] {}, stop, {}), Stop);
    CHECK(fs::is_empty(drive.path()));
    CHECK_FALSE(fs::exists(cache / "c"));
  }
}

TEST_CASE("kernels that would take long are timed at a smaller shape") {
  // All of them where all are quick, the smallest first.
  const auto quick =
      brief_problems({problem_of("gpt-tiny", 4, 64), problem_of("gpt-tiny", 2, 64)}, 1);
  REQUIRE(quick.size() == 2);
  CHECK(quick[0].workload.micro_batch == 2);
  // Those that are not are left out.
  const auto some =
      brief_problems({problem_of("gpt-small", 1, 128), problem_of("gpt-small", 4096, 128)}, 1);
  REQUIRE(some.size() == 1);
  CHECK(some[0].workload.micro_batch == 1);
  // One that is smaller in micro-batch, tokens and width, of a model that trains all the same.
  for (const char* model :
       {"gpt2-124m", "gpt2-1.5b", "gpt-6b", "gpt-175b", "smollm2-360m", "qwen2.5-0.5b",
        "qwen2.5-7b", "qwen3-0.6b", "llama-3-8b", "llama-2-7b"}) {
    INFO(model);
    const auto one = brief_problems({problem_of(model, 8, 1024)}, 1);
    REQUIRE(one.size() == 1);
    CHECK_NOTHROW(one[0].validate());
    CHECK(10 * one[0].model.layer_forward_flops(one[0].workload.micro_batch,
                                                one[0].workload.sequence) <=
          2e11);
    CHECK(largest_unit_elements(one[0].model) <= (1 << 26));
  }
}

}  // namespace spillway
