// What keeping a training resumable takes of the drives: space for second copies of its state, and
// bytes that commits write beside the steps (docs/store.md). How often a commit is worth these
// bytes is a question of cost (policies/cost/commit_interval.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "policies/schedule/schedule.hpp"

namespace spillway {

enum class DurabilityMode : std::uint8_t {
  off,  // one copy, no commits: half the space, and nothing to resume from
  on    // commits every `interval` steps, at the last step, and when stopped
};

struct Durability {
  DurabilityMode mode = DurabilityMode::off;
  std::int64_t interval = 0;  // steps; 0: commit_interval() chooses
  bool on() const { return mode == DurabilityMode::on; }
};

// From "step", "interval=N" or "off"; empty: commits as often as commit_interval() says. Throws
// InputError that names the setting durability.
Durability parse_durability(const std::string& text);

// Bytes that a training takes of its store.
struct StoreBytes {
  std::uint64_t tier = 0;           // what rests on drives, as the schedules planned it
  std::uint64_t second_copies = 0;  // of optimizer state that rests on drives
  std::uint64_t memory_copies = 0;  // both copies of optimizer state that rests in memory
  std::uint64_t record = 0;         // one commit record, to a few kilobytes
  std::uint64_t records = 0;        // the file of two of them, in whole blocks
  std::uint64_t first_fill = 0;     // what is written to the drives before the first step
  // Of all(), on each set of drives: what rests there, with its second copies; and on the first all
  // copies of what rests in memory, and the records.
  std::array<std::uint64_t, most_drive_sets> on_set{};

  // Of all stripes together: the size of StoreLayout, to the byte.
  std::uint64_t address_space() const { return tier + second_copies + memory_copies; }
  std::uint64_t all() const { return address_space() + records; }
  // The first set of drives that has no room for its part; none: -1.
  int lacking(const Machine& machine) const;
  // What one commit copies from memory, and with it its record.
  std::uint64_t captured() const { return memory_copies / 2; }
  std::uint64_t written_by_commit() const { return captured() + records / 2; }
};

// StoreBytes::records of a record of so many bytes.
std::uint64_t record_file_bytes(std::uint64_t record);

// `schedules`: those of one training, which keep their state in the same places.
StoreBytes store_bytes(std::span<const Schedule* const> schedules, bool durable);
StoreBytes store_bytes(const Schedule& schedule, bool durable);

}  // namespace spillway
