// Whole files, compressed or not.
#pragma once

#include <string>

namespace spillway::trace_format {

// The file's bytes, decompressed where its first bytes say gzip.
// Throws InputError where there is no such file, where its compressed data is damaged or cut off,
// and where it holds more than any trace, before that fills the memory; MachineError with the errno
// where it cannot be read. `hint`: which files can be given.
std::string read_whole_file(const std::string& path, const char* hint);

}  // namespace spillway::trace_format
