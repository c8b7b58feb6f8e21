// Pinning where the driver refuses.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "exec/cuda/device/pinned_memory.hpp"
#include "exec/run/arena.hpp"
#include "tests/emulator/emulator.hpp"

using namespace spillway;

TEST_CASE("Where copies do not cross registrations, memory is pinned in one piece") {
  for (const bool cross : {true, false}) {
    emulator::reset();
    emulator::Machine machine;
    machine.copies_cross_registrations = cross;
    emulator::set_machine(machine);
    const Arena arena(std::uint64_t{1} << 20);
    const auto pinned = cuda::pin_memory(arena.span(), {}, 256 << 10);
    CHECK(pinned.pieces == (cross ? 4 : 1));
    CHECK(emulator::count("cudaHostRegister") == (cross ? 4 : 3));  // two were tried
    void* device = nullptr;
    REQUIRE(cudaMalloc(&device, arena.size()) == cudaSuccess);
    CHECK(cudaMemcpy(device, arena.data(), arena.size(), cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(emulator::count("pageable copy") == 0);
    CHECK(cudaFree(device) == cudaSuccess);
  }
  emulator::reset();
}

TEST_CASE("A piece that cannot be pinned leaves none pinned") {
  emulator::reset();
  const Arena arena(std::uint64_t{1} << 20);
  emulator::fail("cudaHostRegister", 3, cudaErrorMemoryAllocation);
  CHECK_THROWS_AS(cuda::pin_memory(arena.span(), {}, 256 << 10), MachineError);
  emulator::reset();
  // Registering what is registered would fail.
  CHECK(cuda::pin_memory(arena.span(), {}, 256 << 10).pieces == 4);
}
