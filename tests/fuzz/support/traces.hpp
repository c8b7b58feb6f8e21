// What holds for every trace that can be read. For the targets trace and trace_gzip.
#pragma once

#include "tests/fuzz/fuzz.hpp"
#include "traces/trace.hpp"

namespace spillway::fuzz {

// Whether both are the same record, number for number.
bool equal(const Trace& a, const Trace& b);

// Written to a file of this name and read again, it is the same trace.
void check_round_trip(const Trace& trace, const std::filesystem::path& path);

}  // namespace spillway::fuzz
