#include "policies/movement/gradient_stages.hpp"

namespace spillway {

void GradientStages::stage(int unit, Slice gpu, BufferKind kind, Slice Piece::*home) {
  const std::uint64_t width = program_.problem().gradient_bytes();
  Slice ssd = program_.buffer(Tier::ssd, gpu.bytes, kind, unit).part(0, gpu.bytes);
  for (Piece& piece : units_[unit_index(unit)]) {
    if (piece.frozen) continue;
    const std::uint64_t bytes = piece.elements * width;
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
