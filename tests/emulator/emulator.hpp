// What tests may ask of the emulated CUDA, and how they change its behaviour.
//
// There is one emulated machine per process; reset() makes it as new. Everything here may be called
// from any thread.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace emulator {

// Waits for all streams, and forgets errors, counts, orders to fail, delays and settings. Memory,
// streams and events stay with those who made them.
void reset();

// --- What was called. A name is that of a CUDA function ("cudaStreamSynchronize"; launching a
// kernel is "cudaLaunchKernelExC", which the template of CUDA's header calls), or one of
//   "kernel NAME"       a kernel of this name was run, also as part of a graph
//   "pageable copy"     cudaMemcpyAsync with host memory that is not pinned, which is not
//                       asynchronous
//   "product by algorithm N"   a matrix product was computed, N: its rank in cuBLASLt's heuristics
//   "nvtx push", "nvtx pop", "nvtx mark"
std::int64_t count(const std::string& name);
std::map<std::string, std::int64_t> counts();
void reset_counts();
// Calls that made the host wait for the device: cudaStreamSynchronize, cudaDeviceSynchronize,
// cudaEventSynchronize, cudaMemcpy, cudaMalloc, cudaFree, ... and pageable copies.
std::int64_t synchronizations();

// --- The order in which threads, blocks and the nodes of a graph run. Every launch has an order of
// its own, which follows from the seed, the stream and how many launches the stream had.
void seed(std::uint64_t value);

// --- Time. Streams run as soon as they can; with `longest_us` every operation first waits for a
// random time up to it.
void delay_streams(std::uint64_t seed, int longest_us);
// From now on events tell the time of a clock that stands still but for matrix products: each moves
// it on by what its algorithm takes, by rank of cuBLASLt's heuristics (0: the first); those that
// are not named take the time of 0. An empty map: events tell the time again.
void set_product_times(const std::map<int, double>& microseconds);
// While one of these lives, the stream begins nothing new.
class Hold {
 public:
  explicit Hold(cudaStream_t stream);
  ~Hold();
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  cudaStream_t stream_;
};

// Copies between host and device go through one engine for each direction, whatever their streams:
// one at a time, in the order in which their streams come to them. While a HoldCopies lives, the
// engine is busy, as with a large copy that takes long: copies only queue up.
enum class CopyDirection : std::uint8_t { to_device, from_device };
class HoldCopies {
 public:
  explicit HoldCopies(CopyDirection direction);
  ~HoldCopies();
  HoldCopies(const HoldCopies&) = delete;
  HoldCopies& operator=(const HoldCopies&) = delete;

 private:
  CopyDirection direction_;
};
// Returns when the stream has done all of its work, or a copy of it stands in the queue of an
// engine: whether it does. While the engine is held, it stays there.
bool waits_for_copies(cudaStream_t stream);

// --- Failures.
// The n-th call of `name` from now on (1: the next) does nothing and returns `code`. Names of
// cuBLASLt's functions return CUBLAS_STATUS of the number of `code`.
void fail(const std::string& name, int nth, cudaError_t code);
// The n-th kernel of this name, of any name if that is "", that runs from now on fails on the
// device: every later call returns `code`, until reset().
void fail_kernel(const std::string& name, int nth, cudaError_t code = cudaErrorLaunchFailure);
// What went wrong on the device, in words; empty when nothing did.
std::string device_failure();

// --- What is launched, without running it. While one of these lives, nothing that is enqueued is
// done, and every address counts as device memory: so that the launches of a model can be looked at
// that no memory here could hold.
struct LaunchRecord {
  std::string name;    // as launch() was told
  const void* kernel;  // its address
  dim3 grid, block;
  std::size_t shared_bytes;  // dynamic
};
class RecordLaunches {
 public:
  RecordLaunches();
  ~RecordLaunches();
  RecordLaunches(const RecordLaunches&) = delete;
  RecordLaunches& operator=(const RecordLaunches&) = delete;
  // What was launched since the last call.
  std::vector<LaunchRecord> take();
};

// --- The machine.
struct Machine {
  bool driver = true;  // false: cudaErrorInsufficientDriver, as where none is installed
  int devices = 1;     // or as many as SPILLWAY_EMULATED_GPUS says
  std::size_t memory_bytes = std::size_t{8} << 30;
  int major = 9, minor = 0;
  int multiprocessors = 4;
  // Of a multiprocessor. A block may have 1 KB less.
  std::size_t shared_bytes = 228 * 1024;
  // False: its wgmma takes descriptors otherwise than documented (the swizzle does nothing).
  bool wgmma_works = true;
  // cuBLASLt's algorithms 0 and 1 add up both halves of a sum by themselves, and 2 does so
  // backwards.
  bool first_product_splits = false;
  // False: a copy of host memory that several calls of cudaHostRegister cover is an invalid value.
  bool copies_cross_registrations = true;
  std::string name = "emulated GPU";
  std::size_t cublaslt_version = 130000;
};
void set_machine(const Machine& machine);
// Device memory in use.
std::size_t device_bytes();
// The most that was in use since this was last asked.
std::size_t most_device_bytes();

}  // namespace emulator
