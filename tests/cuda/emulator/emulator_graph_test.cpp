// Stream capture and graphs of the emulated runtime.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>
#include <vector>

#include "exec/cuda/device/launch.hpp"
#include "tests/emulator/emulator.hpp"

namespace {

using spillway::cuda::launch;

__global__ void add(int* to, int value) { *to += value; }
__global__ void copy(const int* from, int* to) { *to = *from; }

void add_on(cudaStream_t stream, int& to, int value) {
  launch("add", add, {dim3(1), dim3(1)}, stream, &to, value);
}
void copy_on(cudaStream_t stream, const int& from, int& to) {
  launch("copy", copy, {dim3(1), dim3(1)}, stream, &from, &to);
}

// Two streams, two events; and a graph, once there is one.
struct Bench {
  Bench() {
    emulator::reset();
    for (cudaStream_t* stream : {&main, &side})
      REQUIRE(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) == cudaSuccess);
    for (cudaEvent_t* event : {&fork, &join})
      REQUIRE(cudaEventCreateWithFlags(event, cudaEventDefault) == cudaSuccess);
  }
  ~Bench() {
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    for (cudaStream_t stream : {main, side}) cudaStreamDestroy(stream);
    for (cudaEvent_t event : {fork, join}) cudaEventDestroy(event);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    REQUIRE(cudaStreamBeginCapture(main, mode) == cudaSuccess);
  }
  void instantiate() {
    REQUIRE(cudaStreamEndCapture(main, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  }
  void replay() {
    REQUIRE(cudaGraphLaunch(executable, main) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(main) == cudaSuccess);
  }

  cudaStream_t main{}, side{};
  cudaEvent_t fork{}, join{};
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
};

TEST_CASE("captured work runs when the graph is launched, each time, and not before") {
  Bench bench;
  int value = 1, seen = 0;
  int called = 0;
  std::vector<unsigned char> pinned(8, 1);
  REQUIRE(cudaHostRegister(pinned.data(), pinned.size(), cudaHostRegisterDefault) == cudaSuccess);
  bench.begin();
  add_on(bench.main, value, 10);
  copy_on(bench.main, value, seen);
  REQUIRE(cudaMemsetAsync(pinned.data(), 7, 4, bench.main) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(pinned.data() + 4, pinned.data(), 2, cudaMemcpyHostToHost, bench.main) ==
          cudaSuccess);
  const auto count_call = [](void* calls) { ++*static_cast<int*>(calls); };
  REQUIRE(cudaLaunchHostFunc(bench.main, count_call, &called) == cudaSuccess);
  cudaStreamCaptureStatus status{};
  REQUIRE(cudaStreamIsCapturing(bench.main, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusActive);
  bench.instantiate();
  REQUIRE(cudaStreamIsCapturing(bench.main, &status) == cudaSuccess);
  CHECK(status == cudaStreamCaptureStatusNone);
  std::size_t nodes = 0;
  REQUIRE(cudaGraphGetNodes(bench.graph, nullptr, &nodes) == cudaSuccess);
  CHECK(nodes == 5);
  REQUIRE(cudaStreamSynchronize(bench.main) == cudaSuccess);
  CHECK(value == 1);
  for (int replay = 1; replay <= 3; ++replay) {
    bench.replay();
    CHECK(value == 1 + 10 * replay);
    CHECK(seen == value);
    CHECK(called == replay);
  }
  CHECK(pinned == std::vector<unsigned char>{7, 7, 7, 7, 7, 7, 1, 1});
  CHECK(emulator::count("cudaGraphLaunch") == 3);
  CHECK(emulator::count("kernel add") == 3);
  REQUIRE(cudaHostUnregister(pinned.data()) == cudaSuccess);
}

TEST_CASE("a capture takes in streams that wait for it, and unordered nodes run in any order") {
  int wrong[2] = {0, 0};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (const bool joins_early : {false, true}) {
      Bench bench;
      emulator::seed(seed);
      int value = 0, seen = -1;
      bench.begin();
      REQUIRE(cudaEventRecord(bench.fork, bench.main) == cudaSuccess);
      REQUIRE(cudaStreamWaitEvent(bench.side, bench.fork) == cudaSuccess);
      add_on(bench.side, value, 1);
      REQUIRE(cudaEventRecord(bench.join, bench.side) == cudaSuccess);
      if (joins_early) REQUIRE(cudaStreamWaitEvent(bench.main, bench.join) == cudaSuccess);
      copy_on(bench.main, value, seen);
      REQUIRE(cudaStreamWaitEvent(bench.main, bench.join) == cudaSuccess);
      bench.instantiate();
      bench.replay();
      CHECK(value == 1);
      wrong[joins_early] += seen != 1;
    }
  }
  CHECK(wrong[false] > 0);
  CHECK(wrong[true] == 0);
}

TEST_CASE("an external event is recorded by every replay, for those who wait after the launch") {
  Bench bench;
  int value = 0, seen = -1;
  bench.begin();
  add_on(bench.main, value, 1);
  REQUIRE(cudaEventRecordWithFlags(bench.fork, bench.main, cudaEventRecordExternal) == cudaSuccess);
  bench.instantiate();
  CHECK(cudaEventQuery(bench.fork) == cudaSuccess);  // not recorded so far
  for (int replay = 1; replay <= 2; ++replay) {
    {
      const emulator::Hold hold(bench.main);
      REQUIRE(cudaGraphLaunch(bench.executable, bench.main) == cudaSuccess);
      CHECK(cudaEventQuery(bench.fork) == cudaErrorNotReady);
      REQUIRE(cudaStreamWaitEvent(bench.side, bench.fork) == cudaSuccess);
      copy_on(bench.side, value, seen);
    }
    REQUIRE(cudaStreamSynchronize(bench.side) == cudaSuccess);
    CHECK(seen == replay);
  }
}

TEST_CASE("an external wait in a graph waits at every replay for what was recorded before it") {
  Bench bench;
  int value = 0, seen = -1;
  bench.begin();
  REQUIRE(cudaStreamWaitEvent(bench.main, bench.fork, cudaEventWaitExternal) == cudaSuccess);
  copy_on(bench.main, value, seen);
  bench.instantiate();
  for (int replay = 1; replay <= 2; ++replay) {
    const emulator::Hold hold(bench.side);
    add_on(bench.side, value, 1);
    REQUIRE(cudaEventRecord(bench.fork, bench.side) == cudaSuccess);
    REQUIRE(cudaGraphLaunch(bench.executable, bench.main) == cudaSuccess);
    CHECK(cudaStreamQuery(bench.main) == cudaErrorNotReady);
    static_cast<void>(hold);
  }
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(seen == 2);
}

TEST_CASE("a capture is lost by what CUDA does not allow in it, and says so") {
  Bench bench;
  int value = 0;
  cudaGraph_t none{};

  SECTION("waiting for the stream that is captured") {
    bench.begin();
    CHECK(cudaStreamSynchronize(bench.main) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("waiting for the device") {
    bench.begin();
    CHECK(cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("waiting for an event that is not part of it") {
    REQUIRE(cudaEventRecord(bench.fork, bench.side) == cudaSuccess);
    bench.begin();
    CHECK(cudaStreamWaitEvent(bench.main, bench.fork) == cudaErrorStreamCaptureIsolation);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("asking for an event that it recorded") {
    bench.begin();
    REQUIRE(cudaEventRecord(bench.fork, bench.main) == cudaSuccess);
    CHECK(cudaEventQuery(bench.fork) == cudaErrorCapturedEvent);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureInvalidated);
  }
  SECTION("work on another stream that it does not wait for") {
    bench.begin();
    REQUIRE(cudaEventRecord(bench.fork, bench.main) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(bench.side, bench.fork) == cudaSuccess);
    add_on(bench.side, value, 1);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureUnjoined);
  }
  SECTION("ending it on another stream") {
    bench.begin();
    CHECK(cudaStreamEndCapture(bench.side, &none) == cudaErrorIllegalState);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaSuccess);
    cudaGraphDestroy(none);
    none = nullptr;
  }
  SECTION("an unsafe call of the same thread, but not of others unless it is global") {
    void* memory = nullptr;
    bench.begin();
    std::thread([&] { CHECK(cudaEventQuery(bench.join) == cudaSuccess); }).join();
    CHECK(cudaMalloc(&memory, 16) == cudaErrorStreamCaptureUnsupported);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureInvalidated);
    bench.begin(cudaStreamCaptureModeGlobal);
    std::thread([&] {
      CHECK(cudaEventQuery(bench.join) == cudaErrorStreamCaptureUnsupported);
    }).join();
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaErrorStreamCaptureInvalidated);
    bench.begin(cudaStreamCaptureModeRelaxed);
    CHECK(cudaMalloc(&memory, 16) == cudaSuccess);
    CHECK(cudaStreamEndCapture(bench.main, &none) == cudaSuccess);
    cudaGraphDestroy(none);
    none = nullptr;
    CHECK(cudaFree(memory) == cudaSuccess);
  }
  CHECK(none == nullptr);
  // The stream is as it was.
  static_cast<void>(cudaGetLastError());
  add_on(bench.main, value, 4);
  REQUIRE(cudaStreamSynchronize(bench.main) == cudaSuccess);
  CHECK(value == 4);
}

}  // namespace
