// What the drives below a training's store say of themselves: bytes written in their life, and how
// much of their life is used up. Asked of `smartctl` (smartmontools), which knows the drives of
// many makers; it wants root.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace spillway {

struct DriveHealth {
  std::string device;  // "/dev/nvme0n1"
  std::optional<double> bytes_written;
  std::optional<double> life_used;  // 0 .. 1 and more, by what the maker rates it for
};

struct DrivesHealth {
  std::vector<DriveHealth> drives;  // those that say something, by name
  std::string why_not;              // of those that do not, in words; empty: each says something
};

// Where the system says which drives there are, and what asks them: others for tests.
struct DriveSources {
  std::filesystem::path sys = "/sys", dev = "/dev";
  std::string smartctl = "smartctl";
  int seconds = 5;  // that one drive has for its answer
};

// Drives below `directories`, through partitions and the device mapper. Never throws.
DrivesHealth read_drives_health(const std::vector<std::filesystem::path>& directories,
                                const DriveSources& sources = {});

// Names of the drives below the block device MAJOR:MINOR, e.g. "259:1": {"nvme0n1"}. Empty: it is
// no drive (tmpfs, a network).
std::vector<std::string> drives_below(const std::string& number, const std::filesystem::path& sys);

// What an answer of `smartctl --json` says.
DriveHealth parse_drive_health(const std::string& answer, const std::string& device);

// "drives" of an event (docs/train.md).
nlohmann::ordered_json drives_json(const DrivesHealth& health);

}  // namespace spillway
