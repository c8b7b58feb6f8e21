// Runs fio, the drive benchmark that others report, on files of ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

enum class DrivePattern : std::uint8_t { read, write, mixed };

const char* to_string(DrivePattern pattern);

struct DriveThroughput {  // bytes per second; 0 where the pattern has none
  double read = 0, write = 0;
  double total() const { return read + write; }
};

struct FioJob {
  std::vector<std::filesystem::path> files;  // exist, and hold `bytes` together
  std::uint64_t bytes = 0;                   // of all files
  std::uint64_t block_bytes = 1 << 20;
  unsigned depth = 32;
  double seconds = 1;
};

// "fio-3.33"; none where the program is not installed.
std::optional<std::string> fio_version();

// Sequential O_DIRECT transfers through fio's io_uring engine with registered buffers and files:
// one job; for `mixed` two, one reading the first half of every file and one writing the second.
// Throws MachineError with fio's words when it fails.
DriveThroughput run_fio(const FioJob& job, DrivePattern pattern);

}  // namespace spillway
