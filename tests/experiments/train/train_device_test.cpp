// Which device trains, whatever this machine has: GPUs are made up.
#include "experiments/train/train_device.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "experiments/train/train_plan.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

const CudaGpu old_gpu{0, "Old", std::uint64_t{16} << 30, 7, 5};
const CudaGpu first_gpu{1, "First", std::uint64_t{80} << 30, 8, 0};
const CudaGpu second_gpu{2, "Second", std::uint64_t{80} << 30, 9, 0};

CudaDevices found(std::vector<CudaGpu> gpus) {
  return {true, static_cast<int>(gpus.size()), "0: Old\n1: First", std::move(gpus)};
}
CudaDevices no_devices() { return {true, 0, "cudaErrorNoDevice: no CUDA-capable device", {}}; }

DeviceChoice choose(const DeviceRequest& request, const CudaDevices& devices, bool driver = true) {
  return choose_device(
      request, [&] { return devices; }, [&] { return driver; });
}

void refused(const DeviceRequest& request, const CudaDevices& devices, const std::string& message,
             const std::string& hint) {
  try {
    choose(request, devices);
    FAIL_CHECK("accepted");
  } catch (const InputError& error) {
    CHECK_THAT(error.what(), Catch::Contains(message));
    CHECK_THAT(error.hint(), Catch::Contains(hint));
  }
}

}  // namespace

TEST_CASE("auto takes the first GPU that can be used, and else says why it is the CPU") {
  const DeviceChoice gpu = choose({}, found({old_gpu, first_gpu, second_gpu}));
  REQUIRE(gpu.gpu);
  CHECK(gpu.gpu->id == 1);
  const DeviceChoice no_device = choose({}, no_devices());
  CHECK_FALSE(no_device.gpu);
  CHECK(no_device.why == "cudaErrorNoDevice: no CUDA-capable device");
  const DeviceChoice too_old = choose({}, found({old_gpu}));
  CHECK_FALSE(too_old.gpu);
  CHECK(too_old.why == "GPU 0 (Old) has compute capability 7.5, and 8.0 or later is needed");
}

TEST_CASE("auto loads no CUDA libraries where nothing speaks for a GPU") {
  const auto fail = []() -> CudaDevices { throw std::runtime_error("looked for GPUs"); };
  const auto driver = [] { return true; };
  const auto no_driver = [] { return false; };
  DeviceRequest request;
  CHECK_FALSE(choose_device(request, fail, no_driver).gpu);
  CHECK_THAT(choose_device(request, fail, no_driver).why, Catch::Contains("libcuda.so.1"));
  request.machine = Backend::cpu;  // what was calibrated is the CPU
  CHECK_FALSE(choose_device(request, fail, driver).gpu);
  request.machine = Backend::cuda;
  CHECK_THROWS_AS(choose_device(request, fail, driver), std::runtime_error);
  request.throttled = true;
  CHECK_FALSE(choose_device(request, fail, driver).gpu);
  request = {};
  request.device = "cpu";
  CHECK_FALSE(choose_device(request, fail, driver).gpu);
}

TEST_CASE("a GPU that is asked for is taken, or is refused with the reason") {
  DeviceRequest request;
  request.device = "cuda";
  request.machine = Backend::cpu;
  const CudaDevices devices = found({old_gpu, first_gpu, second_gpu});
  CHECK(choose(request, devices).gpu->id == 1);
  request.gpu = 2;
  CHECK(choose(request, devices).gpu->id == 2);
  request.device = "auto";  // naming one asks for it
  CHECK(choose(request, devices).gpu->id == 2);
  request.gpu = 3;
  refused(request, devices, "gpu = 3: there is no such GPU; found 0 (Old), 1 (First), 2 (Second)",
          "number of one of these");
  request.gpu = 0;
  refused(request, devices, "compute capability 7.5", "device = cpu");
  request.gpu.reset();
  request.device = "cuda";
  refused(request, no_devices(), "device = cuda: there is no CUDA GPU here: cudaErrorNoDevice",
          "device = cpu");
  refused(request, found({old_gpu}), "compute capability 7.5", "device = cpu");
  request.began_on_gpu = true;
  refused(request, no_devices(), "there is no CUDA GPU here", "resume it where there is one");
  request.throttled = true;
  refused(request, devices, "throttle makes the CPU backend slower", "device = cpu");
  request = {};
  request.device = "cpu";
  request.gpu = 0;
  refused(request, devices, "gpu = 0 does not go with device = cpu", "leave one of them out");
}

TEST_CASE("of several ranks each takes a GPU of its own, or none has one") {
  const CudaDevices devices = found({old_gpu, first_gpu, second_gpu});
  DeviceRequest request;
  request.ranks_on_host = 2;
  for (const char* device : {"auto", "cuda"}) {
    request.device = device;
    request.rank_on_host = 0;
    CHECK(choose(request, devices).gpu->id == 1);
    request.rank_on_host = 1;
    CHECK(choose(request, devices).gpu->id == 2);
  }
  request.ranks_on_host = 3;
  refused(request, devices,
          "3 ranks on this computer, each with a GPU of its own, and 2 that can be used",
          "as many ranks as there are GPUs");
  request.device = "auto";
  const DeviceChoice none = choose(request, devices);
  CHECK_FALSE(none.gpu);
  CHECK_THAT(none.why, Catch::Contains("3 ranks on this computer"));
}

TEST_CASE("the gpu tier gets what is free, less what the backend reserves and a margin") {
  constexpr std::uint64_t gib = std::uint64_t{1} << 30;
  const std::uint64_t bytes = gpu_tier_bytes(80 * gib, 2 * gib);
  CHECK(bytes < 78 * gib);
  CHECK(bytes > 76 * gib);
  CHECK(gpu_tier_bytes(gib, 2 * gib) > 0);  // 0 would be no limit
  CHECK(gpu_tier_bytes(gib, 2 * gib) < 4096);
}

TEST_CASE("the sequences computed at once follow from the shape, not from memory or policy") {
  Problem problem;
  problem.model = load_model("gpt-tiny", {});
  problem.workload.batch = problem.workload.micro_batch = 12;
  problem.workload.sequence = 64;
  problem.workload.precision = Precision::bf16;
  problem.machine.ssd.capacity = std::uint64_t{1} << 30;
  const auto peak = [&](std::int64_t sequences) {
    Problem one = problem;
    one.workload.sequences_at_once = sequences;
    return build_schedule(one, "resident", 2).use(Tier::gpu).peak_bytes;
  };
  REQUIRE(peak(12) > peak(6));
  for (const std::uint64_t memory : {peak(12), 4 * peak(12)}) {
    TrainHardware gpu{true, [&](const Problem&) { return memory; }, true};
    for (const std::string policy : {"resident", "zero-infinity"}) {
      const TrainPlan plan = plan_training(problem, false, policy, true, {}, gpu);
      CHECK(plan.problem.workload.sequences_at_once == 12);
      CHECK(plan.problem.machine.gpu.memory == memory);
      CHECK(plan.problem.backend() == Backend::cuda);
    }
    gpu.choose_sequences_at_once = false;
    CHECK(plan_training(problem, false, "resident", true, {}, gpu)
              .problem.workload.sequences_at_once == 1);
  }
  // What does not fit that way says so.
  const TrainHardware tight{true, [&](const Problem&) { return peak(6); }, true};
  CHECK_THROWS_AS(plan_training(problem, false, "resident", true, {}, tight), FitError);
  const TrainHardware full{true, [&](const Problem&) { return std::uint64_t{4096}; }, true};
  CHECK_THROWS_AS(plan_training(problem, false, "resident", true, {}, full), FitError);
}

TEST_CASE("what several groups of sequences add up is kept in 32 bits") {
  // 2^25 / (1024 768) = 42 sequences; of 64 the largest divisor up to it is 32.
  Problem problem;
  problem.model = load_model("gpt2-124m", {});
  problem.workload = {64, 64, 1024, Precision::bf16, GradientWidth::automatic};
  REQUIRE(problem.gradient_bytes() == 2);
  problem.use_gpu_sequences_at_once();
  CHECK(problem.workload.sequences_at_once == 32);
  CHECK(problem.gradient_bytes() == 4);
  problem.workload = {32, 32, 1024, Precision::bf16, GradientWidth::automatic};
  problem.use_gpu_sequences_at_once();
  CHECK(problem.workload.sequences_at_once == 32);
  CHECK(problem.gradient_bytes() == 2);
  problem.use_gpu_sequences_at_once(4);
  CHECK(problem.workload.sequences_at_once == 4);
  CHECK(problem.gradient_bytes() == 4);
}

}  // namespace spillway
