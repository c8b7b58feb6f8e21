#include "policies/movement/optimizer.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

Optimizer::Optimizer(Program& program, const Plan& plan, const Shards& shards,
                     const OrderOfWork& work, const Timetable& times, const StateSlots& slots,
                     Units& units, Gradients& gradients, const Parameters& parameters)
    : program_(program),
      plan_(plan),
      shards_(shards),
      work_(work),
      times_(times),
      slots_(slots),
      units_(units),
      gradients_(gradients),
      parameters_(parameters),
      state_ahead_(static_cast<std::size_t>(plan.optimizer_state.ahead)),
      to_spread_(units.size(), 0) {
  for (const OptimizerEvent& event : times.events()) {
    if (!event.is_wait) updates_.push_back(event);
  }
  find_state_reads();
  // One slot holds what is being updated.
  if (plan.optimizer_state.slots > 0)
    state_ahead_ = std::min(state_ahead_, static_cast<std::size_t>(plan.optimizer_state.slots) - 1);
  if (plan.optimizer.gpu_stride == 0) return;
  for (const OptimizerEvent& event : updates_) {
    if (event.on_gpu) for_pieces_of(event, [](int, Piece& piece) { piece.updates_on_gpu = true; });
  }
}

// -- optimizer state from the SSD -----------------------------------------------------------------

void Optimizer::find_state_reads() {
  std::vector<std::vector<std::size_t>> last;
  for (const Pieces& pieces : units_) last.emplace_back(pieces.size(), 0);
  for (std::size_t u = 0; u < updates_.size(); ++u) {
    std::size_t after = 0;
    for_pieces_of(updates_[u], [&](int unit, const Piece& piece) {
      const auto p = static_cast<std::size_t>(&piece - units_[unit_index(unit)].data());
      std::size_t& changed = last[unit_index(unit)][p];
      after = std::max(after, changed);
      changed = u + 1;
    });
    state_after_.push_back(after);
  }
}

// Reads ahead of update `current`, and not into slots that the step before still uses.
void Optimizer::read_ahead(Moment now, std::size_t current) {
  for (; next_state_ < updates_.size() && next_state_ < updated_ + state_ahead_; read_next()) {
    if (updates_[next_state_].earliest_read > now || !is_state_home(next_state_)) return;
    if (!slots_.host.empty() && gradient_step(next_state_) != gradient_step(current)) return;
  }
}

void Optimizer::read_next() {
  const OptimizerEvent& event = updates_[next_state_++];
  if (!slots_.host.empty()) {
    Slice slot = slots_.host[event.in_step % slots_.host.size()];
    for_pieces_of(event, [&](int unit, Piece& piece) {
      if (!is_drives(piece.state_at)) return;
      piece.fresh_state = slot.part(0, piece.state.bytes);
      slot.offset += piece.state.bytes;
      program_.copy(piece.state, piece.fresh_state, unit);
    });
    if (plan_.gradients.on_ssd) read_gradients(event, slot);
    return;
  }
  for_ranges_of(event, [&](const UpdateRange& range) {
    Pieces& pieces = units_[unit_index(range.unit)];
    read_pieces(program_, range.unit, piece_after(pieces, range.first),
                piece_after(pieces, range.first + range.elements), &Piece::state,
                &Piece::fresh_state, BufferKind::optimizer_state,
                [](const Piece& piece) { return !piece.frozen && is_drives(piece.state_at); });
  });
}

void Optimizer::read_gradients(const OptimizerEvent& event, Slice slot) {
  const std::uint64_t width = program_.problem().gradient_bytes();
  for_pieces_of(event, [&](int unit, Piece& piece) {
    piece.fresh_gradient = slot.part(0, piece.gradient_on_ssd.bytes);
    slot.offset += piece.gradient_on_ssd.bytes;
    program_.copy(piece.gradient_on_ssd, piece.fresh_gradient, unit);
    if (!piece.head_on_ssd.valid()) return;
    piece.fresh_head = slots_.head.part(piece.first * width, piece.head_on_ssd.bytes);
    program_.copy(piece.head_on_ssd, piece.fresh_head, unit);
  });
}

// -- updates --------------------------------------------------------------------------------------

void Optimizer::run(Moment now, int step) {
  const auto& events = times_.events();
  for (; next_event_ < events.size(); ++next_event_) {
    const OptimizerEvent& event = events[next_event_];
    if (event.moment > now || event.step > step) return;
    if (event.is_wait) {
      write_back();
      program_.barrier();
    } else {
      update(event);
    }
  }
}

void Optimizer::end_step(Moment now, int step) {
  if (plan_.optimizer.own_phase) program_.point(HostPoint::optimizer_begins);
  run(now, step);
  write_back();
  if (!plan_.optimizer.own_phase) return;
  state_leaves_gpu();
  program_.point(HostPoint::optimizer_ends);
}

void Optimizer::update(const OptimizerEvent& event) {
  const bool blocks = plan_.optimizer.blocking;
  // What the update before changed leaves under this one.
  const bool behind = plan_.optimizer_state.writes_behind && !plan_.optimizer_state.writes_at_once;
  if (blocks) program_.barrier();
  if (!behind) write_back();
  while (next_state_ <= updated_) read_next();
  program_.point(HostPoint::update_due);
  exchange_gpu_state(event);
  ++updated_;
  read_ahead(event.moment, updated_ - 1);
  const int step = work_.updates[event.update].gradient_step;
  for_ranges_of(event, [&](const UpdateRange& range) { gradients_.apply(range, step); });
  for_pieces_of(event, [&](int unit, Piece& piece) { update(unit, piece, event.on_gpu, step); });
  if (blocks) program_.barrier();
  program_.point(HostPoint::updated);
  if (event.on_gpu && !slots_.gpu.empty()) {
    spread(event);
    updated_on_gpu_ = event;
    return;
  }
  if (behind) write_back();
  written_ = event;
  const bool at_once = plan_.optimizer_state.slots == 0 || plan_.optimizer_state.writes_at_once;
  if (!blocks && at_once && !behind) write_back();
}

void Optimizer::update(int unit, Piece& piece, bool on_gpu, int gradient_step) {
  const std::uint64_t first = piece.first + (shards_.any() ? shards_.updated(unit).first : 0);
  if (on_gpu) {
    const Gradients::Operands gradient = gradients_.on_gpu(unit, piece);
    program_.optimizer(unit, first, piece.elements, gradient.own, gradient.head,
                       piece.state_at == Tier::gpu ? piece.state : piece.fresh_state,
                       piece.parameters, gradient_step);
    return;
  }
  const Gradients::Operands gradient = gradients_.in_host(unit, piece);
  const Slice state = is_drives(piece.state_at) ? piece.fresh_state : piece.state;
  SPILLWAY_ASSERT(state.valid(), "optimizer state is in host memory before it is updated");
  Slice result = piece.parameters;
  if (piece.parameters_at != Tier::host) {
    const std::uint64_t bytes = piece.parameters.bytes;
    piece.fresh_parameters =
        program_.buffer(Tier::host, bytes, BufferKind::parameters, unit).part(0, bytes);
    result = piece.fresh_parameters;
  }
  program_.optimizer(unit, first, piece.elements, gradient.own, gradient.head, state, result,
                     gradient_step);
}

void Optimizer::write_back() {
  if (!written_) return;
  const OptimizerEvent event = *written_;
  written_.reset();
  for_pieces_of(event, [&](int unit, const Piece& piece) {
    if (!event.on_gpu && piece.parameters_at != Tier::host)
      program_.copy(piece.fresh_parameters, piece.parameters, unit);
  });
  spread(event);
  program_.point(HostPoint::parameters_sent);
  for_pieces_of(event, [&](int unit, Piece& piece) {
    if (piece.fresh_state.valid()) program_.copy(piece.fresh_state, piece.state, unit);
    piece.fresh_state = {};
    if (piece.parameters_at == Tier::gpu || !parameters_.stays_in_host(unit))
      piece.fresh_parameters = {};
  });
  written_back_ = updated_;
  if (!plan_.optimizer_state.writes_behind) program_.point(HostPoint::state_sent);
}

// Parameters that were updated are on the GPU.
void Optimizer::spread(const OptimizerEvent& event) {
  if (!shards_.any()) return;
  const std::uint64_t width = program_.problem().parameter_bytes();
  for_ranges_of(event, [&](const UpdateRange& range) {
    const int unit = range.unit;
    std::uint64_t& count = to_spread_[unit_index(unit)];
    count += range.elements;
    if (count < shards_.most_updated(unit)) return;
    count = 0;
    if (!shards_.spreads(unit)) return;
    const ElementRange updated = shards_.updated(unit), kept = shards_.kept(unit);
    const Slice whole{units_[unit_index(unit)].front().parameters.buffer, 0, kept.elements * width};
    if (plan_.shards.broadcasts) return broadcast(unit, whole);
    program_.all_gather(Lane::ranks_spread, shards_.spread_group(unit),
                        whole.part((updated.first - kept.first) * width, updated.elements * width),
                        whole, unit);
  });
}

// Each rank's part of what all of a group keep of a unit, one after the other.
void Optimizer::broadcast(int unit, Slice whole) {
  const RankGroup& group = shards_.spread_group(unit);
  const std::uint64_t width = program_.problem().parameter_bytes();
  std::uint64_t at = 0;
  int from = 0;
  for (const std::uint64_t elements : part_elements(group, whole.bytes / width)) {
    const std::uint64_t bytes = elements * width;
    if (bytes > 0) program_.broadcast(Lane::ranks_spread, group, from, whole.part(at, bytes), unit);
    at += bytes;
    ++from;
  }
}

// -- optimizer state that rests in host memory, for updates on the GPU ----------------------------

// When the updates between two on the GPU begin, the state of the first leaves and that of the
// second arrives; in this order where there is memory for one.
void Optimizer::exchange_gpu_state(const OptimizerEvent& event) {
  const auto stride = static_cast<std::size_t>(plan_.optimizer.gpu_stride);
  if (slots_.gpu.empty() || event.in_step % stride != 0) return;
  if (slots_.gpu.size() == 1) state_leaves_gpu();
  const std::size_t next = updated_ + stride - 1;
  if (next < updates_.size() && gradient_step(next) == gradient_step(updated_)) {
    Slice slot = slots_.gpu[arrivals_++ % slots_.gpu.size()];
    for_pieces_of(updates_[next], [&](int unit, Piece& piece) {
      piece.fresh_state = slot.part(0, piece.state.bytes);
      slot.offset += piece.state.bytes;
      program_.copy(piece.state, piece.fresh_state, unit);
    });
  }
  if (slots_.gpu.size() > 1) state_leaves_gpu();
}

void Optimizer::state_leaves_gpu() {
  if (!updated_on_gpu_) return;
  for_pieces_of(*updated_on_gpu_, [&](int unit, Piece& piece) {
    program_.copy(piece.fresh_state, piece.state, unit);
    piece.fresh_state = {};
  });
  updated_on_gpu_.reset();
}

}  // namespace spillway
