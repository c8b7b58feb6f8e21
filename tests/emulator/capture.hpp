// Stream capture: work that is enqueued on a capturing stream becomes a node of a graph instead.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "tests/emulator/stream.hpp"

namespace emulator {

struct Node {
  enum class Kind { work, record_event, wait_event } kind = Kind::work;
  Operation operation;
  std::shared_ptr<CUevent_st> event;  // of record_event and wait_event
  std::vector<std::size_t> after;     // nodes that come first; all have lower numbers
};

struct Capture {
  CUstream_st* origin = nullptr;
  std::vector<CUstream_st*> streams;  // all that take part
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Node> nodes;
};

// Adds the operation to the capture that the stream takes part in; `captured` tells if there is
// one.
cudaError_t capture_operation(CUstream_st& stream, const Operation& operation, bool& captured);
cudaError_t capture_event_node(CUstream_st& stream, Node::Kind kind,
                               std::shared_ptr<CUevent_st> event, bool& captured);
// cudaEventRecord and cudaStreamWaitEvent, as far as captures go: `captured` when that was all.
cudaError_t capture_record(CUstream_st& stream, CUevent_st& event, bool& captured);
cudaError_t capture_wait(CUstream_st& stream, CUevent_st& event, bool& captured);

// An error, and an invalid capture, if the stream takes part in one.
cudaError_t refuse_while_capturing(CUstream_st& stream);
// Calls that a capture of mode global forbids everyone, one of mode thread-local its thread; with
// `always`, that every capture forbids everyone.
cudaError_t refuse_unsafe_call(bool always = false);
cudaError_t refuse_captured_event(CUevent_st& event);

}  // namespace emulator
