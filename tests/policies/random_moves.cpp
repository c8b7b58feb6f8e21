#include "tests/policies/random_moves.hpp"

#include <algorithm>
#include <utility>

#include "base/errors.hpp"

namespace spillway::test {

double Dice::habit() {
  constexpr double habits[] = {0, 0.05, 0.2, 0.5, 0.8, 1};
  return habits[below(std::size(habits))];
}

Moves::Moves(Program& program, Dice& dice)
    : program_(program),
      dice_(dice),
      pieces_(dice.habit() / 2),
      pageable_(dice.habit()),
      away_(dice.habit()),
      to_ssd_(dice.habit()),
      keep_(dice.habit()) {}

void Moves::use_slots(std::size_t slots, std::uint64_t bytes) {
  slots_wanted_ = slots;
  slot_bytes_ = bytes;
}

Slice Moves::buffer(const Value& value, Tier tier) {
  return program_.buffer(tier, value.bytes, value.kind, value.layer, value.micro_batch)
      .part(0, value.bytes);
}

void Moves::copy(Slice from, Slice to, const Value& value, bool whole) {
  const auto memory = [&] {
    return dice_.chance(pageable_) ? HostMemory::pageable : HostMemory::pinned;
  };
  constexpr std::uint64_t grid = buffer_alignment;
  const std::uint64_t cells = from.bytes / grid;
  if (whole || cells < 2 || !dice_.chance(pieces_)) {
    program_.copy(from, to, value.layer, value.micro_batch, memory());
    return;
  }
  const std::uint64_t cut = (1 + dice_.below(cells - 1)) * grid;
  const bool backwards = dice_.chance(0.5);
  for (const bool second : {backwards, !backwards}) {
    const std::uint64_t first = second ? cut : 0;
    const std::uint64_t bytes = second ? from.bytes - cut : cut;
    program_.copy(from.part(first, bytes), to.part(first, bytes), value.layer, value.micro_batch,
                  memory());
  }
}

// Slots are taken by turns. The state of the one that had it goes home first, if it has changed.
Slice Moves::take_slot(Value& value) {
  if (slots_.size() < slots_wanted_) {
    const Slice where = program_.persistent(Tier::host, slot_bytes_, BufferKind::optimizer_state)
                            .part(0, slot_bytes_);
    slots_.push_back({where, nullptr});
    next_slot_ = slots_.size() - 1;
  } else {
    next_slot_ = (next_slot_ + 1) % slots_.size();
  }
  Slot& slot = slots_[next_slot_];
  if (slot.owner != nullptr && slot.owner != &value) {
    Slice& held = slot.owner->in(Tier::host);
    if (held.valid() && held.buffer.id == slot.where.buffer.id) {
      bring_home(*slot.owner);
      if (held.buffer.id == slot.where.buffer.id) held = {};
    }
  }
  slot.owner = &value;
  return slot.where.part(0, value.bytes);
}

// Where the next copy in `tier` goes: home where that is, and out of date.
Slice Moves::place(Value& value, Tier tier) {
  if (value.home.valid() && !value.home_is_current && program_.tier(value.home) == tier) {
    value.home_is_current = true;
    return value.home;
  }
  if (value.kind == BufferKind::optimizer_state && tier == Tier::host && slots_wanted_ > 0) {
    return take_slot(value);
  }
  return buffer(value, tier);
}

Slice Moves::bring(Value& value, Tier tier) {
  Slice& wanted = value.in(tier);
  if (wanted.valid()) return wanted;
  SPILLWAY_ASSERT(value.exists());
  const bool from_gpu = value.in(Tier::gpu).valid(), from_ssd = value.in(Tier::ssd).valid();
  Slice from;
  if (tier == Tier::host) {
    from = value.in(from_gpu && (!from_ssd || dice_.chance(0.5)) ? Tier::gpu : Tier::ssd);
  } else {
    from = bring(value, Tier::host);
  }
  const Slice to = place(value, tier);
  // What is written home is written once, as a whole.
  copy(from, to, value,
       value.kind == BufferKind::optimizer_state && to.buffer.id == value.home.buffer.id);
  wanted = to;
  return to;
}

Slice Moves::bring_to_change(Value& value, Tier tier) {
  const Slice where = bring(value, tier);
  forget_all(value);
  value.in(tier) = where;
  value.home_is_current = value.home.valid() && where.buffer.id == value.home.buffer.id &&
                          where.offset == value.home.offset;
  return where;
}

void Moves::bring_home(Value& value) {
  if (value.home_is_current || !value.home.valid()) return;
  const Tier home = program_.tier(value.home);
  Tier from = Tier::host;
  if (home == Tier::host)
    from = value.in(Tier::gpu).valid() || dice_.chance(0.5) ? Tier::gpu : Tier::ssd;
  const Slice source = bring(value, from);
  if (value.home_is_current) return;  // on its way, it came home
  copy(source, value.home, value, value.kind == BufferKind::optimizer_state);
  value.in(home) = value.home;
  value.home_is_current = true;
}

void Moves::forget(Value& value, Tier tier) {
  const bool elsewhere = std::any_of(value.at.begin(), value.at.end(), [&](const Slice& one) {
    return one.valid() && &one != &value.in(tier);
  });
  const bool is_home = value.home_is_current && program_.tier(value.home) == tier;
  if (elsewhere && !is_home) value.in(tier) = {};
}

void Moves::forget_all(Value& value) {
  value.at = {};
  value.home_is_current = false;
}

void Moves::shake(Value& value) {
  if (!value.exists()) return;
  if (!dice_.chance(away_)) {
    bring(value, dice_.chance(0.5) ? Tier::gpu : Tier::host);
    return;
  }
  const bool to_ssd = dice_.chance(to_ssd_);
  bring(value, to_ssd ? Tier::ssd : Tier::host);
  if (!dice_.chance(keep_)) forget(value, Tier::gpu);
  if (to_ssd && !dice_.chance(keep_)) forget(value, Tier::host);
}

}  // namespace spillway::test
