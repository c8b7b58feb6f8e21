// Streams and events of the emulated runtime: what is ordered, and what is not.
#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "exec/cuda/device/launch.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

using spillway::cuda::launch;

struct Stream {
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  ~Stream() { cudaStreamDestroy(handle); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return handle; }  // NOLINT: as the handle itself
  cudaStream_t handle{};
};

struct Event {
  explicit Event(unsigned flags = cudaEventDefault) {
    REQUIRE(cudaEventCreateWithFlags(&handle, flags) == cudaSuccess);
  }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return handle; }  // NOLINT: as the handle itself
  cudaEvent_t handle{};
};

__global__ void set(int* to, int value) { *to = value; }
__global__ void copy(const int* from, int* to) { *to = *from; }
// For streams that are not ordered on purpose: atomic, or ThreadSanitizer would rightly complain.
__global__ void set_unordered(int* to, int value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); }
__global__ void copy_unordered(const int* from, int* to) {
  *to = __atomic_load_n(from, __ATOMIC_RELAXED);
}

void set_on(cudaStream_t stream, int& to, int value) {
  launch("set", set, {dim3(1), dim3(1)}, stream, &to, value);
}
void copy_on(cudaStream_t stream, const int& from, int& to) {
  launch("copy", copy, {dim3(1), dim3(1)}, stream, &from, &to);
}

void set_unordered_on(cudaStream_t stream, int& to, int value) {
  launch("set_unordered", set_unordered, {dim3(1), dim3(1)}, stream, &to, value);
}
void copy_unordered_on(cudaStream_t stream, const int& from, int& to) {
  launch("copy_unordered", copy_unordered, {dim3(1), dim3(1)}, stream, &from, &to);
}

TEST_CASE("a stream runs in order, and the host does not wait for it") {
  emulator::reset();
  Stream stream;
  int value = 0, seen = 0;
  {
    const emulator::Hold hold(stream);
    set_on(stream, value, 1);
    copy_on(stream, value, seen);
    set_on(stream, value, 2);
    CHECK(cudaStreamQuery(stream) == cudaErrorNotReady);
    CHECK(cudaGetLastError() == cudaSuccess);  // "not ready" is no error
    CHECK(value == 0);
  }
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaStreamQuery(stream) == cudaSuccess);
  CHECK(seen == 1);
  CHECK(value == 2);
}

TEST_CASE("without an event a stream does not wait for another, with one it does") {
  emulator::reset();
  Stream writer, reader;
  Event written(cudaEventDisableTiming);
  int value = 0, early = -1, late = -1;
  {
    const emulator::Hold hold(writer);
    set_unordered_on(writer, value, 7);
    REQUIRE(cudaEventRecord(written, writer) == cudaSuccess);
    copy_unordered_on(reader, value, early);
    REQUIRE(cudaStreamSynchronize(reader) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(reader, written) == cudaSuccess);
    copy_on(reader, value, late);
    CHECK(cudaStreamQuery(reader) == cudaErrorNotReady);
    CHECK(cudaEventQuery(written) == cudaErrorNotReady);
  }
  REQUIRE(cudaStreamSynchronize(reader) == cudaSuccess);
  CHECK(early == 0);
  CHECK(late == 7);
  CHECK(cudaEventQuery(written) == cudaSuccess);
}

TEST_CASE("waiting for an event means its last record at that moment, not a later one") {
  emulator::reset();
  Stream writer, reader;
  Event event;
  int value = 0, seen = -1;
  // Never recorded: nothing to wait for.
  REQUIRE(cudaStreamWaitEvent(reader, event) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(reader) == cudaSuccess);
  REQUIRE(cudaEventQuery(event) == cudaSuccess);

  set_unordered_on(writer, value, 1);
  REQUIRE(cudaEventRecord(event, writer) == cudaSuccess);
  REQUIRE(cudaStreamSynchronize(writer) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(reader, event) == cudaSuccess);
  copy_unordered_on(reader, value, seen);
  const emulator::Hold hold(writer);
  set_unordered_on(writer, value, 2);
  REQUIRE(cudaEventRecord(event, writer) == cudaSuccess);  // the reader does not wait for this one
  REQUIRE(cudaStreamSynchronize(reader) == cudaSuccess);
  CHECK(seen == 1);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
}

TEST_CASE("random delays of streams show a missing wait, and change nothing where it is there") {
  emulator::reset();
  int wrong[2] = {0, 0};
  // On a busy machine it may take a while until the streams get out of step.
  for (std::uint64_t seed = 0; seed < 20 || (wrong[false] == 0 && seed < 1000); ++seed) {
    emulator::delay_streams(seed, 500);
    for (const bool waits : {false, true}) {
      Stream writer, reader;
      Event written;
      int value = 0, seen = -1;
      set_unordered_on(writer, value, 1);
      REQUIRE(cudaEventRecord(written, writer) == cudaSuccess);
      if (waits) REQUIRE(cudaStreamWaitEvent(reader, written) == cudaSuccess);
      copy_unordered_on(reader, value, seen);
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      wrong[waits] += seen != 1;
    }
  }
  CHECK(wrong[false] > 0);
  CHECK(wrong[true] == 0);
  emulator::reset();
}

TEST_CASE("the default stream waits for streams that block, and they for it, others do neither") {
  emulator::reset();
  Stream blocking(cudaStreamDefault), apart;
  int value = 0, seen = -1, after = -1, free = -1;
  {
    const emulator::Hold hold(blocking);
    set_unordered_on(blocking, value, 3);
    copy_on(nullptr, value, seen);
    copy_unordered_on(apart, value, free);
    REQUIRE(cudaStreamSynchronize(apart) == cudaSuccess);
  }
  copy_on(blocking, seen, after);
  REQUIRE(cudaStreamSynchronize(blocking) == cudaSuccess);
  CHECK(free == 0);
  CHECK(seen == 3);
  CHECK(after == 3);
}

TEST_CASE("functions of the host run in the stream's order") {
  emulator::reset();
  Stream stream;
  struct Seen {
    int value = 0, at_call = -1;
  } seen;
  set_on(stream, seen.value, 5);
  const auto look = [](void* data) {
    auto* s = static_cast<Seen*>(data);
    s->at_call = s->value;
  };
  REQUIRE(cudaLaunchHostFunc(stream, look, &seen) == cudaSuccess);
  set_on(stream, seen.value, 6);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(seen.at_call == 5);
}

// What several functions of the host, on streams of their own, saw of each other.
struct Meeting {
  std::atomic<int> inside{0}, most{0};
  std::atomic<cudaError_t> refused{cudaSuccess};
};
void meet(void* data) {
  auto& meeting = *static_cast<Meeting*>(data);
  meeting.most = std::max(meeting.most.load(), ++meeting.inside);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  meeting.refused = cudaStreamQuery(nullptr);
  --meeting.inside;
}

TEST_CASE("functions of the host run one at a time, and what they call of CUDA is refused") {
  emulator::reset();
  Meeting meeting;
  const Stream streams[3];
  for (const Stream& stream : streams)
    REQUIRE(cudaLaunchHostFunc(stream, meet, &meeting) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
#if !defined(__SANITIZE_THREAD__)
  CHECK(meeting.most == 1);
#endif
  CHECK(meeting.refused == cudaErrorNotPermitted);
  CHECK(cudaStreamQuery(nullptr) == cudaSuccess);
}

TEST_CASE("the time between events is that between the moments the streams reached them") {
  emulator::reset();
  Stream stream;
  Event first, last, untimed(cudaEventDisableTiming), never;
  float elapsed = -1;
  const auto sleep = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
  {
    const emulator::Hold hold(stream);
    REQUIRE(cudaEventRecord(first, stream) == cudaSuccess);
    REQUIRE(cudaLaunchHostFunc(stream, sleep, nullptr) == cudaSuccess);
    REQUIRE(cudaEventRecord(last, stream) == cudaSuccess);
    REQUIRE(cudaEventRecord(untimed, stream) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&elapsed, first, last) == cudaErrorNotReady);
  }
  REQUIRE(cudaEventSynchronize(last) == cudaSuccess);
  REQUIRE(cudaEventElapsedTime(&elapsed, first, last) == cudaSuccess);
  CHECK(elapsed >= 20.0f);  // at least what lay between, however slow the machine
  CHECK(cudaEventElapsedTime(&elapsed, first, never) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventElapsedTime(&elapsed, first, untimed) == cudaErrorInvalidResourceHandle);
}

TEST_CASE("handles that were given back are refused") {
  emulator::reset();
  cudaStream_t stream{};
  cudaEvent_t event{};
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDefault) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
}

TEST_CASE("calls, kernels and ranges are counted, and which calls make the host wait") {
  emulator::reset();
  Stream stream;
  int value = 0;
  set_on(stream, value, 1);
  set_on(stream, value, 1);
  nvtxRangePushA("step 1");
  CHECK(nvtxRangePop() == 0);
  CHECK(emulator::synchronizations() == 0);
  REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(emulator::count("kernel set") == 2);
  CHECK(emulator::count("cudaLaunchKernelExC") == 2);
  CHECK(emulator::count("cudaStreamSynchronize") == 1);
  CHECK(emulator::count("nvtx push") == 1);
  CHECK(emulator::count("nvtx pop") == 1);
  CHECK(emulator::count("cudaMalloc") == 0);
  CHECK(emulator::synchronizations() == 1);
  emulator::reset_counts();
  CHECK(emulator::counts().empty());
}

TEST_CASE("the n-th call fails as ordered, once") {
  emulator::reset();
  Stream stream;
  int value = 0;
  emulator::fail("cudaStreamSynchronize", 2, cudaErrorUnknown);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorUnknown);
  CHECK(cudaPeekAtLastError() == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);

  // A kernel that fails is heard of later, and for good; events are reached all the same.
  Event event;
  emulator::fail_kernel("set", 2, cudaErrorECCUncorrectable);
  set_on(stream, value, 1);
  set_on(stream, value, 2);
  bool called = false;
  const auto call = [](void* data) { *static_cast<bool*>(data) = true; };
  static_cast<void>(cudaLaunchHostFunc(stream, call, &called));
  static_cast<void>(cudaEventRecord(event, stream));
  CHECK(cudaStreamSynchronize(stream) == cudaErrorECCUncorrectable);
  CHECK(cudaEventQuery(event) == cudaErrorECCUncorrectable);
  CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
  CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
  CHECK(value == 1);
  CHECK_FALSE(called);
  CHECK(emulator::device_failure().find("kernel set") != std::string::npos);
  emulator::reset();
}

}  // namespace
