#include "tests/fuzz/support/traces.hpp"

#include <algorithm>
#include <bit>

#include "traces/perfetto.hpp"

namespace spillway::fuzz {

namespace {

bool equal_spans(const Span& a, const Span& b) {
  return a.task == b.task && a.lane == b.lane && a.kind == b.kind && a.phase == b.phase &&
         a.segment == b.segment && a.step == b.step && a.layer == b.layer &&
         a.micro_batch == b.micro_batch && a.start_ns == b.start_ns && a.end_ns == b.end_ns &&
         a.bytes == b.bytes && a.params == b.params &&
         std::bit_cast<std::uint64_t>(a.flops) == std::bit_cast<std::uint64_t>(b.flops);
}

bool equal_samples(const MemorySample& a, const MemorySample& b) {
  return a.time_ns == b.time_ns && a.tier == b.tier && a.bytes == b.bytes;
}

}  // namespace

bool equal(const Trace& a, const Trace& b) {
  return a.lanes == b.lanes && a.kinds == b.kinds && a.phases == b.phases && a.tiers == b.tiers &&
         a.metadata == b.metadata &&
         std::equal(a.spans.begin(), a.spans.end(), b.spans.begin(), b.spans.end(), equal_spans) &&
         std::equal(a.memory.begin(), a.memory.end(), b.memory.begin(), b.memory.end(),
                    equal_samples);
}

void check_round_trip(const Trace& trace, const std::filesystem::path& path) {
  write_trace(trace, path.string());
  Trace again;
  require(accepted([&] { again = read_trace(path.string()); }),
          "what write_trace writes, read_trace reads");
  require(equal(trace, again), "a trace read again is the same trace");
}

}  // namespace spillway::fuzz
