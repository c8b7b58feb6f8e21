// What happens where Hopper's kernels of attention are not right: the check finds it, the others
// are used, and the user is told.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/errors.hpp"
#include "exec/cuda/attention_choice.hpp"
#include "exec/cuda/cuda_device.hpp"
#include "tests/cuda/attention_run.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway::cuda {
namespace {

using Catch::Matchers::Contains;

void check_fallback(const char* expected) {
  const AttentionChoice choice = choose_attention({64});
  CHECK(choice.kernels == AttentionKernels::mma_sync);
  CHECK_THAT(choice.warning, Contains(expected));
  CHECK_THAT(choice.warning, Contains("slower"));
  // The device is as good as new.
  check_forward<bf16>(attention_case(1, 70, 1, 64), Way::fast);
}

TEST_CASE("A GPU whose wgmma does something else gets the kernels for every GPU, and a warning") {
  emulator::reset();
  emulator::Machine machine;
  machine.wgmma_works = false;
  emulator::set_machine(machine);
  check_fallback("output differs by");
  emulator::reset();
}

TEST_CASE("A GPU on which a kernel of attention fails is reset, and gets those for every GPU") {
  for (const char* name :
       {"attention_forward_hopper", "attention_keys_hopper", "attention_queries_hopper"}) {
    INFO(name);
    emulator::reset();
    emulator::fail_kernel(name, 1, cudaErrorIllegalInstruction);
    check_fallback("cudaErrorIllegalInstruction");
  }
  emulator::reset();
}

TEST_CASE("A GPU that has no code for Hopper's kernels gets those for every GPU") {
  emulator::reset();
  emulator::Machine machine;
  machine.shared_bytes = 100 * 1024;  // what they need is refused, as absent code is
  emulator::set_machine(machine);
  check_fallback("cudaErrorInvalidValue");
  emulator::reset();
}

TEST_CASE("Only compute capability 9.0 gets Hopper's kernels of attention, and asking is refused") {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    emulator::reset();
    emulator::Machine machine;
    machine.major = major;
    machine.minor = minor;
    emulator::set_machine(machine);
    CHECK(choose_attention({64, 128}).kernels == AttentionKernels::mma_sync);
    CHECK(emulator::count("kernel attention_forward_hopper") == 0);
    setenv("SPILLWAY_CUDA_ATTENTION", "wgmma", 1);
    CHECK_THROWS_AS(choose_attention({64, 128}), InputError);
    unsetenv("SPILLWAY_CUDA_ATTENTION");
  }
  emulator::reset();
}

Problem problem_with_heads(std::int64_t hidden, std::int64_t heads) {
  Problem problem;
  problem.model = load_model("gpt-tiny", {"hidden=" + std::to_string(hidden),
                                          "heads=" + std::to_string(heads), "layers=1"});
  problem.workload.sequence = 16;
  problem.workload.batch = problem.workload.micro_batch = 1;
  return problem;
}

TEST_CASE(
    "A CUDA device says why it does without Hopper's kernels of attention, and checks only "
    "where they would be used") {
  emulator::reset();
  const auto warnings = [](const Problem& problem) {
    return CudaDevice(problem, 1 << 20, 1 << 20, {}).warnings();
  };
  CHECK(warnings(problem_with_heads(64, 1)).empty());
  CHECK(emulator::count("kernel attention_forward_hopper") > 0);
  emulator::reset_counts();
  CHECK(warnings(problem_with_heads(64, 4)).empty());
  CHECK(emulator::count("kernel attention_forward_hopper") == 0);
  emulator::Machine machine;
  machine.wgmma_works = false;
  emulator::set_machine(machine);
  REQUIRE(warnings(problem_with_heads(64, 1)).size() == 1);
  CHECK_THAT(warnings(problem_with_heads(64, 1))[0], Contains("heads of 64"));
  emulator::reset();
}

}  // namespace
}  // namespace spillway::cuda
