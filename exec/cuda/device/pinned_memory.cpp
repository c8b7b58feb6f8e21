#include "exec/cuda/device/pinned_memory.hpp"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

constexpr unsigned most_threads = 8;

// The pieces that are locked; unlocks them when it goes.
class Registration {
 public:
  Registration() = default;
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() { release(); }

  // Locks one piece; from any thread.
  void add(std::span<std::byte> piece) {
    const cudaError_t result = cudaHostRegister(piece.data(), piece.size(),
                                                cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (result != cudaSuccess) {
      cudaGetLastError();  // not sticky: later calls are not to report it again
      throw MachineError(
          fmt::format("cannot pin {} of host memory: {} ({}) in cudaHostRegister",
                      format_bytes(static_cast<double>(piece.size())), cudaGetErrorName(result),
                      cudaGetErrorString(result)),
          "raise the limit of locked memory (`ulimit -l unlimited`, or LimitMEMLOCK of the service "
          "or container), or lower " +
              Setting{"host.memory"});
    }
    const std::lock_guard lock(mutex_);
    pieces_.push_back(piece.data());
  }

  void release() {
    for (std::byte* const piece : pieces_) static_cast<void>(cudaHostUnregister(piece));
    pieces_.clear();
  }

  std::size_t pieces() const { return pieces_.size(); }

  void require_same_addresses() const {
    for (std::byte* const piece : pieces_) {
      void* on_device = nullptr;
      SPILLWAY_CUDA(cudaHostGetDevicePointer(&on_device, piece, 0));
      if (on_device != piece) {
        throw MachineError("the GPU sees pinned host memory at other addresses than the host does",
                           "this platform is not supported: use " + Setting{"device", "cpu"});
      }
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::byte*> pieces_;
};

// Whether one copy may read and write host memory on both sides of `border`. CUDA's documents ask
// for memory that is locked throughout, and do not say that it may have been locked by two calls.
// What the memory holds stays as it is.
bool copies_cross(std::byte* border) {
  constexpr std::size_t half = 64;
  void* on_device = nullptr;
  SPILLWAY_CUDA(cudaMalloc(&on_device, 2 * half));
  cudaError_t result =
      cudaMemcpyAsync(on_device, border - half, 2 * half, cudaMemcpyHostToDevice, nullptr);
  if (result == cudaSuccess)
    result = cudaMemcpyAsync(border - half, on_device, 2 * half, cudaMemcpyDeviceToHost, nullptr);
  if (result == cudaSuccess) result = cudaStreamSynchronize(nullptr);
  static_cast<void>(cudaFree(on_device));
  if (result == cudaSuccess) return true;
  cudaGetLastError();
  if (result != cudaErrorInvalidValue) check(result, "a copy of pinned host memory");
  return false;
}

}  // namespace

PinnedMemory pin_memory(std::span<std::byte> memory, const MemoryProgress& progress,
                        std::uint64_t piece_bytes) {
  if (memory.empty()) return {};
  int device = 0;
  SPILLWAY_CUDA(cudaGetDevice(&device));
  auto registration = std::make_shared<Registration>();
  std::uint64_t done = 0;
  if (memory.size() > piece_bytes) {
    const std::uint64_t second = std::min<std::uint64_t>(piece_bytes, memory.size() - piece_bytes);
    registration->add(memory.first(piece_bytes));
    registration->add(memory.subspan(piece_bytes, second));
    done = piece_bytes + second;
    if (!copies_cross(memory.data() + piece_bytes)) {
      registration->release();
      piece_bytes = memory.size();
      done = 0;
    }
    if (progress) progress(done, memory.size());
  }
  in_pieces(
      memory.subspan(done), most_threads,
      [&](std::span<std::byte> piece) {
        SPILLWAY_CUDA(cudaSetDevice(device));  // the current device belongs to a thread
        registration->add(piece);
      },
      [&](std::uint64_t more, std::uint64_t) {
        if (progress) progress(done + more, memory.size());
      },
      piece_bytes);
  registration->require_same_addresses();
  return {registration, registration->pieces()};
}

}  // namespace spillway::cuda
