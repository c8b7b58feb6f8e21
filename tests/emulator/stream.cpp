#include "tests/emulator/stream.hpp"

#include <cuda_runtime_api.h>

#include <map>
#include <utility>

#include "tests/emulator/calls.hpp"
#include "tests/emulator/capture.hpp"
#include "tests/emulator/settings.hpp"

namespace emulator {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<cudaStream_t, std::unique_ptr<CUstream_st>> live;
  // The default streams, by device, made when they are first used.
  std::map<int, std::unique_ptr<CUstream_st>> legacy;
  std::uint64_t made = 0;
};

// Lives as long as threads of streams do.
Streams& streams() {
  static auto* one = new Streams;
  return *one;
}

// The legacy default stream and every other that is not cudaStreamNonBlocking wait for what was
// enqueued on the other before: returns the wait.
Operation wait_for(CUstream_st& other) {
  const std::uint64_t ticket = other.issued();
  return {[&other, ticket](std::uint64_t) { other.wait(ticket); }, true};
}

void respect_legacy_stream(CUstream_st& stream) {
  std::lock_guard lock(streams().mutex);
  const auto found = streams().legacy.find(stream.device);
  CUstream_st* const legacy = found == streams().legacy.end() ? nullptr : found->second.get();
  if (&stream == legacy) {
    for (auto& [handle, other] : streams().live)
      if (other->device == stream.device && (other->flags & cudaStreamNonBlocking) == 0 &&
          !other->idle())
        stream.enqueue(wait_for(*other));
  } else if (legacy != nullptr && (stream.flags & cudaStreamNonBlocking) == 0 && !legacy->idle()) {
    stream.enqueue(wait_for(*legacy));
  }
}

cudaError_t create(cudaStream_t* handle, unsigned flags) {
  if (handle == nullptr || flags > cudaStreamNonBlocking) return cudaErrorInvalidValue;
  std::lock_guard lock(streams().mutex);
  auto stream = std::make_unique<CUstream_st>(++streams().made, flags);
  *handle = stream.get();
  streams().live.emplace(*handle, std::move(stream));
  return cudaSuccess;
}

template <class Of>
void drain_if(const Of& is_meant) {
  std::vector<std::pair<CUstream_st*, std::uint64_t>> waits;
  const auto add = [&](const auto& all) {
    for (const auto& [key, stream] : all)
      if (is_meant(*stream)) waits.emplace_back(stream.get(), stream->issued());
  };
  {
    std::lock_guard lock(streams().mutex);
    add(streams().live);
    add(streams().legacy);
  }
  for (auto& [stream, ticket] : waits) stream->wait(ticket);
}

}  // namespace

CUstream_st* find_stream(cudaStream_t handle) {
  std::lock_guard lock(streams().mutex);
  if (handle == nullptr || handle == cudaStreamLegacy) {
    auto& legacy = streams().legacy[current_device()];
    if (!legacy) legacy = std::make_unique<CUstream_st>(0, 0);
    return legacy.get();
  }
  const auto found = streams().live.find(handle);
  return found == streams().live.end() ? nullptr : found->second.get();
}

cudaError_t submit(CUstream_st& stream, Operation operation) {
  if (recording()) return cudaSuccess;
  bool captured = false;
  const cudaError_t error = capture_operation(stream, operation, captured);
  if (captured || error != cudaSuccess) return error;
  respect_legacy_stream(stream);
  stream.enqueue(std::move(operation));
  return cudaSuccess;
}

void drain(CUstream_st& stream) {
  respect_legacy_stream(stream);
  stream.wait(stream.issued());
}

void drain_device(int device) {
  drain_if([&](const CUstream_st& stream) { return stream.device == device; });
}

void drain_all() {
  drain_if([](const CUstream_st&) { return true; });
}

Hold::Hold(cudaStream_t stream) : stream_(stream) {
  if (CUstream_st* found = find_stream(stream)) found->hold(1);
}
Hold::~Hold() {
  if (CUstream_st* found = find_stream(stream_)) found->hold(-1);
}

}  // namespace emulator

CUstream_st::CUstream_st(std::uint64_t number, unsigned its_flags)
    : flags(its_flags),
      device(emulator::current_device()),
      legacy(number == 0),
      number_(number),
      thread_([this] { serve(); }) {}

CUstream_st::~CUstream_st() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t CUstream_st::enqueue(emulator::Operation operation) {
  std::uint64_t ticket = 0;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(operation));
    ticket = ++issued_;
  }
  changed_.notify_all();
  return ticket;
}

void CUstream_st::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= ticket; });
}

bool CUstream_st::idle() {
  std::lock_guard lock(mutex_);
  return completed_ == issued_;
}

std::uint64_t CUstream_st::issued() {
  std::lock_guard lock(mutex_);
  return issued_;
}

void CUstream_st::hold(int change) {
  {
    std::lock_guard lock(mutex_);
    holds_ += change;
  }
  changed_.notify_all();
}

void CUstream_st::stands_in_queue(bool does) {
  {
    std::lock_guard lock(mutex_);
    in_queue_ = does;
  }
  changed_.notify_all();
}

bool CUstream_st::wait_until_idle_or_in_queue() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return in_queue_ || completed_ == issued_; });
  return in_queue_;
}

namespace {
thread_local CUstream_st* stream_of_this_thread = nullptr;
}  // namespace
CUstream_st* CUstream_st::of_this_thread() { return stream_of_this_thread; }

void CUstream_st::serve() {
  stream_of_this_thread = this;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return (!queue_.empty() && holds_ == 0) || closing_; });
    if (queue_.empty()) return;
    emulator::Operation operation = std::move(queue_.front());
    queue_.pop_front();
    const std::uint64_t ticket = completed_ + 1;
    lock.unlock();
    if (const int longest = emulator::longest_delay_us(); longest > 0) {
      emulator::Random random(emulator::delay_seed() + emulator::mix(number_) + ticket);
      std::this_thread::sleep_for(
          std::chrono::microseconds(random.below(static_cast<std::size_t>(longest) + 1)));
    }
    if (operation.even_after_failure || emulator::device_state() == cudaSuccess)
      operation.run(emulator::mix(emulator::current_seed() + emulator::mix(number_)) + ticket);
    operation.run = nullptr;  // what it holds is let go before anybody learns that it is done
    lock.lock();
    completed_ = ticket;
    changed_.notify_all();
  }
}

// --- The runtime's functions.

using emulator::call;

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return call("cudaStreamCreate", [&] { return emulator::create(stream, cudaStreamDefault); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call("cudaStreamCreateWithFlags", [&] { return emulator::create(stream, flags); });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return call("cudaStreamCreateWithPriority", [&] { return emulator::create(stream, flags); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  // Also after a failure: handles are given back.
  const cudaError_t error = emulator::enter("cudaStreamDestroy");
  std::unique_ptr<CUstream_st> stream;
  {
    std::lock_guard lock(emulator::streams().mutex);
    const auto found = emulator::streams().live.find(handle);
    if (found == emulator::streams().live.end())
      return emulator::leave(cudaErrorInvalidResourceHandle);
    stream = std::move(found->second);
    emulator::streams().live.erase(found);
  }
  stream.reset();
  return emulator::leave(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&] {
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = emulator::refuse_while_capturing(*stream)) return error;
    emulator::drain(*stream);
    return emulator::device_state();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", [&] {
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = emulator::refuse_while_capturing(*stream)) return error;
    if (!stream->idle()) return cudaErrorNotReady;
    return emulator::device_state();
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", [&] {
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (function == nullptr) return cudaErrorInvalidValue;
    return emulator::submit(*stream, {[function, data](std::uint64_t) {
      emulator::run_host_function(function, data);
    }});
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [] {
    if (const cudaError_t error = emulator::refuse_unsafe_call(true)) return error;
    emulator::drain_device(emulator::current_device());
    return emulator::device_state();
  });
}
