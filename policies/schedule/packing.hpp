// Offsets for buffers whose lifetimes are all known: offline dynamic storage allocation.
//
// The largest buffers are placed first, each at the lowest offset at which nothing is that lives at
// the same time; among equal ones the first in program order is the first. Most often that takes
// no more than the most bytes that live at once, which no placement can do without.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policies/schedule/task.hpp"

namespace spillway {

struct Lifetime {
  std::uint64_t bytes = 0;
  TaskId first = 0, last = 0;      // tasks that use the buffer, both included
  Lane first_lane{}, last_lane{};  // of these tasks
  std::uint64_t offset = 0;        // set by pack
};

// The order in which buffers are placed.
bool is_placed_before(const Lifetime& one, const Lifetime& other);

inline constexpr std::uint64_t no_limit = 0xffffffffffffffff;

// Sets all offsets and returns the highest end. Memory is not used again before `distance` more
// tasks are emitted, so that a copy into it seldom waits for its last user; where that is on the
// lane of the next user, it would not wait anyway. Nothing where it would take too long: many
// buffers that live at once cost the product; or as soon as more than `most` bytes are needed.
std::optional<std::uint64_t> pack(std::vector<Lifetime>& buffers, TaskId distance,
                                  std::uint64_t most);

}  // namespace spillway
