#include "policies/workload/durability.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t block = 4096, stripe = std::uint64_t{1} << 20;
// In a record: the training's description; of a part its place, and of a chunk its end and sum.
constexpr std::uint64_t record_head = 3072, record_part = 56, record_chunk = 16;

std::uint64_t record_bytes(std::span<const HomePart> homes) {
  std::uint64_t bytes = record_head;
  for (const HomePart& home : homes) {
    if (home.kind != BufferKind::optimizer_state) continue;
    bytes += record_part + (home.where.bytes / stripe + 1) * record_chunk;
  }
  return bytes;
}

}  // namespace

std::uint64_t record_file_bytes(std::uint64_t record) { return 2 * round_up(record, block); }

StoreBytes store_bytes(std::span<const Schedule* const> schedules, bool durable) {
  SPILLWAY_ASSERT(!schedules.empty());
  StoreBytes bytes;
  for (int set = 0; set < most_drive_sets; ++set) {
    std::uint64_t& on_set = bytes.on_set[static_cast<std::size_t>(set)];
    for (const Schedule* schedule : schedules)
      on_set = std::max(on_set, schedule->use(drives_tier(set)).peak_bytes);
    bytes.tier += on_set;
  }
  const Schedule& first = *schedules[0];
  for (const HomePart& home : first.homes()) {
    const Tier tier = first.buffers()[home.where.buffer.id].tier;
    const bool on_ssd = is_drives(tier);
    if (on_ssd && !(home.frozen && first.problem().frozen_in_place))
      bytes.first_fill += home.where.bytes;
    if (!durable || home.kind != BufferKind::optimizer_state) continue;
    if (on_ssd) {
      bytes.second_copies += home.where.bytes;
      bytes.on_set[static_cast<std::size_t>(drive_set(tier))] += home.where.bytes;
    } else {
      bytes.memory_copies += 2 * home.where.bytes;
    }
  }
  if (durable) {
    bytes.record = record_bytes(first.homes());
    bytes.records = record_file_bytes(bytes.record);
  }
  bytes.on_set[0] += bytes.memory_copies + bytes.records;
  return bytes;
}

int StoreBytes::lacking(const Machine& machine) const {
  for (int set = 0; set < most_drive_sets; ++set) {
    if (on_set[static_cast<std::size_t>(set)] > machine.drives(set).capacity) return set;
  }
  return -1;
}

StoreBytes store_bytes(const Schedule& schedule, bool durable) {
  const Schedule* const one = &schedule;
  return store_bytes(std::span(&one, 1), durable);
}

Durability parse_durability(const std::string& text) {
  Durability durability{DurabilityMode::on, 0};
  if (text.empty()) return durability;
  constexpr std::string_view interval = "interval=";
  if (text == "off") {
    durability.mode = DurabilityMode::off;
  } else if (text == "step") {
    durability.interval = 1;
  } else if (text.rfind(interval, 0) == 0) {
    const char* const begin = text.data() + interval.size();
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(begin, end, durability.interval);
    if (error == std::errc::result_out_of_range)
      throw InputError(Setting{"durability", text} + ": out of range: it is too large",
                       "example: " + Setting{"durability", "interval=20"});
    if (error != std::errc() || rest != end || durability.interval < 1)
      throw InputError(Setting{"durability", text} + ": not a positive number of steps",
                       "example: " + Setting{"durability", "interval=20"});
  } else {
    throw InputError(Setting{"durability", text} + " is not step, interval=N or off",
                     "leave it out for the most that costs next to nothing");
  }
  return durability;
}

}  // namespace spillway
