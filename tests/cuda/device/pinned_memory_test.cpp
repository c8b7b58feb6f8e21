#include "exec/cuda/device/pinned_memory.hpp"

#include <cuda_runtime.h>

#include <catch2/catch.hpp>

#include "exec/run/arena.hpp"

using namespace spillway;

namespace {

// Whether a copy to the device and back, across borders of pieces, brings the bytes home.
bool copies_whole(std::byte* host, std::size_t bytes) {
  void* device = nullptr;
  REQUIRE(cudaMalloc(&device, bytes) == cudaSuccess);
  for (std::size_t i = 0; i < bytes; ++i) host[i] = std::byte(i * 7 % 251);
  const bool issued =
      cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, nullptr) == cudaSuccess &&
      cudaStreamSynchronize(nullptr) == cudaSuccess;
  for (std::size_t i = 0; i < bytes; ++i) host[i] = std::byte{0};
  const bool back =
      cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, nullptr) == cudaSuccess &&
      cudaStreamSynchronize(nullptr) == cudaSuccess;
  bool same = issued && back;
  for (std::size_t i = 0; i < bytes && same; ++i) same = host[i] == std::byte(i * 7 % 251);
  cudaFree(device);
  return same;
}

}  // namespace

TEST_CASE("Memory that was pinned in pieces is copied as one, and progress is told",
          "[pinned][kernels]") {
  const Arena arena(std::uint64_t{1} << 20);
  const std::byte first = arena.data()[(256 << 10) - 1];
  std::uint64_t told = 0;
  const auto pinned = cuda::pin_memory(
      arena.span(), [&](std::uint64_t done, std::uint64_t) { told = done; }, 256 << 10);
  CHECK(told == arena.size());
  CHECK(arena.data()[(256 << 10) - 1] == first);  // pinning looks at borders, and changes nothing
  CHECK(copies_whole(arena.data(), arena.size()));
}

TEST_CASE("Memory can be pinned anew once its registration is gone", "[pinned][kernels]") {
  const Arena arena(std::uint64_t{1} << 20);
  for (int i = 0; i < 2; ++i) {
    const auto pinned = cuda::pin_memory(arena.span(), {}, 300 << 10);
    CHECK(pinned.registration != nullptr);
  }
  CHECK(cuda::pin_memory({}).registration == nullptr);
}
