// What happened: the one record that the simulator and the executor both write.
//
// A trace is a list of spans on lanes, memory counters and metadata. Times are integer nanoseconds
// since the start of the run. `args` of a span are those of DESIGN: task, kind, step, phase, layer,
// micro_batch, bytes, flops, params.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

struct Span {
  std::uint32_t task = 0;   // id in the schedule
  std::uint16_t lane = 0;   // index into Trace::lanes
  std::uint16_t kind = 0;   // index into Trace::kinds
  std::uint16_t phase = 0;  // index into Trace::phases
  std::int32_t segment =
      0;                  // which run of the schedule (the executor repeats it); 0 in the simulator
  std::int32_t step = 0;  // global training step
  std::int32_t layer = -1;        // -1: none
  std::int32_t micro_batch = -1;  // -1: none
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  std::uint64_t bytes = 0;
  double flops = 0;
  std::uint64_t params = 0;
};

struct MemorySample {
  std::int64_t time_ns = 0;
  std::uint16_t tier = 0;   // index into Trace::tiers
  std::uint64_t bytes = 0;  // live bytes from this moment on
};

struct Trace {
  std::vector<std::string> lanes;    // e.g. "gpu.compute", "pcie.h2d"
  std::vector<std::string> kinds;    // e.g. "forward", "copy"
  std::vector<std::string> phases;   // "forward", "backward", "optimizer", ...
  std::vector<std::string> tiers;    // "gpu", "host", "ssd"
  std::vector<Span> spans;           // in order of (segment, task)
  std::vector<MemorySample> memory;  // in order of time
  // Free-form run metadata (model, machine, policy, workload, seed, version ...): key -> JSON text.
  std::vector<std::pair<std::string, std::string>> metadata;

  const std::string* find_metadata(const std::string& key) const;  // nullptr: absent
  void set_metadata(const std::string& key, const std::string& json_text);
};

}  // namespace spillway
