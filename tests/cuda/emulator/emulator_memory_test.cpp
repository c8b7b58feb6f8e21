// Memory of the emulated runtime, and the machine it makes believe.
#include <cuda_runtime.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulator/emulator.hpp"

namespace {

using Catch::Matchers::Contains;

TEST_CASE("fresh device memory is NaN, and comes back when it is freed") {
  emulator::reset();
  const std::size_t before = emulator::device_bytes();
  float* memory = nullptr;
  REQUIRE(cudaMalloc(&memory, 1000 * sizeof(float)) == cudaSuccess);
  CHECK(emulator::device_bytes() == before + 4000);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
  CHECK(std::all_of(memory, memory + 1000, [](float value) { return std::isnan(value); }));
  REQUIRE(cudaFree(memory) == cudaSuccess);
  CHECK(emulator::device_bytes() == before);
  CHECK(cudaFree(nullptr) == cudaSuccess);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
}

#if !defined(__SANITIZE_ADDRESS__)  // which ends the program
TEST_CASE("bytes written beside an allocation are found when it is freed") {
  for (const bool after : {false, true}) {
    emulator::reset();
    unsigned char* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, 100) == cudaSuccess);
    *(after ? memory + 100 : memory - 1) = 0;
    CHECK(cudaFree(memory) == cudaErrorIllegalAddress);
    CHECK_THAT(emulator::device_failure(),
               Contains("an allocation of 100 bytes was written " +
                        std::string(after ? "beyond its end" : "before its begin")));
  }
  emulator::reset();
}
#endif

TEST_CASE("the device has the memory that the test gave it") {
  emulator::reset();
  emulator::Machine machine;
  machine.memory_bytes = 1 << 20;
  emulator::set_machine(machine);
  const std::size_t used = emulator::device_bytes();
  void *first = nullptr, *second = nullptr;
  REQUIRE(cudaMalloc(&first, 600 << 10) == cudaSuccess);
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(total == 1 << 20);
  CHECK(free == total - used - (600 << 10));
  CHECK(cudaMalloc(&second, 600 << 10) == cudaErrorMemoryAllocation);
  CHECK(second == nullptr);
  CHECK(cudaFree(first) == cudaSuccess);
  REQUIRE(cudaMalloc(&second, 600 << 10) == cudaSuccess);
  CHECK(cudaFree(second) == cudaSuccess);
  emulator::reset();
}

TEST_CASE("copies check the direction, and that both ends lie within one allocation") {
  emulator::reset();
  std::vector<unsigned char> host(64);
  unsigned char* device = nullptr;
  REQUIRE(cudaMalloc(&device, 64) == cudaSuccess);
  for (std::size_t i = 0; i < 64; ++i) host[i] = static_cast<unsigned char>(i);
  REQUIRE(cudaMemcpy(device, host.data(), 64, cudaMemcpyHostToDevice) == cudaSuccess);
  REQUIRE(cudaMemcpy(device, device + 32, 16, cudaMemcpyDeviceToDevice) == cudaSuccess);
  std::vector<unsigned char> back(64);
  REQUIRE(cudaMemcpy(back.data(), device, 64, cudaMemcpyDefault) == cudaSuccess);
  CHECK(std::equal(back.begin(), back.begin() + 16, host.begin() + 32));
  CHECK(std::equal(back.begin() + 16, back.end(), host.begin() + 16));

  CHECK(cudaMemcpy(host.data(), device, 64, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(device, host.data(), 64, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(device + 1, host.data(), 64, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemset(device + 32, 0, 33) == cudaErrorInvalidValue);
  // Two registrations side by side are one to a copy, unless the machine says otherwise.
  REQUIRE(cudaHostRegister(host.data(), 32, cudaHostRegisterDefault) == cudaSuccess);
  CHECK(cudaHostRegister(host.data() + 31, 8, cudaHostRegisterDefault) ==
        cudaErrorHostMemoryAlreadyRegistered);
  REQUIRE(cudaHostRegister(host.data() + 32, 32, cudaHostRegisterDefault) == cudaSuccess);
  CHECK(cudaMemcpyAsync(device, host.data(), 33, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpyAsync(device, host.data(), 65, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  emulator::Machine machine;
  machine.copies_cross_registrations = false;
  emulator::set_machine(machine);
  CHECK(cudaMemcpyAsync(device, host.data(), 33, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpyAsync(device, host.data(), 32, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaHostUnregister(host.data()) == cudaSuccess);
  CHECK(cudaHostUnregister(host.data()) == cudaErrorHostMemoryNotRegistered);
  CHECK(cudaHostUnregister(host.data() + 32) == cudaSuccess);
  CHECK(cudaFree(device) == cudaSuccess);
}

TEST_CASE("a copy to pinned memory is asynchronous, one to pageable memory waits, and is counted") {
  emulator::reset();
  cudaStream_t stream{};
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  int *device = nullptr, *pinned = nullptr, *mapped = nullptr;
  REQUIRE(cudaMalloc(&device, sizeof(int)) == cudaSuccess);
  REQUIRE(cudaHostAlloc(&pinned, sizeof(int), cudaHostAllocDefault) == cudaSuccess);
  REQUIRE(cudaHostGetDevicePointer(&mapped, pinned, 0) == cudaSuccess);
  CHECK(mapped == pinned);
  int pageable = 5;
  CHECK(cudaHostGetDevicePointer(&mapped, &pageable, 0) == cudaErrorInvalidValue);
  *pinned = 0;
  {
    const emulator::Hold hold(stream);
    // What is read from pageable memory is read by the call.
    REQUIRE(cudaMemcpyAsync(device, &pageable, 4, cudaMemcpyHostToDevice, stream) == cudaSuccess);
    pageable = 6;
    emulator::reset_counts();
    REQUIRE(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(*pinned == 0);
    CHECK(emulator::count("pageable copy") == 0);
    CHECK(emulator::synchronizations() == 0);
  }
  REQUIRE(cudaMemcpyAsync(&pageable, device, 4, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  CHECK(pageable == 5);
  CHECK(*pinned == 5);
  CHECK(emulator::count("pageable copy") == 1);
  CHECK(emulator::synchronizations() == 1);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
  REQUIRE(cudaFree(device) == cudaSuccess);
}

TEST_CASE("a machine may have no driver, no device, or another one") {
  emulator::reset();
  emulator::Machine machine;
  int count = 77;
  machine.driver = false;
  emulator::set_machine(machine);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorInsufficientDriver);
  CHECK(count == 77);  // left unwritten
  machine.driver = true;
  machine.devices = 0;
  emulator::set_machine(machine);
  CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice);
  machine.devices = 2;
  machine.name = "test GPU";
  machine.major = 8;
  machine.minor = 9;
  emulator::set_machine(machine);
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(0) == cudaSuccess);
  cudaDeviceProp properties;
  REQUIRE(cudaGetDeviceProperties(&properties, 1) == cudaSuccess);
  CHECK(std::strcmp(properties.name, "test GPU") == 0);
  CHECK(properties.major == 8);
  CHECK(properties.sharedMemPerBlockOptin == 227 * 1024);
  emulator::reset();
}

TEST_CASE("errors have CUDA's names and texts") {
  CHECK(std::strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0);
  CHECK(std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
  CHECK(static_cast<int>(cudaErrorInsufficientDriver) == 35);
}

}  // namespace
