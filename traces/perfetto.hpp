// Traces as files: Chrome Trace Event JSON, which opens in Perfetto (https://ui.perfetto.dev).
//
// One track per lane, one complete event per span, one counter per tier; times in microseconds with
// three decimals, so that no nanosecond is lost. The format, key by key: docs/traces.md.
#pragma once

#include <string>

#include "base/new_file.hpp"
#include "traces/trace.hpp"

namespace spillway {

// Writes `trace` to `place`, compressed where the name ends in ".gz".
//
// The events stream to a temporary file beside `path`, which is synced and then renamed: `path`
// holds the whole trace or what it held before. Only another trace is replaced; a link, a FIFO or
// any other file is refused, a device written in place. Spans, samples and metadata keep their
// order. Every index must be in range, every end not before its start, and every metadata value
// JSON (Trace::set_metadata sees to that).
//
// Throws InputError when something else lies at `path`, MachineError with the errno when the file
// cannot be written.
void write_trace(const Trace& trace, const FilePlace& place);

// What write_trace replaces: a trace, compressed or not, by its first bytes.
const ReplaceOnly& only_a_trace();

// Reads what write_trace wrote; compression is recognised by content. The result equals the trace
// that was written: every integer nanosecond, every index, every metadata value.
//
// Throws InputError (file:line) when the file is missing, truncated, damaged, of another program or
// of another version of the format; MachineError with the errno when it cannot be read.
Trace read_trace(const std::string& path);

}  // namespace spillway
