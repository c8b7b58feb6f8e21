#include "tests/emulator/memory.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulator/calls.hpp"
#include "tests/emulator/capture.hpp"
#include "tests/emulator/copy_engine.hpp"
#include "tests/emulator/stream.hpp"

namespace emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t guard_bytes = 0;
#else
constexpr std::size_t guard_bytes = 256;
#endif
constexpr int guard_value = 0xa5, poison_value = 0xff;
constexpr std::size_t alignment = 256;

enum class Owner { device, host_allocated, host_registered };
struct Area {
  std::size_t bytes;
  Owner owner;
  int device;  // where memory of the device lies
};

struct Areas {
  std::mutex mutex;
  std::map<std::uintptr_t, Area> by_begin;  // they do not overlap
  std::size_t device_bytes = 0, most_device_bytes = 0;
};
Areas& areas() {
  static auto* one = new Areas;
  return *one;
}

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// The area that holds the address, or the end. With the mutex held.
std::map<std::uintptr_t, Area>::iterator area_of(std::uintptr_t at) {
  auto next = areas().by_begin.upper_bound(at);
  if (next == areas().by_begin.begin()) return areas().by_begin.end();
  --next;
  return at - next->first < next->second.bytes ? next : areas().by_begin.end();
}

cudaError_t allocate(void** pointer, std::size_t bytes, Owner owner) {
  if (pointer == nullptr) return cudaErrorInvalidValue;
  if (const cudaError_t error = refuse_unsafe_call()) return error;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  std::lock_guard lock(areas().mutex);
  if (owner == Owner::device &&
      (bytes > machine().memory_bytes || areas().device_bytes > machine().memory_bytes - bytes))
    return cudaErrorMemoryAllocation;
  void* base = nullptr;
  if (posix_memalign(&base, alignment, bytes + 2 * guard_bytes) != 0)
    return cudaErrorMemoryAllocation;
  auto* data = static_cast<unsigned char*>(base) + guard_bytes;
  std::fill_n(data - guard_bytes, guard_bytes, static_cast<unsigned char>(guard_value));
  std::fill_n(data + bytes, guard_bytes, static_cast<unsigned char>(guard_value));
  std::memset(data, poison_value, bytes);
  areas().by_begin[address(data)] = {bytes, owner, current_device()};
  if (owner == Owner::device) areas().device_bytes += bytes;
  areas().most_device_bytes = std::max(areas().most_device_bytes, areas().device_bytes);
  *pointer = data;
  return cudaSuccess;
}

bool intact(const unsigned char* zone) {
  return std::all_of(zone, zone + guard_bytes,
                     [](unsigned char value) { return value == guard_value; });
}

// For all that uses memory of a device is enqueued there; host memory may be used by any.
void wait_before_release(void* pointer, Owner owner) {
  if (owner != Owner::device) return drain_all();
  int device = current_device();
  {
    std::lock_guard lock(areas().mutex);
    const auto found = areas().by_begin.find(address(pointer));
    if (found != areas().by_begin.end()) device = found->second.device;
  }
  drain_device(device);
}

// Also after a failure: memory is given back.
cudaError_t release(void* pointer, Owner owner, cudaError_t state) {
  if (pointer == nullptr) return state;
  if (const cudaError_t error = refuse_unsafe_call()) return error;
  wait_before_release(pointer, owner);
  std::lock_guard lock(areas().mutex);
  const auto found = areas().by_begin.find(address(pointer));
  if (found == areas().by_begin.end() || found->second.owner != owner) return cudaErrorInvalidValue;
  const std::size_t bytes = found->second.bytes;
  areas().by_begin.erase(found);
  if (owner == Owner::device) areas().device_bytes -= bytes;
  auto* data = static_cast<unsigned char*>(pointer);
  const bool before = intact(data - guard_bytes), after = intact(data + bytes);
  std::free(data - guard_bytes);
  if (before && after) return state;
  fail_device(cudaErrorIllegalAddress, "an allocation of " + std::to_string(bytes) +
                                           " bytes was written " +
                                           (before ? "beyond its end" : "before its begin"));
  return cudaErrorIllegalAddress;
}

cudaError_t enqueue_copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                         cudaStream_t handle) {
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Place target = place_of(to, bytes), source = place_of(from, bytes);
  if (target == Place::invalid || source == Place::invalid) return cudaErrorInvalidValue;
  const bool to_device = target == Place::device, from_device = source == Place::device;
  switch (kind) {
    case cudaMemcpyHostToHost:
      if (to_device || from_device) return cudaErrorInvalidValue;
      break;
    case cudaMemcpyHostToDevice:
      if (!to_device || from_device) return cudaErrorInvalidValue;
      break;
    case cudaMemcpyDeviceToHost:
      if (to_device || !from_device) return cudaErrorInvalidValue;
      break;
    case cudaMemcpyDeviceToDevice:
      if (!to_device || !from_device) return cudaErrorInvalidValue;
      break;
    case cudaMemcpyDefault:
      break;
    default:
      return cudaErrorInvalidMemcpyDirection;
  }
  // From pageable memory the call returns when the bytes are read, to pageable memory when they are
  // there.
  const bool reads_pageable = source == Place::pageable,
             writes_pageable = target == Place::pageable;
  if (reads_pageable || writes_pageable) count_one("pageable copy");
  Operation copy{[=](std::uint64_t) { std::memmove(to, from, bytes); }};
  if (reads_pageable) {
    const auto* begin = static_cast<const unsigned char*>(from);
    copy.run = [to, staged = std::vector<unsigned char>(begin, begin + bytes)](std::uint64_t) {
      std::memcpy(to, staged.data(), staged.size());
    };
  }
  if (CopyEngine* const engine = engine_between(source, target)) {
    copy.run = [engine, run = std::move(copy.run)](std::uint64_t seed) {
      engine->run([&] { run(seed); });
    };
  }
  if (const cudaError_t error = submit(*stream, std::move(copy))) return error;
  if (writes_pageable && !stream->capture) {
    drain(*stream);
    return device_state();
  }
  return cudaSuccess;
}

cudaError_t enqueue_set(void* to, int value, std::size_t bytes, cudaStream_t handle) {
  CUstream_st* stream = find_stream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Place target = place_of(to, bytes);
  if (target != Place::device && target != Place::pinned) return cudaErrorInvalidValue;
  return submit(*stream, {[=](std::uint64_t) { std::memset(to, value, bytes); }});
}

// For the functions without a stream: the default one, to the end.
cudaError_t finish(cudaError_t enqueued) {
  if (enqueued != cudaSuccess) return enqueued;
  drain(*find_stream(nullptr));
  return device_state();
}

// Bytes from the begin of the area to where memory of its kind ends: host memory that was
// registered by several calls, one piece after the other, is one where the machine copies across
// them. With the mutex held.
std::size_t contiguous_bytes(std::map<std::uintptr_t, Area>::iterator area) {
  std::size_t bytes = area->second.bytes;
  if (area->second.owner != Owner::host_registered || !machine().copies_cross_registrations)
    return bytes;
  for (auto next = std::next(area); next != areas().by_begin.end(); ++next) {
    if (next->first != area->first + bytes || next->second.owner != Owner::host_registered) break;
    bytes += next->second.bytes;
  }
  return bytes;
}

}  // namespace

Place place_of(const void* pointer, std::size_t bytes) {
  if (recording()) return Place::device;
  std::lock_guard lock(areas().mutex);
  const std::uintptr_t begin = address(pointer);
  const auto area = area_of(begin);
  if (area != areas().by_begin.end()) {
    if (bytes > contiguous_bytes(area) - (begin - area->first)) return Place::invalid;
    return area->second.owner == Owner::device ? Place::device : Place::pinned;
  }
  const auto next = areas().by_begin.lower_bound(begin);
  if (pointer == nullptr || (next != areas().by_begin.end() && next->first - begin < bytes))
    return Place::invalid;
  return Place::pageable;
}

std::size_t device_bytes() {
  std::lock_guard lock(areas().mutex);
  return areas().device_bytes;
}

std::size_t most_device_bytes() {
  std::lock_guard lock(areas().mutex);
  return std::exchange(areas().most_device_bytes, areas().device_bytes);
}

}  // namespace emulator

using emulator::call;
using emulator::Owner;

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  return call("cudaMalloc", [&] { return emulator::allocate(pointer, bytes, Owner::device); });
}
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return call("cudaHostAlloc",
              [&] { return emulator::allocate(pointer, bytes, Owner::host_allocated); });
}
cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  return call("cudaMallocHost",
              [&] { return emulator::allocate(pointer, bytes, Owner::host_allocated); });
}
cudaError_t cudaFree(void* pointer) {
  const cudaError_t state = emulator::enter("cudaFree");
  return emulator::leave(emulator::release(pointer, Owner::device, state));
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t state = emulator::enter("cudaFreeHost");
  return emulator::leave(emulator::release(pointer, Owner::host_allocated, state));
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  return call("cudaHostRegister", [&] {
    constexpr unsigned known = cudaHostRegisterPortable | cudaHostRegisterMapped |
                               cudaHostRegisterIoMemory | cudaHostRegisterReadOnly;
    if (pointer == nullptr || bytes == 0 || (flags & ~known) != 0) return cudaErrorInvalidValue;
    if (const cudaError_t error = emulator::refuse_unsafe_call()) return error;
    std::lock_guard lock(emulator::areas().mutex);
    const std::uintptr_t begin = emulator::address(pointer);
    auto& all = emulator::areas().by_begin;
    const auto next = all.lower_bound(begin);
    if (emulator::area_of(begin) != all.end() || (next != all.end() && next->first - begin < bytes))
      return cudaErrorHostMemoryAlreadyRegistered;
    all[begin] = {bytes, Owner::host_registered, emulator::current_device()};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* pointer) {
  const cudaError_t state = emulator::enter("cudaHostUnregister");
  if (const cudaError_t error = emulator::refuse_unsafe_call()) return emulator::leave(error);
  emulator::drain_all();
  std::lock_guard lock(emulator::areas().mutex);
  auto& all = emulator::areas().by_begin;
  const auto found = all.find(emulator::address(pointer));
  if (found == all.end() || found->second.owner != Owner::host_registered)
    return emulator::leave(cudaErrorHostMemoryNotRegistered);
  all.erase(found);
  return emulator::leave(state);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return call("cudaHostGetDevicePointer", [&] {
    if (device == nullptr || flags != 0) return cudaErrorInvalidValue;
    if (emulator::place_of(host, 1) != emulator::Place::pinned) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  return call("cudaPointerGetAttributes", [&] {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    void* const same = const_cast<void*>(pointer);
    switch (emulator::place_of(pointer, 1)) {
      case emulator::Place::device:
        *attributes = {cudaMemoryTypeDevice, 0, same, nullptr};
        break;
      case emulator::Place::pinned:
        *attributes = {cudaMemoryTypeHost, 0, same, same};
        break;
      default:
        *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, same};
    }
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&] {
    if (free == nullptr || total == nullptr) return cudaErrorInvalidValue;
    *total = emulator::machine().memory_bytes;
    *free = *total - std::min(*total, emulator::device_bytes());
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&] {
    return emulator::finish(emulator::enqueue_copy(to, from, bytes, kind, nullptr));
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync",
              [&] { return emulator::enqueue_copy(to, from, bytes, kind, stream); });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpy2DAsync", [&] {
    if (width > to_pitch || width > from_pitch) return cudaErrorInvalidValue;
    for (std::size_t row = 0; row < height; ++row) {
      const cudaError_t error = emulator::enqueue_copy(
          static_cast<char*>(to) + row * to_pitch,
          static_cast<const char*>(from) + row * from_pitch, width, kind, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return call("cudaMemset",
              [&] { return emulator::finish(emulator::enqueue_set(to, value, bytes, nullptr)); });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&] { return emulator::enqueue_set(to, value, bytes, stream); });
}
