// Stream capture, and graphs: replayed in an order that their edges allow, and the seed chooses.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <set>
#include <utility>

#include "tests/emulator/calls.hpp"
#include "tests/emulator/capture.hpp"
#include "tests/emulator/random.hpp"

struct CUgraph_st {
  std::shared_ptr<const std::vector<emulator::Node>> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const std::vector<emulator::Node>> nodes;
  std::shared_ptr<std::mutex> running = std::make_shared<std::mutex>();
};

namespace emulator {
namespace {

struct Captures {
  std::mutex mutex;  // of all captures, and of what streams and events know of them
  std::vector<std::shared_ptr<Capture>> running;
};
Captures& captures() {
  static auto* one = new Captures;
  return *one;
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t invalidate(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return error;
}

// Work on the legacy stream would have to wait for what is only being captured.
cudaError_t legacy_work() {
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures().running)
    if ((capture->origin->flags & cudaStreamNonBlocking) == 0)
      result = invalidate(*capture, cudaErrorStreamCaptureImplicit);
  return result;
}

cudaError_t add_node(CUstream_st& stream, Node node, bool& captured) {
  std::lock_guard lock(captures().mutex);
  if (!stream.capture) return stream.legacy ? legacy_work() : cudaSuccess;
  captured = true;
  if (stream.capture->invalid) return cudaErrorStreamCaptureInvalidated;
  node.after = stream.frontier;
  stream.frontier = {stream.capture->nodes.size()};
  stream.capture->nodes.push_back(std::move(node));
  return cudaSuccess;
}

// Whether every node comes before one of `ends`, or is one.
bool all_joined(const std::vector<Node>& nodes, const std::vector<std::size_t>& ends) {
  std::vector<char> reached(nodes.size(), 0);
  for (const std::size_t end : ends) reached[end] = 1;
  for (std::size_t node = nodes.size(); node-- > 0;)
    if (reached[node] != 0)
      for (const std::size_t before : nodes[node].after) reached[before] = 1;
  return std::find(reached.begin(), reached.end(), 0) == reached.end();
}

using Marks = std::vector<std::shared_ptr<Record>>;

void run_nodes(const std::vector<Node>& nodes, const Marks& marks, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::size_t> missing(nodes.size()), ready;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    missing[node] = nodes[node].after.size();
    if (missing[node] == 0) ready.push_back(node);
  }
  std::vector<std::vector<std::size_t>> followers(nodes.size());
  for (std::size_t node = 0; node < nodes.size(); ++node)
    for (const std::size_t before : nodes[node].after) followers[before].push_back(node);
  while (!ready.empty()) {
    std::swap(ready[random.below(ready.size())], ready.back());
    const std::size_t node = ready.back();
    ready.pop_back();
    switch (nodes[node].kind) {
      case Node::Kind::work:
        if (device_state() == cudaSuccess) nodes[node].operation.run(random.next());
        break;
      case Node::Kind::record_event:
        marks[node]->finish();
        break;
      case Node::Kind::wait_event:
        if (marks[node]) marks[node]->wait();
        break;
    }
    for (const std::size_t next : followers[node])
      if (--missing[next] == 0) ready.push_back(next);
  }
}

}  // namespace

cudaError_t capture_operation(CUstream_st& stream, const Operation& operation, bool& captured) {
  return add_node(stream, {Node::Kind::work, operation, nullptr, {}}, captured);
}

cudaError_t capture_event_node(CUstream_st& stream, Node::Kind kind,
                               std::shared_ptr<CUevent_st> event, bool& captured) {
  return add_node(stream, {kind, {}, std::move(event), {}}, captured);
}

cudaError_t capture_record(CUstream_st& stream, CUevent_st& event, bool& captured) {
  std::lock_guard lock(captures().mutex);
  event.capture = stream.capture;
  event.frontier = stream.frontier;
  if (!stream.capture) return cudaSuccess;
  captured = true;
  return stream.capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t capture_wait(CUstream_st& stream, CUevent_st& event, bool& captured) {
  std::lock_guard lock(captures().mutex);
  if (!stream.capture && !event.capture) return cudaSuccess;
  captured = true;
  if (!event.capture) return invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
  const auto running =
      std::find(captures().running.begin(), captures().running.end(), event.capture);
  if (running == captures().running.end()) return cudaErrorCapturedEvent;  // of one that has ended
  if (!stream.capture) {
    stream.capture = event.capture;
    stream.capture->streams.push_back(&stream);
    stream.frontier.clear();
  }
  if (stream.capture != event.capture) {
    event.capture->invalid = true;
    return invalidate(*stream.capture, cudaErrorStreamCaptureMerge);
  }
  std::set<std::size_t> both(stream.frontier.begin(), stream.frontier.end());
  both.insert(event.frontier.begin(), event.frontier.end());
  stream.frontier.assign(both.begin(), both.end());
  return stream.capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}

cudaError_t refuse_while_capturing(CUstream_st& stream) {
  std::lock_guard lock(captures().mutex);
  if (!stream.capture) return cudaSuccess;
  return invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
}

cudaError_t refuse_unsafe_call(bool always) {
  std::lock_guard lock(captures().mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& capture : captures().running) {
    const bool mine = capture->thread == std::this_thread::get_id();
    const bool forbids = always || (thread_mode != cudaStreamCaptureModeRelaxed &&
                                    ((capture->mode == cudaStreamCaptureModeGlobal &&
                                      (mine || thread_mode == cudaStreamCaptureModeGlobal)) ||
                                     (capture->mode == cudaStreamCaptureModeThreadLocal && mine)));
    if (forbids) result = invalidate(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return result;
}

cudaError_t refuse_captured_event(CUevent_st& event) {
  std::lock_guard lock(captures().mutex);
  return event.capture ? invalidate(*event.capture, cudaErrorCapturedEvent) : cudaSuccess;
}

}  // namespace emulator

using emulator::call;
using emulator::captures;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&] {
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (handle == nullptr || handle == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    std::lock_guard lock(captures().mutex);
    if (stream->capture) return cudaErrorIllegalState;
    auto capture = std::make_shared<emulator::Capture>();
    capture->origin = stream;
    capture->streams = {stream};
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    stream->capture = capture;
    stream->frontier.clear();
    captures().running.push_back(std::move(capture));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call("cudaStreamEndCapture", [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    *graph = nullptr;
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    std::shared_ptr<emulator::Capture> capture;
    std::vector<std::size_t> ends;
    {
      std::lock_guard lock(captures().mutex);
      capture = stream->capture;
      if (!capture) return cudaErrorIllegalState;
      if (capture->origin != stream)
        return emulator::invalidate(*capture, cudaErrorStreamCaptureUnmatched);
      if (capture->mode != cudaStreamCaptureModeRelaxed &&
          capture->thread != std::this_thread::get_id())
        return emulator::invalidate(*capture, cudaErrorStreamCaptureWrongThread);
      ends = stream->frontier;
      std::erase(captures().running, capture);
      for (CUstream_st* member : capture->streams) {
        member->capture = nullptr;
        member->frontier.clear();
      }
    }
    if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
    if (!emulator::all_joined(capture->nodes, ends)) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{
        std::make_shared<const std::vector<emulator::Node>>(std::move(capture->nodes))};
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&] {
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (status == nullptr) return cudaErrorInvalidValue;
    std::lock_guard lock(captures().mutex);
    *status = !stream->capture           ? cudaStreamCaptureStatusNone
              : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&] {
    if (mode == nullptr) return cudaErrorInvalidValue;
    std::swap(*mode, emulator::thread_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call("cudaGraphGetNodes", [&] {
    if (graph == nullptr || count == nullptr) return cudaErrorInvalidValue;
    if (nodes != nullptr) return cudaErrorNotSupported;  // only the count
    *count = graph->nodes->size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return call("cudaGraphInstantiate", [&] {
    if (executable == nullptr || graph == nullptr) return cudaErrorInvalidValue;
    *executable = new CUgraphExec_st{graph->nodes};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  return call("cudaGraphUpload", [&] {
    if (executable == nullptr) return cudaErrorInvalidValue;
    return emulator::find_stream(stream) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  return call("cudaGraphLaunch", [&] {
    CUstream_st* stream = emulator::find_stream(handle);
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    if (executable == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = emulator::refuse_while_capturing(*stream)) return error;
    // Who waits for an event after this call waits for the record that this replay makes.
    emulator::Marks marks(executable->nodes->size());
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const emulator::Node& node = (*executable->nodes)[i];
      if (!node.event) continue;
      std::lock_guard lock(node.event->mutex);
      if (node.kind == emulator::Node::Kind::record_event)
        node.event->latest = std::make_shared<emulator::Record>();
      marks[i] = node.event->latest;
    }
    return emulator::submit(
        *stream, {[nodes = executable->nodes, running = executable->running,
                   marks = std::move(marks)](std::uint64_t seed) {
                    std::lock_guard lock(*running);  // a graph does not run beside itself
                    emulator::run_nodes(*nodes, marks, seed);
                  },
                  true});
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", [&] {
    if (graph == nullptr) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call("cudaGraphExecDestroy", [&] {
    if (executable == nullptr) return cudaErrorInvalidValue;
    delete executable;
    return cudaSuccess;
  });
}
