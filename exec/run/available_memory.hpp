// How much memory this process can take now, as the computer and its control groups say.
#pragma once

#include <cstdint>
#include <filesystem>

namespace spillway {

// Bytes that can be taken now: MemAvailable of /proc/meminfo, or what the memory limits of the
// control groups leave if that is less. Both versions of control groups count: every group that
// this process is in, and each one above it. Of what a group has in use, page cache that the kernel
// would give back does not count. The largest uint64 when the system says nothing.
// `root` stands in for / in tests.
std::uint64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace spillway
