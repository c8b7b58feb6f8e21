#include "exec/store/version_gate.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

VersionGate::VersionGate(CommitPoints points, std::uint32_t parts, bool durable)
    : points_(points),
      parts_(parts),
      durable_(durable),
      begun_(points.base_version * states),
      whole_(points.base_version),
      reported_(points.base_version),
      committed_epoch_(points.base_epoch) {
  SPILLWAY_ASSERT(parts > 0 && points.interval > 0);
}

void VersionGate::changed() {
  changes_.fetch_add(1, std::memory_order_release);
  changes_.notify_all();
}

VersionGate::Begun VersionGate::try_begin(std::int64_t version) {
  std::int64_t begun = begun_.load(std::memory_order_acquire);
  while (version > begun / states) {
    // Stopping, and this one is too late.
    if (begun % states != goes_on) return begun % states == stops ? Begun::no : Begun::held;
    if (begun_.compare_exchange_weak(begun, version * states, std::memory_order_acq_rel))
      return Begun::yes;
  }
  return Begun::yes;
}

bool VersionGate::begin(std::int64_t version) {
  while (true) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    const Begun begun = try_begin(version);
    if (begun != Begun::held) return begun == Begun::yes;
    if (halted()) return false;
    changes_.wait(seen, std::memory_order_acquire);
  }
}

bool VersionGate::enter(std::int64_t version) {
  const std::int64_t needed = points_.epoch_of(version) - 1;
  while (true) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    if (halted()) return false;
    if (!durable_ || committed_epoch_.load(std::memory_order_acquire) >= needed) {
      const Begun begun = try_begin(version);
      if (begun == Begun::yes) return true;
    }
    changes_.wait(seen, std::memory_order_acquire);
  }
}

void VersionGate::reported(std::int64_t version) {
  reported_.store(version, std::memory_order_release);
  if (durable_) changed();
}

void VersionGate::leave(std::int64_t version, std::uint32_t parts) {
  // Sequentially consistent, so that of two threads that complete two versions at the same time one
  // sees what both did.
  const std::uint32_t count = left(version).fetch_add(parts) + parts;
  SPILLWAY_ASSERT(count <= parts_, "a part of the state was written twice in one step");
  if (count < parts_) return;
  bool advanced = false;
  std::int64_t whole = whole_.load();
  while (left(whole + 1).load() == parts_) {
    if (!whole_.compare_exchange_weak(whole, whole + 1)) continue;
    left(++whole).store(0);
    advanced = true;
  }
  if (advanced) changed();
}

// No later version begins, as `state` says.
std::int64_t VersionGate::end_begun(std::int64_t at_least, std::int64_t state) {
  std::int64_t begun = begun_.load(std::memory_order_acquire);
  while (begun % states != stops) {
    const std::int64_t version = std::min(std::max(begun / states, at_least), points_.last_version);
    if (begun_.compare_exchange_weak(begun, version * states + state, std::memory_order_acq_rel)) {
      changed();
      return version;
    }
  }
  return begun / states;
}

std::int64_t VersionGate::request_stop(std::int64_t at_least) { return end_begun(at_least, stops); }

std::int64_t VersionGate::hold(std::int64_t at_least) { return end_begun(at_least, is_held); }

void VersionGate::stop_at(std::int64_t version) { end_begun(version, stops); }

std::int64_t VersionGate::stop_version() const {
  const std::int64_t begun = begun_.load(std::memory_order_acquire);
  return begun % states == stops ? begun / states : -1;
}

void VersionGate::halt() {
  halted_.store(true, std::memory_order_release);
  changed();
}

std::int64_t VersionGate::next_commit(std::int64_t committed) const {
  const std::int64_t next = points_.next(committed);
  const std::int64_t stop = stop_version();
  return stop >= 0 ? std::min(next, std::max(stop, committed)) : next;
}

void VersionGate::committed(std::int64_t version) {
  committed_epoch_.store(points_.epoch_of(version), std::memory_order_release);
  changed();
}

}  // namespace spillway
