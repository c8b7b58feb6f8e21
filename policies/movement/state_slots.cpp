#include "policies/movement/state_slots.hpp"

#include <algorithm>

namespace spillway {

namespace {

void take_host_slots(Program& program, const Plan& plan, const OrderOfWork& work,
                     const Timetable& times, Units& units, StateSlots& slots) {
  if (plan.optimizer_state.slots == 0) return;
  const std::uint64_t gradient_bytes = program.problem().gradient_bytes();
  const auto count = static_cast<std::size_t>(plan.optimizer_state.slots);
  std::vector<std::uint64_t> most(count, 0);
  const bool with_gradients = plan.gradients.on_ssd;
  for (const OptimizerEvent& event : times.events()) {
    if (event.is_wait) continue;
    std::uint64_t bytes = 0;
    for_pieces(units, work, work.updates[event.update], [&](int, const Piece& piece) {
      if (is_drives(piece.state_at)) bytes += piece.state.bytes;
      if (with_gradients) bytes += piece.elements * gradient_bytes;
    });
    std::uint64_t& slot = most[event.in_step % count];
    slot = std::max(slot, bytes);
  }
  if (with_gradients) {
    const std::uint64_t largest = *std::max_element(most.begin(), most.end());
    slots.stage_bytes = largest / (program.problem().state_bytes() + gradient_bytes) * 4;
    const ModelSpec& model = program.problem().model;
    if (const std::uint64_t elements = trained_in(units.back()); model.tied && elements > 0)
      slots.head =
          program.persistent(Tier::host, elements * gradient_bytes, BufferKind::head_gradient,
                             static_cast<int>(embedding_unit(model)));
    most.assign(count, largest);  // any gradient passes through any of them
  }
  for (const std::uint64_t bytes : most) {
    slots.host.push_back(
        bytes == 0 ? Slice{} : program.persistent(Tier::host, bytes, BufferKind::optimizer_state));
  }
}

void take_gpu_slots(Program& program, const Plan& plan, const OrderOfWork& work,
                    const Timetable& times, Units& units, StateSlots& slots) {
  if (plan.optimizer.gpu_stride == 0) return;
  std::uint64_t most = 0;
  for (const OptimizerEvent& event : times.events()) {
    if (event.is_wait || !event.on_gpu) continue;
    std::uint64_t bytes = 0;
    for_pieces(units, work, work.updates[event.update], [&](int, const Piece& piece) {
      if (piece.state_at == Tier::host) bytes += piece.state.bytes;
    });
    most = std::max(most, bytes);
  }
  for (int slot = 0; most > 0 && slot < plan.optimizer_state.gpu_slots; ++slot)
    slots.gpu.push_back(program.persistent(Tier::gpu, most, BufferKind::optimizer_state));
}

}  // namespace

StateSlots take_state_slots(Program& program, const Plan& plan, const OrderOfWork& work,
                            const Timetable& times, Units& units) {
  StateSlots slots;
  if (work.evaluates) return slots;
  take_host_slots(program, plan, work, times, units, slots);
  take_gpu_slots(program, plan, work, times, units, slots);
  return slots;
}

}  // namespace spillway
