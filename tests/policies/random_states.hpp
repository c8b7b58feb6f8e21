// Model states of a random policy: cut at random, at rest anywhere, updated anywhere and at any
// time that leaves training synchronous.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "policies/schedule/program.hpp"
#include "tests/policies/random_moves.hpp"

namespace spillway::test {

class RandomStates {
 public:
  // Declares all homes.
  RandomStates(Program& program, Moves& moves);

  int units() const { return static_cast<int>(units_.size()); }
  int embedding() const { return units() - 1; }
  std::uint64_t elements(int unit) const;

  // All parameters of a unit in one slice of GPU memory, after as many updates as there were steps.
  // Updates of the step before that still wait are done now.
  Slice parameters(int unit);

  // An accumulator of a unit in GPU memory; `first`: a new one. The previous gradient of the unit
  // may still wait to be applied.
  Slice accumulator(int unit, bool first) { return accumulate(unit, first, BufferKind::gradient); }
  Slice head_accumulator(bool first) {
    return accumulate(embedding(), first, BufferKind::head_gradient);
  }
  // The gradient is the sum over all micro-batches: its norm is taken where it is wanted, and for
  // each part of the unit a time for its update is chosen, at the latest before the unit is used in
  // the next step; where updates wait for all norms, when these are known at the earliest.
  void complete(int unit, int step);

  // Something legal: a part of an update, of a fetch, of a way home; or nothing.
  void shake();
  // What is not delayed into the next step is updated.
  void end_step();
  // Every update is done, everything is at home.
  void finish();

 private:
  enum class When { at_once, any_time, at_end, delayed };
  // A run of elements that is updated as one.
  struct Segment {
    std::uint64_t first = 0, elements = 0;
    Value parameters, state;
    bool assembled = false;  // current in the unit's slice of GPU memory
    bool waits = false;      // for its update
    When when = When::at_once;
  };
  struct Unit {
    std::vector<Segment> segments;
    Slice resident;                 // all parameters, where they rest in one run of GPU memory
    Slice assembled;                // transient: all parameters, once all segments are assembled
    Value gradient, head_gradient;  // of the running sum
    Value applied_gradient, applied_head_gradient;  // complete
    int update = -1;                                // the step of the latter
  };

  void cut(int unit);
  Slice accumulate(int unit, bool first, BufferKind kind);
  void take_norm(Unit& unit);
  bool may_update(const Unit& unit) const;
  void update(Unit& unit, Segment& segment);
  void update_waiting(Unit& unit);
  void begin_updates(int step);
  void assemble(Unit& unit, Segment& segment);
  Tier random_tier(double ssd, double gpu);

  Program& program_;
  Moves& moves_;
  Dice& dice_;
  double gpu_update_, keep_assembled_, in_place_, whole_on_gpu_, cuts_, passes_, write_at_once_;
  double state_ssd_, state_gpu_, parameters_ssd_, parameters_gpu_;
  std::vector<double> times_;  // weights of When
  std::vector<Unit> units_;
  int latest_update_ = -1;
  int latest_complete_ = -1, complete_units_ = 0;  // of that step
};

}  // namespace spillway::test
