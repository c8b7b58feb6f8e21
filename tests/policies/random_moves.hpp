// A seed's choices, and values that wander between the tiers by them: what a random policy moves
// bytes with.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "policies/schedule/program.hpp"

namespace spillway::test {

// The same choices for the same seed, on any machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  std::uint64_t below(std::uint64_t count) { return random_() % count; }
  double fraction() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  bool chance(double probability) { return fraction() < probability; }
  // A probability that is often an extreme: never, always, seldom, half the time.
  double habit();

 private:
  std::mt19937_64 random_;
};

// Bytes that may be in several tiers at once: all valid copies are equal.
//
// `home` (optional) is where the value rests between steps; it is one of the copies exactly when
// home_is_current. Copies made anywhere else are transient.
struct Value {
  BufferKind kind = BufferKind::checkpoint;
  int layer = -1, micro_batch = -1;
  std::uint64_t bytes = 0;
  std::array<Slice, tier_count> at{};
  Slice home;
  bool home_is_current = false;

  bool exists() const { return at[0].valid() || at[1].valid() || at[2].valid(); }
  Slice& in(Tier tier) { return at[static_cast<std::size_t>(tier)]; }
};

class Moves {
 public:
  Moves(Program& program, Dice& dice);

  Program& program() { return program_; }
  Dice& dice() { return dice_; }

  // A transient buffer for the value, in `tier`.
  Slice buffer(const Value& value, Tier tier);
  // Copies in one piece, or in several in any order (`whole`: in one).
  void copy(Slice from, Slice to, const Value& value, bool whole = false);
  // A copy in `tier`, made from the others if there is none.
  Slice bring(Value& value, Tier tier);
  // The same, for a task that changes it: the other copies, the home too, are no longer current.
  Slice bring_to_change(Value& value, Tier tier);
  // Makes the home current.
  void bring_home(Value& value);
  // Something legal and useless: fetches the value early, sends it away, forgets a copy.
  void shake(Value& value);
  void forget_all(Value& value);

  // From here on, optimizer state in host memory is staged in one of `slots` that last, by turns.
  void use_slots(std::size_t slots, std::uint64_t bytes);

 private:
  struct Slot {
    Slice where;
    Value* owner = nullptr;
  };
  Slice place(Value& value, Tier tier);
  Slice take_slot(Value& value);
  void forget(Value& value, Tier tier);

  Program& program_;
  Dice& dice_;
  double pieces_, pageable_, away_, to_ssd_, keep_;
  std::vector<Slot> slots_;
  std::size_t slots_wanted_ = 0, next_slot_ = 0;
  std::uint64_t slot_bytes_ = 0;
};

}  // namespace spillway::test
