// Where everything lies in the store: the schedule's ssd tier, the second copies of optimizer state
// that rests there, and two copies of optimizer state that rests in memory.
//
//   address 0           the ssd tier as the schedule planned it: first copies among the rest
//   after that          second copies           (only if durable)
//   after that          copies of what rests in memory, taken at commits  (only if durable)
//   after that          of each other set of drives its tier, and second copies
//
// All offsets are bytes and multiples of 4096. Both schedules of a training (its usual length and
// the remainder) have their homes in the same places.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/store/chunk_table.hpp"
#include "exec/store/frozen_files.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// A home of optimizer state: [master | m | v] of a range of elements, the masters in fp32.
struct StatePart {
  std::int32_t unit = 0;
  std::uint64_t first_element = 0;
  std::uint64_t elements = 0;
  Tier tier = Tier::ssd;
  // In the tier's arena, where it rests while training; of drives without what is frozen in other
  // files.
  std::uint64_t offset = 0;
  // In the store, by copy. Equal where there is one copy only; unused without a store.
  std::array<std::uint64_t, 2> address{};
  MomentWidth moments = MomentWidth::fp32;

  std::uint64_t bytes() const { return elements * state_bytes(moments); }
  // Of one value of the master weights (moment 0), first (1) or second (2) moments, and where the
  // first of them is, from the part's begin.
  std::uint64_t width(int moment) const { return moment == 0 ? 4 : moment_bytes(moments); }
  std::uint64_t begin(int moment) const {
    return elements * (moment == 0 ? 0 : moment == 1 ? 4 : 4 + moment_bytes(moments));
  }
  bool operator==(const StatePart&) const = default;
};

class StoreLayout {
 public:
  // `durable`: two copies of all optimizer state, wherever it rests; else only the ssd tier.
  // `frozen`: the part of it that is not in the store; null: there is none.
  StoreLayout(std::span<const Schedule* const> schedules, bool durable,
              const FrozenFiles* frozen = nullptr);

  std::span<const StatePart> parts() const { return parts_; }  // by unit and first element
  // Where the addresses of each set of drives begin; one that has none begins where the next does.
  const std::array<std::uint64_t, most_drive_sets>& begins() const { return begins_; }
  std::uint64_t bytes() const { return bytes_; }  // of the whole address space
  // Of both copies of what rests in memory.
  std::uint64_t captured_bytes() const { return captured_bytes_; }
  // Where transfers begin and end: what a ChunkTable is cut at.
  const std::vector<std::uint64_t>& boundaries() const { return boundaries_; }

 private:
  void add_set(int set, std::span<const Schedule* const> schedules, bool durable,
               const FrozenFiles* frozen);

  std::vector<StatePart> parts_;
  std::uint64_t bytes_ = 0, captured_bytes_ = 0;
  std::array<std::uint64_t, most_drive_sets> begins_{};
  std::vector<std::uint64_t> boundaries_;
};

// The index in `parts` of each home of optimizer state of a schedule; -1 for other homes.
std::vector<std::int32_t> parts_of_homes(const Schedule& schedule,
                                         std::span<const StatePart> parts);

// What a task does to the optimizer state at rest, known before it runs.
struct StateAccess {
  std::int32_t part = -1;    // the part of the state where its access begins; -1: it touches none
  std::int32_t version = 0;  // versions after the schedule's first: that it reads, or makes
  std::uint64_t into = 0;    // bytes from the part's begin to the access's
  std::uint32_t writes = 0;  // parts that it is the writer of: they follow each other in a buffer
  bool in_memory = false;    // the parts rest in gpu or host memory
};

// By task. An assertion when a schedule does not write each part once per step as a whole, or
// begins to write a version before it has written all of the one before: what every policy must
// keep to, because commits rest on it.
std::vector<StateAccess> state_accesses(const Schedule& schedule, std::span<const StatePart> parts);

}  // namespace spillway
