// When everything happens, in visits: turns, the fetches of parameters that they need, and the
// place of every update. Worked out before the first task is emitted.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/plan.hpp"
#include "policies/movement/retained.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/uses.hpp"

namespace spillway {

// Parameters that a turn needs and that are not on the GPU since the turn before.
struct ParameterFetch {
  std::int32_t unit = 0;
  VisitId use = 0;                       // the first visit that needs them
  VisitId read_at = 0;                   // from the SSD to host memory, before this visit
  VisitId copy_begin = 0, copy_end = 0;  // to the GPU, a piece before each of these visits
};

// A point in the order of tasks. Every visit has four, in this order: before its tasks; after its
// tasks and the copies of gradients that leave the GPU under them; after the copy of its own
// layer's gradient, where that leaves at once; after the copy of the embedding's gradient.
using Moment = std::uint32_t;
inline constexpr Moment moments_of_visit = 4;
inline constexpr Moment before(VisitId visit) { return moments_of_visit * visit; }
inline constexpr Moment after(VisitId visit) { return before(visit) + 1; }
inline constexpr Moment after_own_gradient(VisitId visit) { return before(visit) + 2; }
inline constexpr Moment after_embedding(VisitId visit) { return before(visit) + 3; }

// An update or a wait, in order of emission.
struct OptimizerEvent {
  Moment moment = 0;
  std::int32_t step = 0;      // in which the policy said it
  Moment earliest_read = 0;   // of optimizer state
  std::uint32_t update = 0;   // in OrderOfWork::updates; a wait has none
  std::uint32_t in_step = 0;  // its number among those of its gradient's step, in this order
  bool is_wait = false;
  bool on_gpu = false;
};

class Timetable {
 public:
  Timetable(const Problem& problem, const Plan& plan, const OrderOfWork& work);
  Timetable(const Timetable&) = delete;
  Timetable& operator=(const Timetable&) = delete;

  const Uses& uses() const { return uses_; }
  const Retained& retained() const { return retained_; }
  const std::vector<ParameterFetch>& fetches() const { return fetches_; }
  const std::vector<OptimizerEvent>& events() const { return events_; }

  // The visits under which a gradient crosses to host memory that is to leave the GPU after
  // `visit`: inside a row of one layer the next visit, at its end the next turn. Empty at the end
  // of a step.
  struct Window {
    VisitId begin = 0, end = 0;
  };
  Window leaving_window(VisitId visit) const;

 private:
  void find_fetches();
  void place_updates();
  Moment available(const Update& update, bool on_gpu) const;
  Moment layer_available(VisitId complete, bool on_gpu) const;
  Moment head_available(int step, bool on_gpu) const;
  VisitId next_read(const Update& update) const;

  const Problem& problem_;
  const Plan& plan_;
  const OrderOfWork& work_;
  int layers_;
  Uses uses_;
  Retained retained_;
  std::vector<ParameterFetch> fetches_;
  std::vector<VisitId> read_at_;  // by step, layer: of the parameters of its first turn
  std::vector<OptimizerEvent> events_;
};

}  // namespace spillway
