#include "exec/cuda/device/cuda_streams.hpp"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <utility>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/device/pinned_memory.hpp"
#include "exec/cuda/model/token_order.hpp"
#include "exec/run/executor.hpp"

namespace spillway::cuda {

namespace {

constexpr auto watch_interval = std::chrono::milliseconds(200);

}  // namespace

CudaStreams::CudaStreams(int device) : device_(device) {
  use_device();
  for (const Lane lane : {Lane::gpu_compute, Lane::pcie_h2d, Lane::pcie_d2h}) {
    LaneStreams& one = lanes_[index(lane)];
    SPILLWAY_CUDA(cudaStreamCreateWithFlags(&one.work, cudaStreamNonBlocking));
    SPILLWAY_CUDA(cudaStreamCreateWithFlags(&one.notices, cudaStreamNonBlocking));
    SPILLWAY_CUDA(cudaEventCreateWithFlags(&one.reached, cudaEventDisableTiming));
  }
  SPILLWAY_CUDA(cudaStreamCreateWithFlags(&watched_, cudaStreamNonBlocking));
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&clock_, cudaEventDefault));
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&clock_try_, cudaEventDefault));
  watcher_ = std::thread([this] { watch(); });
}

CudaStreams::~CudaStreams() {
  {
    const std::lock_guard lock(watch_mutex_);
    closing_ = true;
  }
  watch_wakes_.notify_all();
  watcher_.join();
  // Nothing can be done about errors any more.
  static_cast<void>(cudaSetDevice(device_));
  for (const cudaGraphExec_t graph : graphs_) static_cast<void>(cudaGraphExecDestroy(graph));
  for (const LaneStreams& one : lanes_) {
    if (one.work != nullptr) static_cast<void>(cudaStreamDestroy(one.work));
    if (one.notices != nullptr) static_cast<void>(cudaStreamDestroy(one.notices));
    if (one.reached != nullptr) static_cast<void>(cudaEventDestroy(one.reached));
  }
  for (const Mark& mark : marks_) {
    static_cast<void>(cudaEventDestroy(mark.start));
    static_cast<void>(cudaEventDestroy(mark.end));
  }
  static_cast<void>(cudaStreamDestroy(watched_));
  static_cast<void>(cudaEventDestroy(clock_));
  static_cast<void>(cudaEventDestroy(clock_try_));
}

// The current device belongs to a thread.
void CudaStreams::use_device() const { SPILLWAY_CUDA(cudaSetDevice(device_)); }

void CudaStreams::reserve_marks(std::size_t count) {
  use_device();
  while (marks_.size() < count) {
    Mark& mark = marks_.emplace_back();
    SPILLWAY_CUDA(cudaEventCreateWithFlags(&mark.start, cudaEventDefault));
    SPILLWAY_CUDA(cudaEventCreateWithFlags(&mark.end, cudaEventDefault));
  }
}

void CudaStreams::record(Lane lane, cudaEvent_t event) {
  const LaneStreams& one = lanes_[index(lane)];
  // In a graph an event is a node of its own, which every replay records anew.
  SPILLWAY_CUDA(cudaEventRecordWithFlags(
      event, one.work, one.capturing ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void CudaStreams::begin(Lane lane, std::size_t mark, const Task& task, TaskId id) {
  use_device();
  std::array<char, 96> name;
  const auto end =
      fmt::format_to_n(name.data(), name.size() - 1, "{} task {} layer {} micro-batch {}",
                       to_string(task.kind), id, task.layer, task.micro_batch);
  *end.out = '\0';
  nvtxRangePushA(name.data());
  record(lane, marks_[mark].start);
}

void CudaStreams::end(Lane lane, std::size_t mark) {
  record(lane, marks_[mark].end);
  nvtxRangePop();
}

void CudaStreams::wait(Lane lane, std::size_t mark) {
  use_device();
  SPILLWAY_CUDA(cudaStreamWaitEvent(lanes_[index(lane)].work, marks_[mark].end, 0));
}

void CudaStreams::notify(Lane lane, void (*function)(void*), void* argument) {
  const LaneStreams& one = lanes_[index(lane)];
  SPILLWAY_CUDA(cudaEventRecordWithFlags(one.reached, one.work, cudaEventRecordDefault));
  SPILLWAY_CUDA(cudaStreamWaitEvent(one.notices, one.reached, 0));
  SPILLWAY_CUDA(cudaLaunchHostFunc(one.notices, function, argument));
}

void CudaStreams::drain(Lane lane) noexcept {
  const LaneStreams& one = lanes_[index(lane)];
  static_cast<void>(cudaSetDevice(device_));
  if (one.capturing) {
    cudaGraph_t unfinished = nullptr;
    static_cast<void>(cudaStreamEndCapture(one.work, &unfinished));
    if (unfinished != nullptr) static_cast<void>(cudaGraphDestroy(unfinished));
    lanes_[index(lane)].capturing = false;
  }
  static_cast<void>(cudaStreamSynchronize(one.work));
  static_cast<void>(cudaStreamSynchronize(one.notices));
}

// The device's time of the event lies between both readings of the host's clock. A thread that is
// interrupted in between knows little: the narrowest of a few tries counts.
void CudaStreams::set_clock() {
  use_device();
  constexpr std::int64_t narrow_ns = 20'000;
  std::int64_t narrowest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i < most_clock_tries && narrowest > narrow_ns; ++i) {
    const std::int64_t before = now_ns();
    SPILLWAY_CUDA(cudaEventRecordWithFlags(clock_try_, lanes_[index(Lane::gpu_compute)].work,
                                           cudaEventRecordDefault));
    SPILLWAY_CUDA(cudaEventSynchronize(clock_try_));
    const std::int64_t width = now_ns() - before;
    if (width >= narrowest) continue;
    narrowest = width;
    clock_ns_ = before + width / 2;
    std::swap(clock_, clock_try_);
  }
}

std::int64_t CudaStreams::time_of(cudaEvent_t event) const {
  float milliseconds = 0;
  SPILLWAY_CUDA(cudaEventElapsedTime(&milliseconds, clock_, event));
  return clock_ns_ + static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
}

Streams::Times CudaStreams::times(std::size_t mark) {
  use_device();
  return {time_of(marks_[mark].start), time_of(marks_[mark].end)};
}

void CudaStreams::begin_graph(Lane lane) {
  use_device();
  // Other threads may call what a captured stream must not, on streams of their own.
  SPILLWAY_CUDA(cudaStreamBeginCapture(lanes_[index(lane)].work, cudaStreamCaptureModeThreadLocal));
  lanes_[index(lane)].capturing = true;
}

std::size_t CudaStreams::end_graph(Lane lane) {
  lanes_[index(lane)].capturing = false;
  cudaGraph_t graph = nullptr;
  SPILLWAY_CUDA(cudaStreamEndCapture(lanes_[index(lane)].work, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t result = cudaGraphInstantiate(&executable, graph, 0);
  static_cast<void>(cudaGraphDestroy(graph));
  check(result, "cudaGraphInstantiate");
  graphs_.push_back(executable);
  return graphs_.size() - 1;
}

void CudaStreams::replay(Lane lane, std::size_t graph) {
  use_device();
  nvtxRangePushA("step");
  SPILLWAY_CUDA(cudaGraphLaunch(graphs_[graph], lanes_[index(lane)].work));
  nvtxRangePop();
}

std::size_t CudaStreams::text_bytes(std::int64_t rows, bool has_borders) const {
  const TextLayout layout{rows};
  return static_cast<std::size_t>(has_borders ? layout.size_with_borders() : layout.size()) *
         sizeof(std::int32_t);
}

void CudaStreams::stage_text(const MicroBatchText& text, std::byte* memory) {
  const std::int64_t rows = text.rows();
  const TextLayout layout{rows};
  auto* const to = reinterpret_cast<std::int32_t*>(memory);
  const std::size_t bytes = static_cast<std::size_t>(rows) * sizeof(std::int32_t);
  const auto order = [&](std::int32_t* numbers) {
    order_tokens(numbers, rows, numbers + layout.order_rows(), numbers + layout.order_begins(),
                 numbers + layout.order_runs());
  };
  std::memcpy(to + layout.tokens(), text.tokens, bytes);
  order(to + layout.tokens());
  std::memcpy(to + layout.targets(), text.targets, bytes);
  const double counted = static_cast<double>(text.counted_tokens);
  const float scale = counted > 0 ? static_cast<float>(1.0 / counted) : 0.0f;
  std::memcpy(to + layout.scale(), &scale, sizeof scale);
  if (text.starts == nullptr) return;
  std::memcpy(to + layout.starts(), text.starts, bytes);
  find_ends(text.starts, rows, text.sequence_length, to + layout.ends());
  std::int32_t* const positions = to + layout.positions();
  for (std::int64_t row = 0; row < rows; ++row)
    positions[row] = static_cast<std::int32_t>(row % text.sequence_length) - text.starts[row];
  order(positions);
}

std::shared_ptr<void> CudaStreams::register_memory(std::span<std::byte> memory) {
  use_device();
  return pin_memory(memory).registration;
}

void CudaStreams::on_failure(std::function<void(std::exception_ptr)> listener) {
  const std::lock_guard lock(watch_mutex_);
  listener_ = std::move(listener);
}

// An error of work that was issued stays with the device: any stream tells.
void CudaStreams::watch() {
  static_cast<void>(cudaSetDevice(device_));
  std::unique_lock lock(watch_mutex_);
  while (!watch_wakes_.wait_for(lock, watch_interval, [this] { return closing_; })) {
    cudaError_t result = cudaStreamQuery(watched_);
    for (const LaneStreams& one : lanes_) {  // never captured; with work that waits for the lanes'
      if (one.notices != nullptr && (result == cudaSuccess || result == cudaErrorNotReady))
        result = cudaStreamQuery(one.notices);
    }
    if (result == cudaSuccess || result == cudaErrorNotReady || !listener_) continue;
    const auto listener = std::exchange(listener_, {});
    try {
      check(result, "work on the GPU");
    } catch (...) {
      listener(std::current_exception());
    }
  }
}

}  // namespace spillway::cuda
