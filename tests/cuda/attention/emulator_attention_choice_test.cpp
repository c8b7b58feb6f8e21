// What happens where Hopper's kernels of attention are not right: the check finds it, and training
// with them is refused.
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "exec/cuda/attention/attention_choice.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway::cuda {
namespace {

using Catch::Matchers::Contains;

void check_refused(const char* expected) {
  CHECK_THROWS_AS(choose_attention("wgmma", {64}), MachineError);
  CHECK_THROWS_WITH(choose_attention("wgmma", {64}), Contains(expected));
}

TEST_CASE("Hopper's attention is refused by a GPU whose wgmma does something else") {
  emulator::reset();
  emulator::Machine machine;
  machine.wgmma_works = false;
  emulator::set_machine(machine);
  check_refused("output differs by");
  CHECK(choose_attention("mma", {64}) == AttentionKernels::mma_sync);
  emulator::reset();
}

TEST_CASE("Hopper's attention is refused by a GPU on which one of its kernels fails") {
  for (const char* name :
       {"attention_forward_hopper", "attention_keys_hopper", "attention_queries_hopper"}) {
    INFO(name);
    emulator::reset();
    emulator::fail_kernel(name, 1, cudaErrorIllegalInstruction);
    check_refused("cudaErrorIllegalInstruction");
  }
  emulator::reset();
}

TEST_CASE("Hopper's attention is refused by a GPU that has no code for it") {
  emulator::reset();
  emulator::Machine machine;
  machine.shared_bytes = 100 * 1024;  // what the kernels need is refused, as absent code is
  emulator::set_machine(machine);
  check_refused("cudaErrorInvalidValue");
  emulator::reset();
}

TEST_CASE("Hopper's attention is refused by all but compute capability 9.0, and not tried there") {
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    emulator::reset();
    emulator::Machine machine;
    machine.major = major;
    machine.minor = minor;
    emulator::set_machine(machine);
    CHECK_THROWS_AS(choose_attention("wgmma", {64, 128}), InputError);
    CHECK(emulator::count("kernel attention_forward_hopper") == 0);
  }
  emulator::reset();
}

}  // namespace
}  // namespace spillway::cuda
