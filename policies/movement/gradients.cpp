#include "policies/movement/gradients.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/stages.hpp"

namespace spillway {

namespace {

// Throws InputError where a plan does not keep what is summed on the GPU, in order.
void require_sums_in_order(const Workload& workload, const Plan& plan) {
  if (workload.ranks > 1 || workload.gradient_groups == 1) return;
  if (!plan.order.snake && plan.gradients.on_gpu) return;
  throw InputError("gradients in " + std::to_string(workload.gradient_groups) +
                       " groups are summed on the GPU, micro-batch after micro-batch; this policy "
                       "sums them otherwise",
                   "use policy resident, or leave " + Setting{"gradient_groups"} + " out");
}

}  // namespace

Gradients::Gradients(Program& program, const Plan& plan, const Shards& shards,
                     const OrderOfWork& work, const Timetable& times, const StateSlots& slots,
                     Units& units)
    : program_(program),
      plan_(plan),
      shards_(shards),
      work_(work),
      times_(times),
      units_(units),
      stages_(program, slots, units),
      first_backward_(static_cast<int>(first_backward_layer(program.problem().model))),
      groups_(program),
      gradients_(units.size()) {
  require_sums_in_order(program.problem().workload, plan);
  if (shards.any()) program.share_gradients(shard_group(shards.state()), shards.meshes());
}

// Memory for elements of a unit's gradient, of exactly their size.
Slice Gradients::buffer(Tier tier, int unit, std::uint64_t count, BufferKind kind) {
  const std::uint64_t bytes = count * width();
  return program_.buffer(tier, bytes, kind, unit).part(0, bytes);
}

// -- sums on the GPU ------------------------------------------------------------------------------

void Gradients::begin(int unit, int step) {
  Gradient& gradient = gradients_[unit_index(unit)];
  gradient = {};
  gradient.step = step;
}

Slice Gradients::accumulator(VisitId v) {
  const Visit& visit = work_.visits[v];
  Gradient& gradient = gradients_[unit_index(visit.layer)];
  if (visit.starts_sum) begin(visit.layer, visit.step);
  if (shards_.reduces_each(visit.layer)) {
    fresh_ = buffer(Tier::gpu, visit.layer, in_accumulator(visit.layer), BufferKind::gradient);
    return fresh_;
  }
  if (groups_.any()) return group_accumulator(v, visit.layer, BufferKind::gradient);
  if (!gradient.gpu.valid()) gradient.gpu = sum_buffer(visit.layer, BufferKind::gradient);
  return gradient.gpu;
}

// -- in groups of micro-batches -------------------------------------------------------------------

Slice Gradients::group_accumulator(VisitId v, int unit, BufferKind kind) {
  return groups_.accumulator(work_.visits[v], unit, kind, [&] { return sum_buffer(unit, kind); });
}

// What visit v has added to is complete in `sum` once all groups are in it.
void Gradients::add_group(VisitId v, int unit, BufferKind kind, Slice& sum) {
  if (!groups_.any()) return;
  const Slice complete = groups_.add(work_.visits[v], unit, kind);
  if (complete.valid()) sum = complete;
}

// Where the head is tied, the embedding's gradient begins with what the loss adds to it.
Slice Gradients::head_accumulator(VisitId v) {
  held_ = {};  // of the micro-batch before
  const Visit& visit = work_.visits[v];
  Gradient& whole = gradients_[unit_index(head())];
  Slice& sum = is_tied() ? whole.head : whole.gpu;
  if (visit.first_backward) begin(head(), visit.step);
  if (!is_trained(head())) return sum;
  if (groups_.any()) return group_accumulator(v, head(), of_head());
  if (!sum.valid()) sum = sum_buffer(head(), of_head());
  return sum;
}

Slice Gradients::embedding_accumulator(VisitId v) {
  const Visit& visit = work_.visits[v];
  if (visit.first_backward && (!is_tied() || !has_head(program_.problem().model)))
    begin(embedding(), visit.step);
  Gradient& whole = gradients_[unit_index(embedding())];
  if (groups_.any()) return group_accumulator(v, embedding(), BufferKind::gradient);
  if (visit.first_backward) whole.gpu = sum_buffer(embedding(), BufferKind::gradient);
  return whole.gpu;
}

// -- over the ranks -------------------------------------------------------------------------------

// A complete sum of this rank. Returns what it updates of the sum over all ranks.
Slice Gradients::add_up(int unit, Slice sum, BufferKind kind) {
  // Of shards, into which gradients are reduced after every micro-batch, on another lane than these
  // reductions, which do not wait for it (AMSP).
  const Lane lane = shards_.reduces_each(unit) ? Lane::ranks_spread : Lane::ranks_reduce;
  const ElementRange updated = shards_.updated(unit), summed = shards_.summed(unit);
  if (!plan_.shards.reduce_overlaps) program_.barrier({Lane::gpu_compute}, {lane});
  if (plan_.shards.all_reduce) {
    if (shards_.sync_group(unit).size() > 1)
      program_.all_reduce(lane, shards_.sync_group(unit), sum, unit);
    sum = sum.part((updated.first - summed.first) * width(), updated.elements * width());
  } else {
    if (shards_.scatter_group(unit).size() > 1) {
      const Slice part = buffer(Tier::gpu, unit, updated.elements, kind);
      program_.reduce_scatter(lane, shards_.scatter_group(unit), sum, part, false, unit);
      held_ = sum;
      sum = part;
    }
    if (shards_.copies_group().size() > 1)
      program_.all_reduce(lane, shards_.copies_group(), sum, unit);
  }
  if (!plan_.shards.reduce_overlaps) program_.barrier({lane}, {Lane::gpu_compute});
  return sum;
}

// The gradient of one micro-batch.
void Gradients::reduce_each(const Visit& visit, Slice sum) {
  constexpr Lane lane = Lane::ranks_reduce;
  const int unit = visit.layer;
  if (!plan_.shards.reduce_overlaps) program_.barrier({Lane::gpu_compute}, {lane});
  program_.reduce_scatter(lane, shards_.reduce_group(unit), fresh_, sum, !visit.starts_sum, unit,
                          visit.micro_batch);
  held_ = fresh_;
  if (!plan_.shards.reduce_overlaps) program_.barrier({lane}, {Lane::gpu_compute});
}

Slice Gradients::reduce(VisitId v) {
  const Visit& visit = work_.visits[v];
  Gradient& gradient = gradients_[unit_index(visit.layer)];
  add_group(v, visit.layer, BufferKind::gradient, gradient.gpu);
  if (!shards_.any() || !is_trained(visit.layer)) return gradient.gpu;
  if (shards_.reduces_each(visit.layer)) {
    if (!gradient.gpu.valid())
      gradient.gpu = buffer(Tier::gpu, visit.layer, in_sum(visit.layer), BufferKind::gradient);
    reduce_each(visit, gradient.gpu);
  }
  if (visit.completes_sum) {
    gradient.gpu = add_up(visit.layer, gradient.gpu, BufferKind::gradient);
    gradient.host.clear();  // held sums that were not complete
  }
  return gradient.gpu;
}

Slice Gradients::reduce_head(VisitId v) {
  Gradient& whole = gradients_[unit_index(head())];
  Slice& sum = is_tied() ? whole.head : whole.gpu;
  if (!is_trained(head())) return sum;
  add_group(v, head(), of_head(), sum);
  if (shards_.any() && work_.visits[v].last_backward) sum = add_up(head(), sum, of_head());
  return sum;
}

Slice Gradients::reduce_embedding(VisitId v) {
  Gradient& whole = gradients_[unit_index(embedding())];
  add_group(v, embedding(), BufferKind::gradient, whole.gpu);
  if (shards_.any() && work_.visits[v].last_backward)
    whole.gpu = add_up(embedding(), whole.gpu, BufferKind::gradient);
  return whole.gpu;
}

void Gradients::share_embedding(VisitId v) {
  const Problem& problem = program_.problem();
  if (!work_.visits[v].last_backward || !shares_embedding(problem.model)) return;
  const int unit = embedding(), last = static_cast<int>(problem.workload.pipeline) - 1;
  Gradient& whole = gradients_[unit_index(unit)];
  if (has_embedding(problem.model)) {
    whole.head = buffer(Tier::gpu, unit, in_sum(unit), BufferKind::head_gradient);
    // In the order of the other side: the sum of the head is complete first.
    program_.receive(Lane::stage_gradient_in, last, whole.head, unit);
    program_.send(Lane::stage_out, last, whole.gpu, unit);
  } else {
    whole.gpu = buffer(Tier::gpu, unit, in_sum(unit), BufferKind::gradient);
    program_.send(Lane::stage_gradient_out, 0, whole.head, unit);
    program_.receive(Lane::stage_in, 0, whole.gpu, unit);
  }
}

void Gradients::fetch(VisitId v) {
  const auto ahead = static_cast<VisitId>(plan_.gradients.gpu_ahead);
  for (VisitId use = v; use <= v + ahead; ++use) {
    if (use >= work_.visits.size()) continue;
    const Visit& visit = work_.visits[use];
    if (!adds_gradient(visit) || visit.starts_sum) continue;
    Gradient& gradient = gradients_[unit_index(visit.layer)];
    if (gradient.gpu.valid() || (gradient.host.empty() && !is_in_bucket(visit.layer))) continue;
    leave_now(visit.layer);
    if (is_in_bucket(visit.layer)) leave_together();
    gradient.gpu = buffer(Tier::gpu, visit.layer, in_sum(visit.layer), BufferKind::gradient);
    for (const HostGradient& part : gradient.host)
      program_.copy(part.own, gradient.gpu.part(part.first * width(), part.own.bytes), visit.layer);
  }
}

// -- from the GPU to host memory ------------------------------------------------------------------

// For `leaving` elements: this rank's part of a complete gradient in the parts of its updates, or
// a sum of more than that as a whole.
void Gradients::take_host_memory(int unit, std::uint64_t leaving) {
  Gradient& gradient = gradients_[unit_index(unit)];
  if (!gradient.host.empty()) return;
  if (leaving > elements(unit)) {
    gradient.host.push_back(
        {0, leaving, buffer(Tier::host, unit, leaving, BufferKind::gradient), {}});
    return;
  }
  const Pieces& pieces = units_[unit_index(unit)];
  for (std::size_t p = 0; p < pieces.size();) {
    if (pieces[p].updates_on_gpu || pieces[p].frozen) {
      ++p;
      continue;
    }
    HostGradient part;
    part.first = pieces[p].first;
    part.own = pieces[p].waiting;
    const auto continues = [&](const Piece& piece) {
      if (piece.updates_on_gpu || piece.frozen) return false;
      if (!part.own.valid() || !piece.waiting.valid())
        return part.own.valid() == piece.waiting.valid();
      return piece.waiting.buffer.id == part.own.buffer.id &&
             piece.waiting.offset == part.own.offset + part.elements * width();
    };
    do {
      part.elements += pieces[p++].elements;
    } while (p < pieces.size() && continues(pieces[p]));
    if (part.own.valid()) {
      part.own.bytes = part.elements * width();
    } else {
      part.own = buffer(Tier::host, unit, part.elements, BufferKind::gradient);
    }
    if (unit == embedding() && is_tied())
      part.head = buffer(Tier::host, unit, part.elements, BufferKind::head_gradient);
    gradient.host.push_back(part);
  }
}

// Elements [from, to) of a unit's sum leave the GPU.
void Gradients::copy_out(int unit, std::uint64_t from, std::uint64_t to, Slice gpu,
                         Slice HostGradient::*where) {
  take_host_memory(unit, to);  // pieces come after it was called for all of them
  for (const HostGradient& part : gradients_[unit_index(unit)].host) {
    const std::uint64_t low = std::max(from, part.first);
    const std::uint64_t high = std::min(to, part.first + part.elements);
    if (low >= high) continue;
    program_.copy(gpu.part(low * width(), (high - low) * width()),
                  (part.*where).part((low - part.first) * width(), (high - low) * width()), unit);
  }
}
// What the loss added to the head's gradient, or to the embedding's where the head is tied.
void Gradients::head_leaves() {
  const Gradient& whole = gradients_[unit_index(head())];
  copy_out(head(), 0, elements(head()), is_tied() ? whole.head : whole.gpu,
           is_tied() ? &HostGradient::head : &HostGradient::own);
}

void Gradients::leave(VisitId v) {
  if (plan_.gradients.bucket > 0) return leave_in_buckets(v);
  for (std::size_t k = 0; k < leaving_.size();) {
    Leaving& one = leaving_[k];
    if (v >= one.begin) advance(one, v + 1 - one.begin, one.end - one.begin);
    if (v + 1 >= one.end) {
      leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(k));
    } else {
      ++k;
    }
  }
}

void Gradients::own_leaves(VisitId v) {
  const Visit& visit = work_.visits[v];
  if (plan_.gradients.bucket > 0) return;
  if (adds_gradient(visit)) layer_leaves(v);
  if (visit.kind == VisitKind::last_layer && visit.last_backward &&
      plan_.gradients.head_waits == Tier::host && is_trained(head()) && !stays_on_gpu(head()))
    head_leaves();
}

void Gradients::layer_leaves(VisitId v) {
  const Visit& visit = work_.visits[v];
  const bool leaves =
      !stays_on_gpu(visit.layer) && (visit.completes_sum || !plan_.gradients.on_gpu);
  if (leaves && (visit.completes_sum || !times_.retained().gradient(v))) {
    Gradient& gradient = gradients_[unit_index(visit.layer)];
    const Timetable::Window window = times_.leaving_window(v);
    Leaving one{visit.layer, gradient.gpu, window.begin, window.end,
                visit.completes_sum ? elements(visit.layer) : in_sum(visit.layer)};
    take_host_memory(visit.layer, one.elements);
    if (window.begin == window.end) {
      advance(one, 1, 1);
    } else {
      leaving_.push_back(one);
    }
    if (!visit.completes_sum) gradient.gpu = {};
  }
}

// Of a gradient, `part` parts out of `of` have left.
void Gradients::advance(Leaving& one, std::uint64_t part, std::uint64_t of) {
  const std::uint64_t to =
      on_grid(one.elements, static_cast<double>(part) / static_cast<double>(of));
  if (to > one.done) copy_out(one.unit, one.done, to, one.gpu, &HostGradient::own);
  one.done = std::max(one.done, to);
}
void Gradients::leave_now(int unit) {
  for (std::size_t k = 0; k < leaving_.size(); ++k) {
    if (leaving_[k].unit != unit) continue;
    advance(leaving_[k], 1, 1);
    leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(k));
    return;
  }
}

void Gradients::embedding_leaves(VisitId v) {
  const Visit& visit = work_.visits[v];
  if (visit.layer > first_backward_ || !visit.last_backward || plan_.gradients.bucket > 0) return;
  Gradient& gradient = gradients_[unit_index(embedding())];
  const bool updates_on_gpu = stays_on_gpu(embedding());
  const bool head_waits_here = plan_.gradients.head_waits == Tier::gpu;
  if (!is_trained(embedding())) {
    if (is_trained(head()) && head_waits_here && !stays_on_gpu(head())) head_leaves();
    return;
  }
  const bool on_gpu = updates_on_gpu || head_waits_here || !is_tied();
  if (on_gpu) program_.gradient_complete(embedding(), gradient.gpu, gradient.head);
  if (updates_on_gpu) return;
  if (head_waits_here) head_leaves();
  copy_out(embedding(), 0, elements(embedding()), gradient.gpu, &HostGradient::own);
  // Each sum is in one buffer: the embedding has no delayed part apart.
  if (!on_gpu)
    program_.gradient_complete(embedding(), gradient.host.front().own, gradient.host.front().head);
}

// -- in buckets -----------------------------------------------------------------------------------

bool Gradients::is_in_bucket(int unit) const {
  return std::any_of(bucket_.begin(), bucket_.end(),
                     [&](const Leaving& one) { return one.unit == unit; });
}

void Gradients::leave_in_buckets(VisitId v) {
  const Visit& visit = work_.visits[v];
  if (!adds_gradient(visit)) return;
  const std::uint64_t size = visit.completes_sum ? elements(visit.layer) : in_sum(visit.layer);
  const bool stays =
      !visit.completes_sum && (plan_.gradients.on_gpu || times_.retained().gradient(v));
  if (!bucket_.empty() && !stays && bucket_elements_ + size > plan_.gradients.bucket)
    leave_together();
  bucket_is_complete_ = visit.completes_sum;
  if (!stays) {
    Gradient& gradient = gradients_[unit_index(visit.layer)];
    bucket_.push_back({visit.layer, gradient.gpu, 0, 0, size});
    bucket_elements_ += size;
    if (!visit.completes_sum) gradient.gpu = {};
  }
  if (visit.layer > first_backward_) return;
  const Gradient& whole = gradients_[unit_index(embedding())];
  if (visit.completes_sum && is_trained(embedding()))
    program_.gradient_complete(embedding(), whole.gpu, whole.head);
  leave_together();
  if (!visit.completes_sum) return;
  program_.point(HostPoint::gradients_leave);
  if (!is_tied() && is_trained(head()))
    leave_complete(head(), gradients_[unit_index(head())].gpu, {});
  if (is_trained(embedding())) leave_complete(embedding(), whole.gpu, whole.head);
  stages_.write();
}

// All that is in the bucket leaves.
void Gradients::leave_together() {
  if (bucket_is_complete_) program_.point(HostPoint::gradients_leave);
  for (const Leaving& one : bucket_) {
    // A sum of a whole unit, which several ranks have, is not complete.
    if (bucket_is_complete_ && one.elements == elements(one.unit))
      leave_complete(one.unit, one.gpu, {});
    else
      copy_out(one.unit, 0, one.elements, one.gpu, &HostGradient::own);
  }
  if (bucket_is_complete_) stages_.write();
  bucket_.clear();
  bucket_elements_ = 0;
}

void Gradients::leave_complete(int unit, Slice gpu, Slice head) {
  if (!plan_.gradients.on_ssd) {
    copy_out(unit, 0, elements(unit), gpu, &HostGradient::own);
    if (head.valid()) copy_out(unit, 0, elements(unit), head, &HostGradient::head);
    return;
  }
  stages_.stage(unit, gpu, BufferKind::gradient, &Piece::gradient_on_ssd);
  if (head.valid()) stages_.stage(unit, head, BufferKind::head_gradient, &Piece::head_on_ssd);
}

// -- for updates ----------------------------------------------------------------------------------

bool Gradients::is_applied(int unit, std::uint64_t element) const {
  return gradients_[unit_index(unit)].applied.contains(element);
}

void Gradients::apply(const UpdateRange& range, int step) {
  Gradient& gradient = gradients_[unit_index(range.unit)];
  SPILLWAY_ASSERT(gradient.step == step, "an update has its gradient");
  gradient.applied.add(range.first, range.first + range.elements);
}

Gradients::Operands Gradients::on_gpu(int unit, const Piece& piece) const {
  const Gradient& gradient = gradients_[unit_index(unit)];
  const auto part = [&](Slice whole) {
    return whole.valid() ? whole.part(piece.first * width(), piece.elements * width()) : whole;
  };
  return {part(gradient.gpu), part(gradient.head)};
}

Gradients::Operands Gradients::in_host(int unit, const Piece& piece) const {
  if (piece.fresh_gradient.valid()) return {piece.fresh_gradient, piece.fresh_head};
  const auto& host = gradients_[unit_index(unit)].host;
  const auto found = std::find_if(host.begin(), host.end(), [&](const auto& part) {
    return piece.first >= part.first && piece.first < part.first + part.elements;
  });
  SPILLWAY_ASSERT(found != host.end(), "a gradient is in host memory before it is applied there");
  const HostGradient& whole = *found;
  const auto part = [&](Slice slice) {
    return slice.valid()
               ? slice.part((piece.first - whole.first) * width(), piece.elements * width())
               : slice;
  };
  return {part(whole.own), part(whole.head)};
}

}  // namespace spillway
