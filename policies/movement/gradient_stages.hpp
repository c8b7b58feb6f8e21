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
  // All arguments outlive it.
  GradientStages(Program& program, const StateSlots& slots, Units& units)
      : program_(program), slots_(slots), units_(units) {}

  // A unit's whole gradient leaves the GPU; `home` of its pieces becomes its place on the SSD.
  void stage(int unit, Slice gpu, BufferKind kind, Slice Piece::*home);
  // What was staged goes to the SSD; says HostPoint::gradients_left, also where nothing was.
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
