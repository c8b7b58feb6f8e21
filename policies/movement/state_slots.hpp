// Slots: memory that lives through the whole schedule and that optimizer state passes through,
// update after update.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/pieces.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

struct StateSlots {
  // In host memory, for what rests on the SSD: update n of a step takes slot n modulo their
  // number. Empty where every read takes memory of its own. Where complete gradients rest on the
  // SSD, the update's gradient follows its optimizer state in the slot.
  std::vector<Slice> host;
  // In GPU memory, for what rests in host memory and is updated on the GPU, by turns.
  std::vector<Slice> gpu;
  // Where complete gradients rest on the SSD: bytes of a part of a slot that they pass through, and
  // host memory for what the loss adds to the embedding's gradient where the head is tied.
  std::uint64_t stage_bytes = 0;
  Slice head;
};

StateSlots take_state_slots(Program& program, const Plan& plan, const OrderOfWork& work,
                            const Timetable& times, Units& units);

}  // namespace spillway
