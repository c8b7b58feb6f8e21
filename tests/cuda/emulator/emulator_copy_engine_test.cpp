// Copy engines of the emulated device: which copies wait for which.
#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <optional>

#include "exec/cuda/device/launch.hpp"
#include "tests/cuda/device_memory.hpp"
#include "tests/emulator/emulator.hpp"

namespace spillway::cuda {
namespace {

using emulator::CopyDirection;
using emulator::HoldCopies;
using emulator::waits_for_copies;

__global__ void copy_word(const int* from, int* to) { *to = *from; }

// A word in device memory and one in pinned memory for each of two streams.
struct Bench {
  Bench() { host.data()[0] = host.data()[1] = 0; }
  void up(const TestStream& stream, int from, int to) {
    SPILLWAY_CUDA(cudaMemcpyAsync(device.data() + to, host.data() + from, sizeof(int),
                                  cudaMemcpyHostToDevice, stream));
  }
  void down(const TestStream& stream, int from, int to) {
    SPILLWAY_CUDA(cudaMemcpyAsync(host.data() + to, device.data() + from, sizeof(int),
                                  cudaMemcpyDeviceToHost, stream));
  }
  void by_kernel(const TestStream& stream, const int* from, int* to) {
    launch("copy_word", copy_word, {dim3(1), dim3(1)}, stream, from, to);
  }
  DeviceArray<int> device{std::vector<int>{0, 0}};
  PinnedArray<int> host{2};
  TestStream first, second;
};

TEST_CASE("a copy waits for a long one of another stream in its direction, and for no other") {
  emulator::reset();
  Bench bench;
  TestStream third;
  bench.host.data()[0] = 7;
  bench.host.data()[1] = 8;
  {
    const HoldCopies busy(CopyDirection::to_device);
    bench.up(bench.first, 0, 0);
    CHECK(waits_for_copies(bench.first));
    // Down, within the device, and by a kernel: all get through.
    SPILLWAY_CUDA(cudaMemcpyAsync(bench.device.data() + 1, bench.device.data(), sizeof(int),
                                  cudaMemcpyDeviceToDevice, bench.second));
    CHECK_FALSE(waits_for_copies(bench.second));
    bench.down(bench.second, 1, 0);
    CHECK_FALSE(waits_for_copies(bench.second));
    bench.by_kernel(third, bench.host.data() + 1, bench.device.data() + 1);
    CHECK_FALSE(waits_for_copies(third));
    CHECK(cudaStreamQuery(bench.second) == cudaSuccess);
    CHECK(cudaStreamQuery(third) == cudaSuccess);
    CHECK(cudaStreamQuery(bench.first) == cudaErrorNotReady);
    CHECK(bench.host.data()[0] == 0);
    // Up, on another stream: no event says so, but it queues.
    bench.up(bench.second, 1, 1);
    CHECK(waits_for_copies(bench.second));
  }
  CHECK(bench.device.download() == std::vector<int>{0, 8});
}

TEST_CASE(
    "a copy joins the queue of its engine when its stream comes to it, not when it is issued") {
  emulator::reset();
  // The second stream's copy is issued last; the first stream's, which is issued first, then finds
  // it ahead, because its stream is still at what comes before it.
  for (const bool first_is_late : {false, true}) {
    INFO("the first stream is late: " << first_is_late);
    Bench bench;
    bench.host.data()[0] = 1;
    bench.host.data()[1] = 2;
    {
      std::optional<HoldCopies> busy(CopyDirection::to_device);
      std::optional<emulator::Hold> late;
      if (first_is_late) late.emplace(bench.first);
      bench.up(bench.first, 0, 0);
      if (!first_is_late) CHECK(waits_for_copies(bench.first));
      bench.up(bench.second, 1, 0);
      CHECK(waits_for_copies(bench.second));
      late.reset();
      CHECK(waits_for_copies(bench.first));
    }
    CHECK(bench.device.download()[0] == (first_is_late ? 1 : 2));  // who came last
  }
}

TEST_CASE("a copy that waits for an event does not keep its engine from others") {
  emulator::reset();
  Bench bench;
  TestStream other;
  cudaEvent_t event{};
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  bench.host.data()[0] = 3;
  {
    const emulator::Hold hold(other);
    SPILLWAY_CUDA(cudaEventRecord(event, other));
    SPILLWAY_CUDA(cudaStreamWaitEvent(bench.first, event, 0));
    bench.up(bench.first, 0, 0);
    bench.up(bench.second, 0, 1);
    bench.second.wait();
    CHECK(cudaStreamQuery(bench.first) == cudaErrorNotReady);
  }
  CHECK(bench.device.download() == std::vector<int>{3, 3});
  SPILLWAY_CUDA(cudaEventDestroy(event));
}

TEST_CASE("a copy in a graph queues as any other") {
  emulator::reset();
  Bench bench;
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  SPILLWAY_CUDA(cudaStreamBeginCapture(bench.first, cudaStreamCaptureModeThreadLocal));
  bench.up(bench.first, 0, 0);
  SPILLWAY_CUDA(cudaStreamEndCapture(bench.first, &graph));
  SPILLWAY_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  bench.host.data()[0] = 5;
  {
    const HoldCopies busy(CopyDirection::to_device);
    SPILLWAY_CUDA(cudaGraphLaunch(executable, bench.first));
    CHECK(waits_for_copies(bench.first));
  }
  CHECK(bench.device.download()[0] == 5);
  SPILLWAY_CUDA(cudaGraphExecDestroy(executable));
  SPILLWAY_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace spillway::cuda
