#include "policies/movement/parameter_window.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "policies/model/tensors.hpp"

namespace spillway {

namespace {

// The pieces of each tensor joined that rest in one memory, one after the other.
Units joined_by_tensor(const ModelSpec& model, const Units& units) {
  Units joined;
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    const std::vector<TensorRange> tensors = unit_tensors(model, static_cast<int>(unit));
    const auto is_begin = [&](std::uint64_t element) {
      return std::any_of(tensors.begin(), tensors.end(),
                         [&](const TensorRange& tensor) { return tensor.first == element; });
    };
    Pieces& all = joined.emplace_back();
    for (const Piece& piece : units[unit]) {
      if (all.empty() || is_begin(piece.first) || piece.parameters_at != all.back().parameters_at) {
        all.push_back(piece);
      } else {
        all.back().elements += piece.elements;
        all.back().parameters.bytes += piece.parameters.bytes;
      }
    }
  }
  return joined;
}

}  // namespace

ParameterWindow::ParameterWindow(Program& program, const ParameterAhead& ahead,
                                 const Timetable& times, const Units& units)
    : program_(program),
      ahead_(ahead),
      uses_(times.uses()),
      retained_(times.retained()),
      units_(joined_by_tensor(program.problem().model, units)),
      residence_(units.size()),
      gpu_(units.size()),
      gpu_stay_(units.size(), no_stay) {
  const ModelSpec& model = program.problem().model;
  const std::size_t feed_forward = model.architecture == Architecture::gpt ? 2 : 4;
  const std::vector<TensorRange> tensors = unit_tensors(model, 0);
  const auto adapters = model.has_adapters()
                            ? static_cast<std::uint64_t>(trained_elements(model, 0))
                            : std::uint64_t{0};
  const auto first = std::find_if(tensors.begin(), tensors.end(), [&](const TensorRange& tensor) {
    return tensor.first >= adapters;
  });
  if (feed_forward < static_cast<std::size_t>(tensors.end() - first))
    second_norm_ = first[static_cast<std::ptrdiff_t>(feed_forward)].first;
  find_stays();
  take_slots();
}

void ParameterWindow::find_stays() {
  std::vector<bool> visited(units_.size(), false);  // by layer: in this micro-batch
  const auto add = [&](const Turn& turn, bool backward) {
    const bool begins = !stays_.empty() && !backward &&
                        (stays_.back().backward || turn.layer <= stays_.back().layer);
    const std::uint32_t micro_batch = stays_.empty() ? 0 : stays_.back().micro_batch + begins;
    stays_.push_back({turn.layer, backward, false, micro_batch});
  };
  for (const Turn& turn : uses_.turns()) {
    const auto layer = static_cast<std::size_t>(turn.layer);
    stay_of_.push_back(static_cast<std::uint32_t>(stays_.size()));
    if (!turn.needs_parameters) continue;
    if (!turn.backward || !visited[layer]) add(turn, false);
    if (turn.backward) add(turn, true);
    stays_.back().stays = retained_.parameters(turn.end - 1);
    visited[layer] = !turn.backward;
  }
  const auto count = static_cast<std::uint32_t>(stays_.size());
  previous_.assign(count, no_stay);
  following_.assign(count, no_stay);
  used_before_.assign(count + std::size_t{1}, 0);
  std::vector<std::uint32_t> last(units_.size(), no_stay);
  for (std::uint32_t s = 0; s < count; ++s) {
    std::uint32_t& before = last[static_cast<std::size_t>(stays_[s].layer)];
    previous_[s] = before;
    if (before != no_stay) following_[before] = s;
    // In backward twice, to recompute and to differentiate.
    used_before_[s + 1] = used_before_[s] + (stays_[s].backward ? 2 : 1) * pieces(s).back().end();
    before = s;
  }
}

// Each of the largest tensor that rests on the SSD.
void ParameterWindow::take_slots() {
  std::uint64_t most = 0;
  for (const Pieces& unit : units_) {
    for (const Piece& piece : unit) {
      if (is_drives(piece.parameters_at)) most = std::max(most, piece.parameters.bytes);
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
  const auto count = static_cast<std::uint32_t>(stays_.size());
  for (end_ = first; end_ < count && (end_ == first || !begins(end_)); ++end_) {
    const Pieces& all = pieces(end_);
    for (std::uint32_t p = 0; p < all.size(); ++p) {
      if (all[p].parameters_at != Tier::gpu) trace_.push_back({end_, p});
    }
  }
  next_ = 0;
  on_gpu_ = in_flight_ = 0;  // what stays on the GPU is not counted
  taken_.assign(slots_.size(), false);
  reads_under_way_ = false;
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    Residence begin;
    begin.on_gpu = gpu_stay_[unit] != no_stay && stays_[gpu_stay_[unit]].stays;
    residence_[unit].assign(units_[unit].size(), begin);
  }
}

Slice ParameterWindow::use_in(std::uint32_t stay) {
  const auto unit = static_cast<std::size_t>(stays_[stay].layer);
  if (stay <= now_ && now_ != no_stay) return gpu_[unit];
  if (now_ == no_stay || stay == end_) begin_micro_batch(stay);
  now_ = stay;
  const Slice whole = gpu_memory(stay);
  for (std::uint32_t p = 0; p < pieces(stay).size(); ++p) {
    const Use use{stay, p};
    if (begins_with_norm(use)) look_ahead(use);
    Residence& here = residence(use);
    if (!here.on_gpu) copy(use);
    while (next_ < trace_.size() &&
           (trace_[next_].stay < stay || (trace_[next_].stay == stay && trace_[next_].piece <= p)))
      ++next_;
    program_.point(HostPoint::parameters_due);
    if (here.in_flight) in_flight_ -= elements(use);
    here.in_flight = false;
    look_ahead(use);
    drop(use);
  }
  return whole;
}

bool ParameterWindow::begins_with_norm(const Use& use) const {
  return use.piece == 0 || (second_norm_ > 0 && piece(use).first == second_norm_);
}

bool ParameterWindow::is_kept(std::uint32_t s, std::uint32_t piece) const {
  return stays_[s].stays || is_used_soon(s, piece);
}

// Whether it is used again within the reuse distance.
bool ParameterWindow::is_used_soon(std::uint32_t s, std::uint32_t piece) const {
  const std::uint32_t again = following_[s];
  if (again == no_stay || stays_[again].micro_batch != stays_[s].micro_batch) return false;
  const Pieces& own = pieces(s);
  const std::uint64_t between = used_before_[again] - used_before_[s + 1];
  return own.back().end() - own[piece].elements + between < ahead_.reuse_distance;
}

// A buffer for each use, unless something is kept from one to the next.
Slice ParameterWindow::gpu_memory(std::uint32_t s) {
  const auto unit = static_cast<std::size_t>(stays_[s].layer);
  if (gpu_stay_[unit] == s) return gpu_[unit];
  const std::uint32_t before = previous_[s];
  bool keeps = false;
  for (std::uint32_t p = 0; before != no_stay && p < pieces(s).size(); ++p)
    keeps = keeps || is_kept(before, p);
  gpu_stay_[unit] = s;
  if (keeps) return gpu_[unit];
  const std::uint64_t bytes = units_[unit].back().end() * program_.problem().parameter_bytes();
  gpu_[unit] =
      program_.buffer(Tier::gpu, bytes, BufferKind::parameters, stays_[s].layer).part(0, bytes);
  return gpu_[unit];
}

void ParameterWindow::look_ahead(const Use& current) {
  if (ahead_.bucket == 0) return;
  copy_ahead(current);
  read_ahead(current);
}

// What is dropped after a use that is still to come is fetched again only then.
bool ParameterWindow::ends_look_ahead(const Use& current, const Use& use) const {
  const std::uint32_t before = previous_[use.stay];
  return before != no_stay && before >= current.stay && !is_kept(before, use.piece);
}

void ParameterWindow::copy_ahead(const Use& current) {
  const std::uint64_t room = ahead_.most_on_gpu > on_gpu_ ? ahead_.most_on_gpu - on_gpu_ : 0;
  const std::uint64_t budget = std::min(ahead_.bucket, room);
  for (std::uint64_t copied = 0; next_ < trace_.size() && copied < budget; ++next_) {
    const Use& use = trace_[next_];
    if (ends_look_ahead(current, use)) return;
    Residence& here = residence(use);
    if (here.on_gpu) continue;
    if (is_drives(piece(use).parameters_at) && !here.host.valid()) return;
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
    if (is_drives(piece(use).parameters_at) && !here.on_gpu && !here.host.valid()) read(use);
    considered += elements(use);
  }
}

void ParameterWindow::copy(const Use& use) {
  const Piece& tensor = piece(use);
  Residence& here = residence(use);
  if (is_drives(tensor.parameters_at)) {
    if (!here.host.valid()) read(use);
    if (reads_under_way_) program_.point(HostPoint::parameters_read);
    reads_under_way_ = false;
  }
  const std::uint64_t width = program_.problem().parameter_bytes();
  const Slice gpu = gpu_memory(use.stay);
  program_.copy(is_drives(tensor.parameters_at) ? here.host : tensor.parameters,
                gpu.part(tensor.first * width, tensor.elements * width), stays_[use.stay].layer);
  here.on_gpu = here.counts = true;
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
  program_.copy(tensor.parameters, here.host, stays_[use.stay].layer);
  reads_under_way_ = true;
}

void ParameterWindow::drop(const Use& use) {
  Residence& here = residence(use);
  if (here.host.valid()) taken_[here.slot] = false;
  here.host = {};
  if (is_used_soon(use.stay, use.piece)) return;
  here.on_gpu = stays_[use.stay].stays;
  if (here.counts) on_gpu_ -= elements(use);
  here.counts = false;
}

}  // namespace spillway
