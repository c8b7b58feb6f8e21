// Where the model states live, and the moves every policy makes with them.
//
// The parameters and the optimizer state of a unit are cut into runs of elements, each at rest in
// one tier. Splitting by fraction is exact: the runs cover the unit once, cut on the element grid.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "policies/schedule/program.hpp"

namespace spillway {

// Fractions of a run of elements per tier; they add up to 1. Placed in this order.
struct Placement {
  double gpu = 0;
  double host = 0;
  double ssd = 0;
};

class ModelState {
 public:
  struct Run {
    std::uint64_t first = 0;  // element in the unit
    std::uint64_t elements = 0;
    Slice where;
  };
  using Runs = std::vector<Run>;

  explicit ModelState(Program& program);

  int units() const { return static_cast<int>(parameters_.size()); }
  int embedding() const { return units() - 1; }
  std::uint64_t elements(int unit) const;

  // Elements [first, first + elements) of a unit, cut by `placement`. Place parameters before
  // optimizer state: the latter is cut where the former is, so that each update writes to one
  // place.
  void place_parameters(int unit, std::uint64_t first, std::uint64_t elements, Placement placement);
  void place_optimizer(int unit, std::uint64_t first, std::uint64_t elements, Placement placement);
  // The whole unit.
  void place_parameters(int unit, Placement placement) {
    place_parameters(unit, 0, elements(unit), placement);
  }
  void place_optimizer(int unit, Placement placement) {
    place_optimizer(unit, 0, elements(unit), placement);
  }

  // The parameters of a unit as runs in gpu or host memory: runs at rest on the ssd are read to
  // host staging.
  Runs stage_parameters(int unit, std::uint64_t first, std::uint64_t elements);
  Runs stage_parameters(int unit) { return stage_parameters(unit, 0, elements(unit)); }
  // One GPU slice with all parameters of a unit, copied from `staged`; no copy where they rest
  // there in one run.
  Slice upload_parameters(int unit, const Runs& staged);
  // Every update on the CPU costs `bytes` of DRAM per element beside AdamW (Task::pass_bytes).
  void count_passes(std::uint8_t bytes) { pass_bytes_ = bytes; }

  // Where the parameters of a unit rest when they are in one run in GPU memory.
  Slice resident_parameters(int unit) const;

  // First half of an update: the optimizer state of [first, first + elements), read from the ssd
  // where it rests there. Second half: AdamW with `gradient` (and `head_gradient`), slices over
  // exactly these elements in the tier where the state now is; then everything goes back to its
  // home. Returns the updated parameters where Adam left them, in host or gpu memory: fresh for use
  // without another read.
  struct Update {
    int unit = 0;
    std::uint64_t first = 0, elements = 0;
    Runs state;
  };
  // `slot` (may be invalid): host memory to read into, at least Problem::state_bytes() per element,
  // instead of a buffer for the occasion; a read into it waits for whatever used it before.
  Update begin_update(int unit, std::uint64_t first, std::uint64_t elements, Slice slot = {});
  Update begin_update(int unit) { return begin_update(unit, 0, elements(unit)); }
  // `updated` (may be empty) is called between AdamW and what brings the results home.
  Runs finish_update(const Update& update, Slice gradient, Slice head_gradient, int step,
                     const std::function<void()>& updated = {});

  // The three parts of finish_update, for policies that put something between them: AdamW on all
  // of an update, and each result's way home (no task where it is there already).
  Runs apply_update(const Update& update, Slice gradient, Slice head_gradient, int step);
  void bring_parameters_home(int unit, const Runs& updated);
  void bring_state_home(const Update& update);

  // Where the parameters of a unit rest, ascending.
  const Runs& parameters_at_rest(int unit) const {
    return parameters_[static_cast<std::size_t>(unit)];
  }

  // A gradient accumulator of a unit in `tier`.
  Slice gradient_buffer(Tier tier, int unit, BufferKind kind = BufferKind::gradient);
  // One accumulator of each unit that stays in host memory, as DeepSpeed's buffer for the gradient
  // of the whole model does. By unit.
  std::vector<Slice> host_accumulators();
  // The part of a whole-unit gradient that belongs to elements [first, first + elements).
  Slice gradient_part(Slice gradient, std::uint64_t first, std::uint64_t elements) const;

 private:
  Slice parameters_home(int unit, const Run& run) const;
  void place(BufferKind kind, int unit, std::uint64_t first, std::uint64_t elements, Tier tier);
  std::uint64_t element_bytes(BufferKind kind) const;

  Program& program_;
  std::uint8_t pass_bytes_ = 0;
  std::vector<Runs> parameters_;  // by unit, ascending
  std::vector<Runs> optimizer_;
};

// `fraction` of `elements`, on the element grid.
std::uint64_t fraction_of(std::uint64_t elements, double fraction);

}  // namespace spillway
