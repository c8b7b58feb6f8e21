// Attention on GPUs with less shared memory than a Hopper has: other tiles, the same numbers within
// roundings.
#include <catch2/catch.hpp>

#include "tests/cuda/attention/attention_run.hpp"

namespace spillway::cuda {
namespace {

// An A100 has 164 KB per multiprocessor, GPUs of 8.6 and 8.9 have 100 KB.
TEST_CASE("Attention fits in the shared memory of every GPU from 8.0 on") {
  for (const std::size_t kilobytes : {std::size_t{164}, std::size_t{100}}) {
    emulator::reset();
    emulator::Machine machine;
    machine.shared_bytes = kilobytes * 1024;
    emulator::set_machine(machine);
    INFO(kilobytes << " KB of shared memory");
    for (const std::int64_t head_size : {16, 64, 96, 128}) {
      const AttentionCase c = attention_case(1, 150, 2, head_size);
      check_forward<bf16>(c, Way::fast);
      check_forward<float>(c, Way::fast);
      check_backward<bf16>(c, Way::fast);
      check_backward<float>(c, Way::fast);
    }
  }
  emulator::reset();
}

}  // namespace
}  // namespace spillway::cuda
