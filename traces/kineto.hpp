// Traces of PyTorch (torch.profiler, whose library is Kineto): Chrome Trace Event JSON with the
// events of a training that another program ran.
//
// Complete events are read (ph "X": they have a start and a duration), and the names of threads.
// Everything else in the file (counters, flows, instants, metadata) is skipped and counted.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace spillway {

struct KinetoEvent {
  std::uint32_t name = 0;      // index into KinetoTrace::texts
  std::uint32_t category = 0;  // likewise; "" where it has none
  std::uint32_t thread = 0;    // index into KinetoTrace::threads
  std::int64_t start_ns = 0;   // in the file's own time
  std::int64_t end_ns = 0;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> args;  // name and value, as texts
};

struct KinetoThread {
  std::string process, id;  // as the file has them: numbers, or texts
  std::string name;         // empty: none is given
};

struct KinetoTrace {
  std::vector<std::string> texts;  // each once
  std::vector<KinetoThread> threads;
  std::vector<KinetoEvent> events;  // in the file's order
  std::size_t skipped_events = 0;   // that are not complete ones
};

// Reads a trace, compressed or not; compression is recognised by content. Of the arguments of an
// event only those named in `args` are kept, numbers in their shortest decimal form.
//
// Throws InputError with file:line where the file is missing, damaged, cut off, holds no events, or
// an event lacks its name, thread or times; MachineError where it cannot be read.
KinetoTrace read_kineto(const std::string& path, const std::set<std::string>& args = {});

}  // namespace spillway
