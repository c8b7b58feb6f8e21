// What the tests of traces/ share: traces to write, and a folder to write them to.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "traces/trace.hpp"

namespace spillway {

// A folder that is gone when the test ends.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "spillway-traces-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path_),
                                                  std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

inline std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline Trace empty_trace() {
  Trace trace;
  trace.lanes = {"gpu.compute", "pcie.h2d", "pcie.d2h"};
  trace.kinds = {"forward", "backward", "h2d", "optimizer"};
  trace.phases = {"forward", "backward", "optimizer", "epilogue"};
  trace.tiers = {"gpu", "host", "ssd"};
  return trace;
}

// Spans that follow one another on every lane, with gaps of 0 to 2 us; and memory samples.
inline Trace random_trace(unsigned seed, std::size_t spans) {
  std::mt19937_64 random(seed);
  const auto below = [&random](std::uint64_t limit) { return random() % limit; };
  Trace trace = empty_trace();
  std::vector<std::int64_t> lane_ns(trace.lanes.size(), 0);
  for (std::size_t i = 0; i < spans; ++i) {
    Span span;
    span.task = static_cast<std::uint32_t>(i);
    span.lane = static_cast<std::uint16_t>(below(trace.lanes.size()));
    span.kind = static_cast<std::uint16_t>(below(trace.kinds.size()));
    span.phase = static_cast<std::uint16_t>(below(trace.phases.size()));
    span.segment = static_cast<std::int32_t>(below(3));
    span.step = static_cast<std::int32_t>(below(100));
    span.layer = static_cast<std::int32_t>(below(50)) - 1;
    span.micro_batch = static_cast<std::int32_t>(below(9)) - 1;
    span.start_ns = lane_ns[span.lane] + static_cast<std::int64_t>(below(2000));
    span.end_ns = span.start_ns + static_cast<std::int64_t>(below(5'000'000));
    lane_ns[span.lane] = span.end_ns;
    span.bytes = below(2) == 0 ? 0 : random();
    span.flops = static_cast<double>(random()) * (below(2) == 0 ? 1e10 : 1e-3);
    span.params = random();
    trace.spans.push_back(span);
  }
  for (std::size_t i = 0; i < spans / 4; ++i) {
    trace.memory.push_back(
        {static_cast<std::int64_t>(i * 1001), static_cast<std::uint16_t>(below(3)), random()});
  }
  return trace;
}

}  // namespace spillway
