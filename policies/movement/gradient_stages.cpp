#include "policies/movement/gradient_stages.hpp"

#include <array>

namespace spillway {

void GradientStages::stage(int unit, Slice gpu, BufferKind kind, Slice Piece::*home) {
  const std::uint64_t width = program_.problem().gradient_bytes();
  Pieces& pieces = units_[unit_index(unit)];
  // Beside the optimizer state of the same elements, where that is on drives.
  const auto set_of = [](const Piece& piece) {
    return static_cast<std::size_t>(is_drives(piece.state_at) ? drive_set(piece.state_at) : 0);
  };
  std::array<std::uint64_t, most_drive_sets> bytes_of_set{};
  for (const Piece& piece : pieces) {
    if (!piece.frozen) bytes_of_set[set_of(piece)] += piece.elements * width;
  }
  std::array<Slice, most_drive_sets> of_set;
  for (std::size_t set = 0; set < of_set.size(); ++set) {
    if (const std::uint64_t bytes = bytes_of_set[set]; bytes > 0)
      of_set[set] =
          program_.buffer(drives_tier(static_cast<int>(set)), bytes, kind, unit).part(0, bytes);
  }
  for (Piece& piece : pieces) {
    if (piece.frozen) continue;
    const std::uint64_t bytes = piece.elements * width;
    Slice& ssd = of_set[set_of(piece)];
    const Slice host = memory(bytes);
    program_.copy(gpu.part(piece.first * width, bytes), host, unit);
    piece.*home = ssd.part(0, bytes);
    ssd.offset += bytes;
    staged_.push_back({host, piece.*home, unit});
  }
}

// Host memory for so many bytes of a gradient, in this stage or the next.
Slice GradientStages::memory(std::uint64_t bytes) {
  const std::uint64_t room = bytes / program_.problem().gradient_bytes() * 4;
  const std::size_t stages_of_slot = slots_.host.front().bytes / slots_.stage_bytes;
  if (used_ + room > slots_.stage_bytes) {
    stage_ = (stage_ + 1) % (stages_of_slot * slots_.host.size());
    used_ = 0;
    if (++filled_ == stages_of_slot * slots_.host.size()) {
      write();
      program_.point(HostPoint::gradients_leave);
    }
  }
  const std::size_t slot = stage_ / stages_of_slot, at = stage_ % stages_of_slot;
  const Slice host = slots_.host[slot].part(at * slots_.stage_bytes + used_, bytes);
  used_ += room;
  return host;
}

void GradientStages::write() {
  program_.point(HostPoint::gradients_left);
  for (const Staged& one : staged_) program_.copy(one.host, one.ssd, one.unit);
  staged_.clear();
  filled_ = 0;
}

}  // namespace spillway
