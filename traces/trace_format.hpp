// What the writer and the reader of trace files agree on. The format for people: docs/traces.md.
#pragma once

#include <string_view>

namespace spillway::trace_format {

inline constexpr std::string_view name = "spillway-trace";
inline constexpr int version = 1;

// One process; lane i is thread i + 1, because Perfetto gives thread 0 a meaning of its own.
inline constexpr int process = 1;
inline constexpr int first_thread = 1;

// A counter of tier "gpu" is called "memory gpu".
inline constexpr std::string_view counter_prefix = "memory ";

}  // namespace spillway::trace_format
