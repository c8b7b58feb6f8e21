// Which kernel of cross entropy is taken on which GPU, and that it makes no difference.
#ifdef SPILLWAY_EMULATED_GPU
#include <catch2/catch.hpp>

#include "exec/cuda/kernels/kernels.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway::cuda {
namespace {

// Kilobytes of shared memory of a multiprocessor.
void use_machine_with(std::size_t kilobytes) {
  emulator::Machine machine;
  machine.shared_bytes = kilobytes * 1024;
  emulator::set_machine(machine);
}

// Whether rows of so many logits in bf16 wait in shared memory.
bool rows_are_staged(std::size_t kilobytes, std::int64_t vocabulary) {
  use_machine_with(kilobytes);
  emulator::RecordLaunches recorder;
  auto* const nothing = reinterpret_cast<std::byte*>(4096);
  cross_entropy(reinterpret_cast<bf16*>(nothing), (vocabulary + 63) / 64 * 64, vocabulary,
                reinterpret_cast<std::int32_t*>(nothing), reinterpret_cast<float*>(nothing),
                reinterpret_cast<double*>(nothing), 1, nullptr);
  const auto launches = recorder.take();
  REQUIRE(launches.size() == 1);
  return launches[0].shared_bytes > 0;
}

TEST_CASE("CUDA emulated: cross entropy keeps a row in shared memory where two blocks can") {
  // A row of GPT-2's 50,257 logits takes 98 KB.
  CHECK(rows_are_staged(228, 50257));
  CHECK_FALSE(rows_are_staged(164, 50257));
  CHECK_FALSE(rows_are_staged(100, 50257));
  // Of 24,000 logits 47 KB, of bytes next to nothing.
  CHECK(rows_are_staged(100, 24000));
  CHECK(rows_are_staged(100, 256));
  CHECK_FALSE(rows_are_staged(100, 25000));
  emulator::reset();
}

TEMPLATE_TEST_CASE("CUDA emulated: cross entropy has the same bits on every GPU", "", float, bf16) {
  constexpr std::size_t rows = 2;
  // More than one round of a block's threads, with a last pack that is not full.
  constexpr std::int64_t vocabulary = 37001, stride = 37056;
  const auto logits = random_normal<TestType>(rows * stride, 3.0f, 7);
  const auto targets = random_tokens(rows, vocabulary, 8);
  const auto run = [&](std::size_t kilobytes) {
    use_machine_with(kilobytes);
    const TestStream stream;
    const DeviceArray<TestType> on_device(logits);
    const DeviceArray<std::int32_t> target(targets);
    const DeviceArray<double> losses(rows);
    const DeviceArray<float> scale(std::vector<float>{0.01f});
    cross_entropy(on_device.data(), stride, vocabulary, target.data(), scale.data(), losses.data(),
                  static_cast<std::int64_t>(rows), stream);
    stream.wait();
    return bytes_of(on_device.download(), losses.download());
  };
  const auto staged = run(1024), read_again = run(64);
  CHECK(staged == read_again);
  emulator::reset();
}

}  // namespace
}  // namespace spillway::cuda
#endif
