// Events of the emulated runtime.
#include <cuda_runtime_api.h>

#include <map>
#include <optional>
#include <utility>

#include "tests/emulator/calls.hpp"
#include "tests/emulator/capture.hpp"
#include "tests/emulator/settings.hpp"
#include "tests/emulator/stream.hpp"

namespace emulator {
namespace {

struct Events {
  std::mutex mutex;
  std::map<cudaEvent_t, std::shared_ptr<CUevent_st>> live;
};

Events& events() {
  static auto* one = new Events;
  return *one;
}

cudaError_t create(cudaEvent_t* handle, unsigned flags) {
  if (handle == nullptr || flags > (cudaEventBlockingSync | cudaEventDisableTiming))
    return cudaErrorInvalidValue;
  auto event = std::make_shared<CUevent_st>();
  event->flags = flags;
  *handle = event.get();
  std::lock_guard lock(events().mutex);
  events().live.emplace(*handle, std::move(event));
  return cudaSuccess;
}

std::shared_ptr<Record> latest(CUevent_st& event) {
  std::lock_guard lock(event.mutex);
  return event.latest;
}

cudaError_t record(cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  const std::shared_ptr<CUevent_st> event = find_event(handle);
  CUstream_st* stream = find_stream(on);
  if (!event || stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (flags > cudaEventRecordExternal) return cudaErrorInvalidValue;
  bool captured = false;
  const cudaError_t error =
      flags == cudaEventRecordExternal
          ? capture_event_node(*stream, Node::Kind::record_event, event, captured)
          : capture_record(*stream, *event, captured);
  if (captured || error != cudaSuccess) return error;
  if (flags == cudaEventRecordExternal) return cudaErrorIllegalState;  // only within a capture
  auto mark = std::make_shared<Record>();
  {
    std::lock_guard lock(event->mutex);
    event->latest = mark;
  }
  return submit(*stream, {[mark](std::uint64_t) { mark->finish(); }, true});
}

}  // namespace

void Record::finish() {
  const std::optional<std::int64_t> of_products = product_clock_ns();
  time = of_products ? std::chrono::steady_clock::time_point(std::chrono::nanoseconds(*of_products))
                     : std::chrono::steady_clock::now();
  done.store(true, std::memory_order_release);
  done.notify_all();
}

std::shared_ptr<CUevent_st> find_event(cudaEvent_t handle) {
  std::lock_guard lock(events().mutex);
  const auto found = events().live.find(handle);
  return found == events().live.end() ? nullptr : found->second;
}

}  // namespace emulator

using emulator::call;

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return call("cudaEventCreate", [&] { return emulator::create(event, cudaEventDefault); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&] { return emulator::create(event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  const cudaError_t error = emulator::enter("cudaEventDestroy");
  std::lock_guard lock(emulator::events().mutex);
  if (emulator::events().live.erase(handle) == 0)
    return emulator::leave(cudaErrorInvalidResourceHandle);
  return emulator::leave(error);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord",
              [&] { return emulator::record(event, stream, cudaEventRecordDefault); });
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return call("cudaEventRecordWithFlags", [&] { return emulator::record(event, stream, flags); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t on, cudaEvent_t handle, unsigned flags) {
  return call("cudaStreamWaitEvent", [&] {
    const std::shared_ptr<CUevent_st> event = emulator::find_event(handle);
    CUstream_st* stream = emulator::find_stream(on);
    if (!event || stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (flags > cudaEventWaitExternal) return cudaErrorInvalidValue;
    bool captured = false;
    const cudaError_t error = flags == cudaEventWaitExternal
                                  ? emulator::capture_event_node(
                                        *stream, emulator::Node::Kind::wait_event, event, captured)
                                  : emulator::capture_wait(*stream, *event, captured);
    if (captured || error != cudaSuccess) return error;
    const std::shared_ptr<emulator::Record> mark = emulator::latest(*event);
    if (!mark) return cudaSuccess;  // never recorded: nothing to wait for
    return emulator::submit(*stream, {[mark](std::uint64_t) { mark->wait(); }, true});
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&] {
    const std::shared_ptr<CUevent_st> event = emulator::find_event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = emulator::refuse_captured_event(*event)) return error;
    if (const cudaError_t error = emulator::refuse_unsafe_call()) return error;
    const std::shared_ptr<emulator::Record> mark = emulator::latest(*event);
    if (mark && !mark->is_done()) return cudaErrorNotReady;
    return emulator::device_state();
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&] {
    const std::shared_ptr<CUevent_st> event = emulator::find_event(handle);
    if (!event) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = emulator::refuse_captured_event(*event)) return error;
    if (const cudaError_t error = emulator::refuse_unsafe_call()) return error;
    const std::shared_ptr<emulator::Record> mark = emulator::latest(*event);
    if (mark) mark->wait();
    return emulator::device_state();
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&] {
    const std::shared_ptr<CUevent_st> events[2] = {emulator::find_event(start),
                                                   emulator::find_event(end)};
    std::chrono::steady_clock::time_point times[2];
    for (int i = 0; i < 2; ++i) {
      if (!events[i] || (events[i]->flags & cudaEventDisableTiming) != 0)
        return cudaErrorInvalidResourceHandle;
      const std::shared_ptr<emulator::Record> mark = emulator::latest(*events[i]);
      if (!mark) return cudaErrorInvalidResourceHandle;
      if (!mark->is_done()) return cudaErrorNotReady;
      times[i] = mark->time;
    }
    if (milliseconds == nullptr) return cudaErrorInvalidValue;
    *milliseconds = std::chrono::duration<float, std::milli>(times[1] - times[0]).count();
    return cudaSuccess;
  });
}
