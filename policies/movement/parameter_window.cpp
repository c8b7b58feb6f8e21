#include "policies/movement/parameter_window.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/tensors.hpp"

namespace spillway {

ParameterWindow::ParameterWindow(Program& program, const ParameterAhead& ahead,
                                 const Timetable& times, const std::vector<Pieces>& units)
    : program_(program),
      ahead_(ahead),
      times_(times),
      units_(units),
      residence_(units.size()),
      gpu_(units.size()),
      gpu_turn_(units.size(), no_turn) {
  const ModelSpec& model = program.problem().model;
  const std::size_t feed_forward = model.architecture == Architecture::gpt ? 2 : 4;
  const std::vector<TensorRun> tensors = unit_tensors(model, 0);
  if (feed_forward < tensors.size()) second_norm_ = tensors[feed_forward].first;
  const auto count = static_cast<std::uint32_t>(times.turns().size());
  previous_.assign(count, no_turn);
  following_.assign(count, no_turn);
  used_before_.assign(count + std::size_t{1}, 0);
  std::vector<std::uint32_t> last(units.size(), no_turn);
  for (std::uint32_t t = 0; t < count; ++t) {
    if (t > 0 && !turn(t).backward && turn(t - 1).backward) last.assign(units.size(), no_turn);
    std::uint32_t& before = last[static_cast<std::size_t>(turn(t).layer)];
    previous_[t] = before;
    if (before != no_turn) following_[before] = t;
    // In backward twice, to recompute and to differentiate.
    const std::uint64_t times_used = !turn(t).backward ? 1 : before == no_turn ? 3 : 2;
    used_before_[t + 1] = used_before_[t] + times_used * pieces(t).back().end();
    before = t;
  }
  take_slots();
}

// Each of the largest tensor that rests on the SSD.
void ParameterWindow::take_slots() {
  std::uint64_t most = 0;
  for (const Pieces& unit : units_) {
    for (const Piece& piece : unit) {
      if (piece.parameters_at == Tier::ssd) most = std::max(most, piece.parameters.bytes);
    }
  }
  for (int slot = 0; most > 0 && slot < ahead_.most_in_host; ++slot)
    slots_.push_back(program_.persistent(Tier::host, most, BufferKind::parameters));
}

std::size_t ParameterWindow::free_slot() const {
  return static_cast<std::size_t>(std::find(taken_.begin(), taken_.end(), false) - taken_.begin());
}

void ParameterWindow::begin_micro_batch(std::uint32_t first) {
  trace_.clear();
  const auto count = static_cast<std::uint32_t>(times_.turns().size());
  for (end_ = first; end_ < count; ++end_) {
    if (end_ > first && !turn(end_).backward && turn(end_ - 1).backward) break;
    const Pieces& all = pieces(end_);
    for (std::uint32_t p = 0; p < all.size(); ++p) {
      if (all[p].parameters_at != Tier::gpu) trace_.push_back({end_, p});
    }
  }
  next_ = 0;
  on_gpu_ = in_flight_ = 0;
  taken_.assign(slots_.size(), false);
  reads_under_way_ = false;
  for (std::size_t unit = 0; unit < units_.size(); ++unit)
    residence_[unit].assign(units_[unit].size(), {});
}

Slice ParameterWindow::use(VisitId v) {
  const std::uint32_t t = times_.turn_of(v);
  const auto unit = static_cast<std::size_t>(turn(t).layer);
  if (t == now_) return gpu_[unit];
  if (now_ == no_turn || t == end_) begin_micro_batch(t);
  now_ = t;
  const Slice whole = gpu_memory(t);
  for (std::uint32_t p = 0; p < pieces(t).size(); ++p) {
    const Use use{t, p};
    if (begins_with_norm(use)) look_ahead(use);
    Residence& here = residence(use);
    if (!here.on_gpu) copy(use);
    while (next_ < trace_.size() &&
           (trace_[next_].turn < t || (trace_[next_].turn == t && trace_[next_].piece <= p)))
      ++next_;
    program_.point(HostPoint::parameters_due);
    if (here.in_flight) in_flight_ -= elements(use);
    here.in_flight = false;
    look_ahead(use);
    drop(use);
  }
  return whole;
}

void ParameterWindow::use_again(VisitId v) {
  const std::uint32_t t = times_.turn_of(v);
  for (std::uint32_t p = 0; p < pieces(t).size(); ++p) {
    if (begins_with_norm({t, p})) look_ahead({t, p});
    program_.point(HostPoint::parameters_due);
    look_ahead({t, p});
  }
}

bool ParameterWindow::begins_with_norm(const Use& use) const {
  return use.piece == 0 || (second_norm_ > 0 && piece(use).first == second_norm_);
}

bool ParameterWindow::is_kept(std::uint32_t t, std::uint32_t piece) const {
  const std::uint32_t again = following_[t];
  if (again == no_turn) return false;
  const Pieces& own = pieces(t);
  const std::uint64_t between = used_before_[again] - used_before_[t + 1];
  return own.back().end() - own[piece].elements + between < ahead_.reuse_distance;
}

// A buffer for each use, unless something is kept from one to the next.
Slice ParameterWindow::gpu_memory(std::uint32_t t) {
  const auto unit = static_cast<std::size_t>(turn(t).layer);
  if (gpu_turn_[unit] == t) return gpu_[unit];
  const std::uint32_t before = previous_[t];
  bool keeps = false;
  for (std::uint32_t p = 0; before != no_turn && p < pieces(t).size(); ++p)
    keeps = keeps || is_kept(before, p);
  gpu_turn_[unit] = t;
  if (keeps) return gpu_[unit];
  const std::uint64_t bytes = units_[unit].back().end() * program_.problem().parameter_bytes();
  gpu_[unit] = program_.buffer(Tier::gpu, bytes, BufferKind::parameters, turn(t).layer).part(0, bytes);
  return gpu_[unit];
}

void ParameterWindow::look_ahead(const Use& current) {
  if (ahead_.bucket == 0) return;
  copy_ahead(current);
  read_ahead(current);
}

// What is dropped after a use that is still to come is fetched again only then.
bool ParameterWindow::ends_look_ahead(const Use& current, const Use& use) const {
  const std::uint32_t before = previous_[use.turn];
  return before != no_turn && before >= current.turn && !is_kept(before, use.piece);
}

void ParameterWindow::copy_ahead(const Use& current) {
  const std::uint64_t room = ahead_.most_on_gpu > on_gpu_ ? ahead_.most_on_gpu - on_gpu_ : 0;
  const std::uint64_t budget = std::min(ahead_.bucket, room);
  for (std::uint64_t copied = 0; next_ < trace_.size() && copied < budget; ++next_) {
    const Use& use = trace_[next_];
    if (ends_look_ahead(current, use)) return;
    Residence& here = residence(use);
    if (here.on_gpu) continue;
    if (piece(use).parameters_at == Tier::ssd && !here.host.valid()) return;
    copy(use);
    here.in_flight = true;
    in_flight_ += elements(use);
    copied += elements(use);
  }
}

void ParameterWindow::read_ahead(const Use& current) {
  std::uint64_t considered = 0;
  for (std::size_t k = next_; k < trace_.size(); ++k) {
    const Use& use = trace_[k];
    if (considered > 2 * in_flight_ || free_slot() == slots_.size() ||
        ends_look_ahead(current, use))
      return;
    Residence& here = residence(use);
    if (piece(use).parameters_at == Tier::ssd && !here.on_gpu && !here.host.valid()) read(use);
    considered += elements(use);
  }
}

void ParameterWindow::copy(const Use& use) {
  const Piece& tensor = piece(use);
  Residence& here = residence(use);
  if (tensor.parameters_at == Tier::ssd) {
    if (!here.host.valid()) read(use);
    if (reads_under_way_) program_.point(HostPoint::parameters_read);
    reads_under_way_ = false;
  }
  const std::uint64_t width = program_.problem().parameter_bytes();
  const Slice gpu = gpu_memory(use.turn);
  program_.copy(tensor.parameters_at == Tier::ssd ? here.host : tensor.parameters,
                gpu.part(tensor.first * width, tensor.elements * width), turn(use.turn).layer);
  here.on_gpu = true;
  on_gpu_ += tensor.elements;
}

void ParameterWindow::read(const Use& use) {
  const Piece& tensor = piece(use);
  const std::size_t slot = free_slot();
  SPILLWAY_ASSERT(slot < slots_.size(), "a tensor is read ahead of the one that is needed");
  taken_[slot] = true;
  Residence& here = residence(use);
  here.slot = slot;
  here.host = slots_[slot].part(0, tensor.parameters.bytes);
  program_.copy(tensor.parameters, here.host, turn(use.turn).layer);
  reads_under_way_ = true;
}

void ParameterWindow::drop(const Use& use) {
  Residence& here = residence(use);
  if (here.host.valid()) taken_[here.slot] = false;
  here.host = {};
  if (is_kept(use.turn, use.piece)) return;
  here.on_gpu = false;
  on_gpu_ -= elements(use);
}

}  // namespace spillway
