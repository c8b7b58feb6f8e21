// What it takes of the drives to keep a training resumable: space for second copies of its state,
// bytes that commits write beside the steps, and how often a commit is worth them (docs/store.md).
#pragma once

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
  std::uint64_t tier = 0;           // the ssd tier, as the schedules planned it
  std::uint64_t second_copies = 0;  // of optimizer state that rests in the ssd tier
  std::uint64_t memory_copies = 0;  // both copies of optimizer state that rests in memory
  std::uint64_t records = 0;        // the file of commit records, to a few kilobytes
  std::uint64_t first_fill = 0;     // what is written to the ssd tier before the first step

  // Of all stripes together: the size of StoreLayout, to the byte.
  std::uint64_t address_space() const { return tier + second_copies + memory_copies; }
  std::uint64_t all() const { return address_space() + records; }
  // What one commit copies from memory, and with it its record.
  std::uint64_t captured() const { return memory_copies / 2; }
  std::uint64_t written_by_commit() const { return captured() + records / 2; }
};

// `schedules`: those of one training, which keep their state in the same places.
StoreBytes store_bytes(std::span<const Schedule* const> schedules, bool durable);
StoreBytes store_bytes(const Schedule& schedule, bool durable);

// What the default interval between commits rests on, where the machine does not say otherwise.
namespace commit_assumptions {
inline constexpr double seconds_between_failures = 86'400;  // a crash or power cut a day
inline constexpr double years_of_drive_life = 3;  // commits alone wear the drives out no sooner
inline constexpr double rewrites = 600;           // ssd.tbw of a drive: 600 times its capacity
inline constexpr double drive_bytes = 1e12;       // capacity of drives nobody has described
inline constexpr double write_rate = 1e9;         // bytes/s of such drives
inline constexpr double cpu_flops = 1e10, gpu_flops = 1e14;  // of a processor nobody has described
}  // namespace commit_assumptions

inline constexpr double seconds_per_year = 365.25 * 86'400;

// Bytes that the drives of the machine may be written in their life, by ssd.tbw; 0: it is not
// known.
double rated_bytes(const Machine& machine);

struct CommitInterval {
  std::int64_t steps = 1;
  double seconds = 0;       // that many steps, as far as their time is known
  double cost_seconds = 0;  // for which one commit takes the drives' write bandwidth
};

// Steps between commits where the user names none: every step where commits copy nothing, else the
// larger of
//   sqrt(2 x cost x seconds between failures)    (Young 1974, Daly 2006): least time lost
//   captured bytes / (rated bytes / years of drive life)    wear
// `step_seconds`: as predicted; 0: the model's FLOPs at the rate of the machine's GPU. The same
// arguments always give the same interval.
CommitInterval commit_interval(const StoreBytes& bytes, const Problem& problem,
                               double step_seconds);

}  // namespace spillway
