// Complete gradients on their way from the GPU to the SSD, by way of the slots of optimizer state,
// which are free in backward.
//
// A slot is some stages, each with room for the elements of an update in fp32, and a gradient takes
// piece after piece in one stage after the other. What was staged is written when all stages were
// filled, or when `write` is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/movement/pieces.hpp"
#include "policies/movement/state_slots.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class GradientStages {
 public:
  // The arguments outlive the stages.
  GradientStages(Program& program, const StateSlots& slots, Units& units)
      : program_(program), slots_(slots), units_(units) {}

  // Copies a unit's whole gradient from the GPU into the stages; member `home` of the unit's pieces
  // becomes their part of it on the SSD.
  void stage(int unit, Slice gpu, BufferKind kind, Slice Piece::*home);
  // Writes the staged gradients to the SSD and emits HostPoint::gradients_left, even if nothing was
  // staged.
  void write();

 private:
  struct Staged {
    Slice host, ssd;
    int unit = 0;
  };
  Slice memory(std::uint64_t bytes);

  Program& program_;
  const StateSlots& slots_;
  Units& units_;
  std::vector<Staged> staged_;
  std::size_t stage_ = 0, filled_ = 0;
  std::uint64_t used_ = 0;  // bytes of stage_
};

}  // namespace spillway
