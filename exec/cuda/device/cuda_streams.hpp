// The lanes gpu.compute, pcie.h2d and pcie.d2h as CUDA streams; marks are events, notices are host
// functions on a second stream per lane, so that the lane itself never waits for the host.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/rounding.hpp"
#include "exec/cuda/kernels/kernels.hpp"
#include "exec/run/streams.hpp"

namespace spillway::cuda {

class CudaStreams : public Streams {
 public:
  // On device `device`, which is the current one of every thread that calls from here on only where
  // the call says so. Throws MachineError.
  explicit CudaStreams(int device);
  ~CudaStreams() override;
  CudaStreams(const CudaStreams&) = delete;
  CudaStreams& operator=(const CudaStreams&) = delete;

  // The host waits for the device this often at most when a run sets the clock, and never else.
  static constexpr int most_clock_tries = 8;

  cudaStream_t stream(Lane lane) const { return lanes_[index(lane)].work; }

  LaneSet lanes() const override { return {Lane::gpu_compute, Lane::pcie_h2d, Lane::pcie_d2h}; }
  void reserve_marks(std::size_t count) override;
  void begin(Lane lane, std::size_t mark, const Task& task, TaskId id) override;
  void end(Lane lane, std::size_t mark) override;
  void wait(Lane lane, std::size_t mark) override;
  void notify(Lane lane, void (*function)(void*), void* argument) override;
  void drain(Lane lane) noexcept override;
  void set_clock() override;
  Times times(std::size_t mark) override;
  void begin_graph(Lane lane) override;
  std::size_t end_graph(Lane lane) override;
  void replay(Lane lane, std::size_t graph) override;
  std::size_t text_bytes(std::int64_t rows, bool has_borders) const override;
  void stage_text(const MicroBatchText& text, std::byte* to) override;
  std::shared_ptr<void> register_memory(std::span<std::byte> memory) override;
  void on_failure(std::function<void(std::exception_ptr)> listener) override;

 private:
  struct LaneStreams {
    cudaStream_t work = nullptr, notices = nullptr;
    cudaEvent_t reached = nullptr;  // recorded anew for every notice
    bool capturing = false;
  };
  struct Mark {
    cudaEvent_t start = nullptr, end = nullptr;
  };
  static std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }
  void record(Lane lane, cudaEvent_t event);
  void use_device() const;
  void watch();
  std::int64_t time_of(cudaEvent_t event) const;

  int device_;
  std::array<LaneStreams, lane_count> lanes_;
  std::vector<Mark> marks_;
  std::vector<cudaGraphExec_t> graphs_;
  cudaEvent_t clock_ = nullptr, clock_try_ = nullptr;
  std::int64_t clock_ns_ = 0;

  // Looks for failed work: a failure leaves notices uncalled.
  cudaStream_t watched_ = nullptr;
  std::mutex watch_mutex_;
  std::condition_variable watch_wakes_;
  bool closing_ = false;
  std::function<void(std::exception_ptr)> listener_;
  std::thread watcher_;
};

// Of a text of `rows` tokens, as stage_text() lays it out: where each array begins, in int32s, on
// multiples of what fetch_text() fetches at once. `scale` is a float.
struct TextLayout {
  std::int64_t rows;
  std::int64_t tokens() const { return 0; }
  std::int64_t order_rows() const { return aligned(rows); }
  std::int64_t order_begins() const { return 2 * aligned(rows); }
  std::int64_t order_runs() const { return order_begins() + rows + 1; }
  std::int64_t targets() const { return aligned(order_runs() + 1); }
  std::int64_t scale() const { return targets() + aligned(rows); }
  std::int64_t size() const { return scale() + text_alignment; }
  // Where there are borders, behind it: where documents start and end, and the tokens' positions in
  // them, with their order as of tokens.
  std::int64_t starts() const { return size(); }
  std::int64_t ends() const { return starts() + aligned(rows); }
  std::int64_t positions() const { return ends() + aligned(rows); }
  std::int64_t size_with_borders() const { return positions() + targets(); }

 private:
  static std::int64_t aligned(std::int64_t count) { return round_up(count, text_alignment); }
};

}  // namespace spillway::cuda
