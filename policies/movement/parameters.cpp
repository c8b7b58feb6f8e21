#include "policies/movement/parameters.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace spillway {

Parameters::Parameters(Program& program, const Plan& plan, const Shards& shards,
                       const OrderOfWork& work, const Timetable& times, const Gradients& gradients,
                       Units& units)
    : program_(program),
      plan_(plan),
      shards_(shards),
      work_(work),
      times_(times),
      gradients_(gradients),
      units_(units),
      on_gpu_(units.size()),
      second_(units.size()) {
  if (plan.parameters.by_tensor) window_.emplace(program, plan.parameters.tensors, times, units);
}

void Parameters::fetch(VisitId v) {
  if (window_) return;
  const auto& fetches = times_.fetches();
  for (; next_read_ < fetches.size() && fetches[next_read_].read_at <= v; ++next_read_)
    read(fetches[next_read_]);
  if (next_use_ < fetches.size() && fetches[next_use_].use == v) use();
  copy_ahead(v, true);
}

void Parameters::fetch_tensors(VisitId v) {
  const int layer = work_.visits[v].layer;
  if (window_ && !rests_on_gpu(layer)) on_gpu_[unit_index(layer)] = window_->use(v);
}

Slice Parameters::of(int unit) const {
  return is_there(unit) ? kept(unit) : on_gpu_[unit_index(unit)];
}

// What rests on the GPU of a unit is in one buffer, in order.
Slice Parameters::kept(int unit) const {
  const Slice first = units_[unit_index(unit)].front().parameters;
  const std::uint64_t count = shards_.kept(unit).elements + shards_.kept_frozen(unit).elements;
  return {first.buffer, 0, count * width()};
}

Slice Parameters::for_backward(VisitId v) {
  const int layer = work_.visits[v].layer;
  return window_ && !rests_on_gpu(layer) ? window_->use_again(v) : of(layer);
}

// Whether an update that comes before the use has not been emitted yet: its result is what is
// fetched, and the copy waits for it.
bool Parameters::is_stale(const ParameterFetch& fetch) const {
  return gradients_.is_unapplied(fetch.unit, work_.visits[fetch.use].step);
}
bool Parameters::is_waiting(const ParameterFetch& fetch, const Piece& piece) const {
  return !piece.frozen && is_stale(fetch) && !gradients_.is_applied(fetch.unit, piece.first);
}

// Whether one of the uses from `f` on would have its parameters read from the SSD by now.
bool Parameters::is_read_by_now(int unit, std::size_t f) const {
  const auto& fetches = times_.fetches();
  for (; f < fetches.size() && fetches[f].read_at <= now_; ++f) {
    if (fetches[f].unit == unit) return true;
  }
  return false;
}

// What rests on the SSD and is not in host memory.
void Parameters::read(const ParameterFetch& fetch) {
  if (rests_on_gpu(fetch.unit)) return;
  Pieces& pieces = units_[unit_index(fetch.unit)];
  read_pieces(program_, fetch.unit, pieces.begin(), pieces.end(), &Piece::parameters,
              &Piece::fresh_parameters, BufferKind::parameters, [&](const Piece& piece) {
                return is_drives(piece.parameters_at) && !is_waiting(fetch, piece);
              });
}

// Parameters for later turns that cross under visit v: those of a layer that do so as a whole, or
// those that do so in pieces.
void Parameters::copy_ahead(VisitId v, bool whole) {
  if (window_) return;
  const auto& fetches = times_.fetches();
  for (std::size_t f = next_use_; f < fetches.size() && fetches[f].copy_begin <= v; ++f) {
    if (v >= fetches[f].copy_end || is_stale(fetches[f])) continue;
    if ((fetches[f].copy_end - fetches[f].copy_begin == 1) != whole) continue;
    const auto share = static_cast<double>(v + 1 - fetches[f].copy_begin) /
                       static_cast<double>(fetches[f].copy_end - fetches[f].copy_begin);
    copy(f, share);
  }
}

// The first elements of what use `f` needs cross to the GPU, so large a share of them.
void Parameters::copy(std::size_t f, double share) {
  const ParameterFetch& fetch = times_.fetches()[f];
  if (is_there(fetch.unit)) return;
  if (arriving_.size() <= f - next_use_) arriving_.resize(f - next_use_ + 1);
  Arriving& arriving = arriving_[f - next_use_];
  if (arriving.whole.valid()) return;
  if (rests_on_gpu(fetch.unit)) {
    arriving.copied = kept(fetch.unit);
    return gather(fetch, arriving);
  }
  const std::uint64_t to = on_grid(elements(fetch.unit), share);
  if (arriving.arrived == 0 && to > 0) {
    read(fetch);
    arriving.copied = gpu_buffer(fetch.unit, elements(fetch.unit));
  }
  if (to > arriving.arrived) upload(fetch.unit, arriving.arrived, to, arriving.copied);
  arriving.arrived = std::max(arriving.arrived, to);
  const bool has_arrived = shards_.any() ? share >= 1 : to == elements(fetch.unit);
  if (!has_arrived) return;
  gather(fetch, arriving);
  if (stays_in_host(fetch.unit, f + 1)) return;
  for (Piece& piece : units_[unit_index(fetch.unit)]) piece.fresh_parameters = {};
}

Slice Parameters::gpu_buffer(int unit, std::uint64_t count) {
  const std::uint64_t bytes = count * width();
  return program_.buffer(Tier::gpu, bytes, BufferKind::parameters, unit).part(0, bytes);
}

// What was copied is all there is of this rank's.
void Parameters::gather(const ParameterFetch& fetch, Arriving& arriving) {
  constexpr Lane lane = Lane::ranks_gather;
  const int unit = fetch.unit;
  arriving.whole = arriving.copied;
  if (!shards_.gathers(unit)) return;
  if (!plan_.shards.gather_overlaps) program_.barrier({Lane::gpu_compute}, {lane});
  const ElementRange trained = shards_.trained(unit), frozen = shards_.frozen(unit);
  OfUnit part{arriving.copied, shards_.kept(unit).elements};
  if (shards_.keeps_second(unit)) {
    OfUnit& second = second_[unit_index(unit)];
    if (work_.visits[fetch.use].kind != VisitKind::backward)
      second = gathered(unit, shards_.second_group(unit), part, shards_.second_of(trained).elements,
                        shards_.second_of(frozen).elements);
    part = second;
  }
  arriving.whole =
      gathered(unit, shards_.gather_group(unit), part, trained.elements, frozen.elements).all;
  if (!plan_.shards.gather_overlaps) program_.barrier({lane}, {Lane::gpu_compute});
}

// What the ranks of a group have parts of, each of what is trained and of what is frozen.
Parameters::OfUnit Parameters::gathered(int unit, const RankGroup& group, const OfUnit& part,
                                        std::uint64_t trained, std::uint64_t frozen) {
  if (group.size() == 1) return part;
  const OfUnit whole{gpu_buffer(unit, trained + frozen), trained};
  const std::uint64_t in_part = part.trained * width(), in_whole = trained * width();
  if (trained > 0)
    program_.all_gather(Lane::ranks_gather, group, part.all.part(0, in_part),
                        whole.all.part(0, in_whole), unit);
  if (frozen > 0)
    program_.all_gather(Lane::ranks_gather, group, part.all.part(in_part, part.all.bytes - in_part),
                        whole.all.part(in_whole, frozen * width()), unit);
  return whole;
}

// Neighbours in one buffer go in one copy.
void Parameters::upload(int unit, std::uint64_t from, std::uint64_t to, Slice gpu) {
  Slice source;
  std::uint64_t begin = from;
  const auto flush = [&] {
    if (source.valid()) program_.copy(source, gpu.part(begin * width(), source.bytes), unit);
  };
  const Pieces& pieces = units_[unit_index(unit)];
  auto piece = piece_after(pieces, from);
  for (; piece != pieces.end() && piece->first < to; ++piece) {
    const std::uint64_t low = std::max(from, piece->first), high = std::min(to, piece->end());
    const Slice host =
        piece->parameters_at == Tier::host ? piece->parameters : piece->fresh_parameters;
    SPILLWAY_ASSERT(host.valid(), "parameters are in host memory before they cross to the GPU");
    const Slice part = host.part((low - piece->first) * width(), (high - low) * width());
    if (source.valid() && source.buffer.id == part.buffer.id &&
        source.offset + source.bytes == part.offset) {
      source.bytes += part.bytes;
      continue;
    }
    flush();
    source = part;
    begin = low;
  }
  flush();
}

void Parameters::use() {
  const int unit = times_.fetches()[next_use_].unit;
  SPILLWAY_ASSERT(!is_stale(times_.fetches()[next_use_]), "parameters are current when used");
  copy(next_use_, 1);
  if (!is_there(unit)) on_gpu_[unit_index(unit)] = arriving_.front().whole;
  if (!arriving_.empty()) arriving_.pop_front();
  ++next_use_;
}

}  // namespace spillway
