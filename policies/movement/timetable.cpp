#include "policies/movement/timetable.hpp"

#include <algorithm>

namespace spillway {

Timetable::Timetable(const Problem& problem, const Plan& plan, const Work& work)
    : problem_(problem),
      plan_(plan),
      work_(work),
      layers_(static_cast<int>(problem.model.layers)),
      micro_batches_(static_cast<int>(problem.workload.micro_batches())) {
  find_turns();
  find_fetches();
  place_updates();
}

void Timetable::find_turns() {
  const std::size_t cells = index(work_.steps, 0, 0);
  forward_.assign(cells, no_visit);
  backward_.assign(cells, no_visit);
  complete_.assign(static_cast<std::size_t>(work_.steps * layers_), no_visit);
  last_visit_.assign(static_cast<std::size_t>(work_.steps), 0);
  turn_of_.reserve(work_.visits.size());
  for (VisitId v = 0; v < work_.visits.size(); ++v) {
    const Visit& visit = work_.visits[v];
    const std::size_t at = index(visit.step, visit.layer, visit.micro_batch);
    if (visit.kind != VisitKind::backward) forward_[at] = v;
    if (visit.kind != VisitKind::forward) backward_[at] = v;
    if (visit.completes_sum)
      complete_[static_cast<std::size_t>(visit.step * layers_ + visit.layer)] = v;
    last_visit_[static_cast<std::size_t>(visit.step)] = v;
    const bool continues = !turns_.empty() && turns_.back().layer == visit.layer &&
                           turns_.back().step == visit.step;
    if (!continues)
      turns_.push_back({v, v, visit.layer, visit.step, visit.kind != VisitKind::forward});
    turns_.back().end = v + 1;
    turn_of_.push_back(static_cast<std::uint32_t>(turns_.size() - 1));
  }
}

Timetable::Window Timetable::leaving_window(VisitId visit) const {
  const std::uint32_t next = turn_of_[visit] + 1;
  if (visit + 1 < turns_[turn_of_[visit]].end) return {visit + 1, visit + 2};
  if (next >= turns_.size() || turns_[next].step != work_.visits[visit].step) return {};
  const Turn& turn = turns_[next];
  // Until the first gradient of the turn is complete or leaves, too.
  return {turn.begin, turn.end};
}

// Every turn needs the parameters of its layer: still there from a turn not longer ago than they
// would be fetched ahead, or fetched.
void Timetable::find_fetches() {
  std::vector<std::int64_t> last_turn(static_cast<std::size_t>(layers_), -1);
  read_at_.assign(static_cast<std::size_t>(work_.steps * layers_), no_visit);
  std::int64_t first_of_step = 0;
  for (std::size_t t = 0; t < turns_.size(); ++t) {
    const Turn& turn = turns_[t];
    const auto at = static_cast<std::int64_t>(t);
    if (t == 0 || turns_[t - 1].step != turn.step) first_of_step = at;
    const auto turn_before = [&](int distance) -> const Turn& {
      return turns_[static_cast<std::size_t>(std::max(first_of_step, at - distance))];
    };
    const int ahead = turn.backward
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
    const bool still_there = last >= 0 && at - last <= ahead &&
                             turns_[static_cast<std::size_t>(last)].step == turn.step;
    last = at;
    if (!still_there) fetches_.push_back(fetch);
  }
}

// The moment from which on all gradients of an update are in the memory where it runs.
Moment Timetable::available(const Update& update, bool on_gpu) const {
  if (problem_.workload.updates_wait())
    return after(last_visit_[static_cast<std::size_t>(update.gradient_step)]);
  Moment latest = 0;
  for (std::uint32_t r = 0; r < update.range_count; ++r) {
    const int unit = work_.ranges[update.first_range + r].unit;
    const int layer = unit == layers_ ? 0 : unit;
    const VisitId complete =
        complete_[static_cast<std::size_t>(update.gradient_step * layers_ + layer)];
    const Window window = unit == layers_ || on_gpu ? Window{} : leaving_window(complete);
    latest = std::max(latest, window.begin == window.end ? after(complete) : after(window.end - 1));
  }
  return latest;
}

// The visit before which the parameters that an update makes would be read for their next use.
VisitId Timetable::next_read(const Update& update) const {
  VisitId soonest = no_visit;
  for (std::uint32_t r = 0; r < update.range_count; ++r) {
    const int unit = work_.ranges[update.first_range + r].unit;
    const int layer = unit == layers_ ? 0 : unit;
    for (int step = update.gradient_step + 1; step < work_.steps; ++step) {
      if (forward(step, layer, 0) == no_visit) continue;
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
    for (; wait < work_.waits.size() && work_.waits[wait].updates_before <= updates_before; ++wait) {
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
    event.on_gpu = stride > 0 && (event.in_step + 1) % static_cast<std::uint32_t>(stride) == 0;
    const Moment there = available(update, event.on_gpu), here = before(update.at);
    event.moment = here >= there                               ? std::max(there, std::min(here, needed))
                   : problem_.workload.updates_wait() ? std::max(there, needed)
                                                               : there;
    event.moment = std::max(event.moment, floor);
    latest = std::max(latest, event.moment);
    const VisitId visit = std::min(event.moment / 2, end - 1);
    const Turn& turn = turns_[turn_of_[visit]];
    const Moment lead = 2 * (turn.end - turn.begin);
    event.earliest_read =
        plan_.optimizer.own_phase
            ? event.moment
            : std::max(floor, event.moment > lead ? event.moment - lead : 0);
    events_.push_back(event);
  }
  add_waits(work_.updates.size());
  std::stable_sort(events_.begin(), events_.end(),
                   [](const OptimizerEvent& a, const OptimizerEvent& b) {
                     return a.moment < b.moment;
                   });
}

}  // namespace spillway
