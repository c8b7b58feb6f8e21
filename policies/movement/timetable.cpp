#include "policies/movement/timetable.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

// A visit is a task at least, so the moments of the longest schedule can be counted.
static_assert(most_tasks <= std::numeric_limits<Moment>::max() / moments_of_visit - 1);

Timetable::Timetable(const Problem& problem, const Plan& plan, const OrderOfWork& work)
    : problem_(problem),
      plan_(plan),
      work_(work),
      layers_(static_cast<int>(problem.model.layers)),
      uses_(problem, work),
      retained_(problem, plan, work, uses_) {
  SPILLWAY_ASSERT(work.visits.size() <= most_tasks, std::to_string(work.visits.size()));
  find_fetches();
  place_updates();
}

Timetable::Window Timetable::leaving_window(VisitId visit) const {
  const std::uint32_t next = uses_.turn_of(visit) + 1;
  const std::vector<Turn>& turns = uses_.turns();
  if (visit + 1 < turns[next - 1].end) return {visit + 1, visit + 2};
  if (next >= turns.size() || turns[next].step != work_.visits[visit].step) return {};
  const Turn& turn = turns[next];
  return {turn.begin, turn.end};
}

// Every turn needs the parameters of its layer: still there from a turn not longer ago than they
// would be fetched ahead, or fetched.
void Timetable::find_fetches() {
  std::vector<std::int64_t> last_turn(static_cast<std::size_t>(layers_), -1);
  read_at_.assign(static_cast<std::size_t>(work_.steps * layers_), no_visit);
  const std::vector<Turn>& turns = uses_.turns();
  std::int64_t first_of_step = 0;
  for (std::size_t t = 0; t < turns.size(); ++t) {
    const Turn& turn = turns[t];
    const auto at = static_cast<std::int64_t>(t);
    if (t == 0 || turns[t - 1].step != turn.step) first_of_step = at;
    if (!turn.needs_parameters) continue;
    const auto turn_before = [&](int distance) -> const Turn& {
      return turns[static_cast<std::size_t>(std::max(first_of_step, at - distance))];
    };
    const bool has_loss = turn.layer + 1 == layers_;  // as in training, also in an evaluation
    const int ahead = turn.backward || has_loss
                          ? plan_.parameters.backward_gpu_ahead.value_or(plan_.parameters.gpu_ahead)
                          : plan_.parameters.gpu_ahead;
    ParameterFetch fetch;
    fetch.unit = turn.layer;
    fetch.use = turn.begin;
    fetch.read_at = turn_before(ahead + plan_.parameters.host_ahead).begin;
    const Turn& above = turn_before(ahead);  // the copies hide under its visits
    fetch.copy_begin = above.begin;
    fetch.copy_end = above.begin == turn.begin ? turn.begin : above.end;
    VisitId& read_at = read_at_[static_cast<std::size_t>(turn.step * layers_ + turn.layer)];
    if (read_at == no_visit) read_at = fetch.read_at;
    std::int64_t& last = last_turn[static_cast<std::size_t>(turn.layer)];
    bool still_there = false;
    if (last >= 0) {
      const Turn& before = turns[static_cast<std::size_t>(last)];
      still_there =
          before.step == turn.step && (at - last <= ahead || retained_.parameters(before.end - 1));
    }
    last = at;
    if (!still_there) fetches_.push_back(fetch);
  }
}

// The moment from which on the gradient that visit `complete` completes is there.
Moment Timetable::layer_available(VisitId complete, bool on_gpu) const {
  const Window window = leaving_window(complete);
  return on_gpu || window.begin == window.end ? after_own_gradient(complete)
                                              : after(window.end - 1);
}

// And an untied head's.
Moment Timetable::head_available(int step, bool on_gpu) const {
  if (on_gpu || plan_.gradients.head_waits == Tier::host)
    return after_own_gradient(uses_.last_backward(step, layers_ - 1));
  return after_embedding(
      uses_.last_backward(step, static_cast<int>(first_backward_layer(problem_.model))));
}

// The moment from which on all gradients of an update are in the memory where it runs.
Moment Timetable::available(const Update& update, bool on_gpu) const {
  if (problem_.workload.updates_wait() || plan_.gradients.bucket > 0)
    return after_embedding(uses_.last_visit(update.gradient_step));
  Moment latest = 0;
  for (std::uint32_t r = 0; r < update.range_count; ++r) {
    const int unit = work_.ranges[update.first_range + r].unit;
    const int step = update.gradient_step;
    latest = std::max(latest, unit < layers_ ? layer_available(uses_.complete(step, unit), on_gpu)
                              : unit == layers_ ? after_embedding(uses_.last_backward(step, 0))
                                                : head_available(step, on_gpu));
  }
  return latest;
}

// The visit before which the parameters that an update makes would be read for their next use.
VisitId Timetable::next_read(const Update& update) const {
  // A window of tensors may fetch any layer as soon as the next step begins.
  if (plan_.parameters.by_tensor) {
    const VisitId next = uses_.last_visit(update.gradient_step) + 1;
    return next < work_.visits.size() ? next : no_visit;
  }
  VisitId soonest = no_visit;
  for (std::uint32_t r = 0; r < update.range_count; ++r) {
    const int unit = work_.ranges[update.first_range + r].unit;
    const int layer = layer_with(unit, layers_);
    for (int step = update.gradient_step + 1; step < work_.steps; ++step) {
      if (uses_.forward(step, layer, 0) == no_visit) continue;
      soonest = std::min(soonest, read_at_[static_cast<std::size_t>(step * layers_ + layer)]);
      break;
    }
  }
  return soonest;
}

// An update runs at its place in the order of work or, where its gradient is there long before, as
// early as its parameters would be read from the SSD: it takes the place of that read. One that has
// to wait for the norm of all gradients waits until then, too.
void Timetable::place_updates() {
  const auto end = static_cast<VisitId>(work_.visits.size());
  std::vector<std::uint32_t> in_step(static_cast<std::size_t>(work_.steps) + 1, 0);
  Moment floor = 0, latest = 0;  // of the last wait; of the updates since
  std::size_t wait = 0;
  const auto add_waits = [&](std::size_t updates_before) {
    for (; wait < work_.waits.size() && work_.waits[wait].updates_before <= updates_before;
         ++wait) {
      OptimizerEvent event;
      event.is_wait = true;
      event.step = work_.waits[wait].step;
      event.moment = std::max({floor, latest, before(work_.waits[wait].at)});
      floor = event.moment;
      events_.push_back(event);
    }
  };
  for (std::uint32_t u = 0; u < work_.updates.size(); ++u) {
    add_waits(u);
    const Update& update = work_.updates[u];
    const VisitId read = next_read(update);
    const Moment needed = read == no_visit ? before(end) : before(read);
    OptimizerEvent event;
    event.update = u;
    event.step = update.step;
    event.in_step = in_step[static_cast<std::size_t>(update.gradient_step)]++;
    const int stride = plan_.optimizer.gpu_stride;
    event.on_gpu = stride > 0
                       ? (event.in_step + 1) % static_cast<std::uint32_t>(stride) == 0
                       : state_rests_on_gpu(plan_, work_.ranges[update.first_range].unit, layers_);
    // The next wait waits for it.
    const Moment wanted =
        wait < work_.waits.size() ? std::min(needed, before(work_.waits[wait].at)) : needed;
    const Moment there = available(update, event.on_gpu), here = before(update.at);
    event.moment = here >= there
                       ? std::max(there, plan_.optimizer.early ? std::min(here, needed) : here)
                   : problem_.workload.updates_wait() ? std::max(there, wanted)
                                                      : there;
    event.moment = std::max(event.moment, floor);
    SPILLWAY_ASSERT(!plan_.parameters.by_tensor ||
                        event.moment <= before(uses_.last_visit(update.gradient_step) + 1),
                    "tensors are fetched after every update of the step before");
    latest = std::max(latest, event.moment);
    const VisitId visit = std::min(event.moment / moments_of_visit, end - 1);
    const Turn& turn = uses_.turns()[uses_.turn_of(visit)];
    const Moment lead = moments_of_visit * (turn.end - turn.begin);
    event.earliest_read = plan_.optimizer.own_phase
                              ? event.moment
                              : std::max(floor, event.moment > lead ? event.moment - lead : 0);
    events_.push_back(event);
  }
  add_waits(work_.updates.size());
  std::stable_sort(
      events_.begin(), events_.end(),
      [](const OptimizerEvent& a, const OptimizerEvent& b) { return a.moment < b.moment; });
  // Slots take turns in this order; state that rests on the GPU needs none.
  std::uint32_t number = 0;
  int gradient_step = -1;
  for (OptimizerEvent& event : events_) {
    if (event.is_wait) continue;
    const int of = work_.updates[event.update].gradient_step;
    if (of != gradient_step) number = 0;
    gradient_step = of;
    event.in_step = number;
    if (!event.on_gpu || plan_.optimizer.gpu_stride > 0) ++number;
  }
}

}  // namespace spillway
