// Updates: when each is emitted, what it reads, and what it writes back.
//
// Updates and waits are emitted in the order and at the moments of the timetable. The optimizer
// state of an update is in the memory where it runs by then: read ahead from the SSD into slots or
// memory of its own, or exchanged with the GPU's slots. What an update changed is written back
// before the next update, or while that runs where the plan says so. Of several ranks, parameters
// that others keep, too, are spread to them once all of this rank's part of a unit are updated.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "policies/movement/gradients.hpp"
#include "policies/movement/parameters.hpp"
#include "policies/movement/pieces.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/state_slots.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class Optimizer {
 public:
  // The arguments outlive the optimizer. Marks the pieces that some updates take on the GPU
  // (Piece::updates_on_gpu), and notes in `units` which copies are in host memory.
  Optimizer(Program& program, const Plan& plan, const Shards& shards, const OrderOfWork& work,
            const Timetable& times, const StateSlots& slots, Units& units, Gradients& gradients,
            const Parameters& parameters);

  // Emits the updates and waits of steps up to `step` that are due by `now`.
  void run(Moment now, int step);
  // Reads optimizer state ahead of the updates that come next.
  void read_ahead(Moment now) { read_ahead(now, updated_); }
  // Writes back what the last update changed, unless it is written.
  void write_back();
  // Emits the remaining updates of `step` before the next step begins.
  void end_step(Moment now, int step);

 private:
  template <class Act>
  void for_pieces_of(const OptimizerEvent& event, const Act& act) {
    for_pieces(units_, work_, work_.updates[event.update], act);
  }
  template <class Act>
  void for_ranges_of(const OptimizerEvent& event, const Act& act) const {
    const Update& update = work_.updates[event.update];
    for (std::uint32_t r = 0; r < update.range_count; ++r)
      act(work_.ranges[update.first_range + r]);
  }
  int gradient_step(std::size_t u) const { return work_.updates[updates_[u].update].gradient_step; }
  void find_state_reads();
  // Whether the optimizer state of update `u`, as the step before left it, has been written back.
  bool is_state_home(std::size_t u) const { return state_after_[u] <= written_back_; }
  void read_ahead(Moment now, std::size_t current);
  void read_next();
  void read_gradients(const OptimizerEvent& event, Slice slot);
  void update(const OptimizerEvent& event);
  void update(int unit, Piece& piece, bool on_gpu, int gradient_step);
  void exchange_gpu_state(const OptimizerEvent& event);
  void state_leaves_gpu();
  void spread(const OptimizerEvent& event);
  void broadcast(int unit, Slice whole);

  Program& program_;
  const Plan& plan_;
  const Shards& shards_;
  const OrderOfWork& work_;
  const Timetable& times_;
  const StateSlots& slots_;
  Units& units_;
  Gradients& gradients_;
  const Parameters& parameters_;
  std::vector<OptimizerEvent> updates_;                          // those of Timetable::events
  std::size_t next_event_ = 0;                                   // in Timetable::events
  std::size_t next_state_ = 0, updated_ = 0, written_back_ = 0;  // in updates_
  std::size_t state_ahead_ = 0;                                  // updates
  std::vector<std::size_t> state_after_;          // by update, how many come before the one that
                                                  // its optimizer state was last changed by, that
                                                  // one included
  std::size_t arrivals_ = 0;                      // in slots_.gpu
  std::optional<OptimizerEvent> updated_on_gpu_;  // whose state is still there
  std::optional<OptimizerEvent> written_;         // whose result is not written back yet
  std::vector<std::uint64_t> to_spread_;          // by unit: elements updated and not spread yet
};

}  // namespace spillway
