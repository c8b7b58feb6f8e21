// Parameters that are fetched tensor by tensor, as far ahead as a number of elements.
//
// For each tensor in order of use
//   1. it is copied to the GPU if it is not there, after it was read if it is not in host memory either;
//   2. the tensors that follow are copied, up to a bucket of elements, up to the first one that is
//      still on the SSD;
//   3. the tensors that follow are read, until the elements looked at exceed twice those on their way to
//      the GPU, or as many tensors are in host memory as there may be;
//   4. after its use it is dropped, unless it is used again within the reuse distance.
// A layer's norms are operators, too, whose parameters come with the matrix that follows: 2 and 3 happen
// when one is reached. What a micro-batch leaves behind is dropped: each begins without parameters.
//
// Source: DeepSpeed 0.19.6, partitioned_param_coordinator.py and partitioned_param_swapper.py.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/places.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class ParameterWindow {
 public:
  // `units`: by unit, with the homes of parameters; a piece is a tensor. All outlive the window.
  ParameterWindow(Program& program, const ParameterAhead& ahead, const Timetable& times,
                  const std::vector<Pieces>& units);

  // All parameters of the layer of visit `v` in GPU memory. In order of visits.
  Slice use(VisitId v);
  // After visit `v` of the last layer, which was a forward and a backward: the second of both looks
  // ahead, too.
  void use_again(VisitId v);

 private:
  struct Use {
    std::uint32_t turn = 0;
    std::uint32_t piece = 0;
  };
  // Of a tensor, now.
  struct Residence {
    Slice host;              // read from the SSD and not dropped yet
    std::size_t slot = 0;    // of it
    bool on_gpu = false;
    bool in_flight = false;  // copied ahead and not used yet
  };
  static constexpr std::uint32_t no_turn = 0xffffffffu;

  const Turn& turn(std::uint32_t t) const { return times_.turns()[t]; }
  const Pieces& pieces(std::uint32_t t) const {
    return units_[static_cast<std::size_t>(turn(t).layer)];
  }
  const Piece& piece(const Use& use) const { return pieces(use.turn)[use.piece]; }
  std::uint64_t elements(const Use& use) const { return piece(use).elements; }
  Residence& residence(const Use& use) {
    return residence_[static_cast<std::size_t>(turn(use.turn).layer)][use.piece];
  }

  void begin_micro_batch(std::uint32_t first);
  bool is_kept(std::uint32_t turn, std::uint32_t piece) const;
  bool begins_with_norm(const Use& use) const;
  Slice gpu_memory(std::uint32_t turn);
  void look_ahead(const Use& current);
  void copy_ahead(const Use& current);
  void read_ahead(const Use& current);
  bool ends_look_ahead(const Use& current, const Use& use) const;
  void copy(const Use& use);
  void read(const Use& use);
  void drop(const Use& use);
  void take_slots();
  std::size_t free_slot() const;

  Program& program_;
  const ParameterAhead& ahead_;
  const Timetable& times_;
  const std::vector<Pieces>& units_;
  std::uint64_t second_norm_ = 0;  // the element of a layer that its second norm stands before
  std::vector<std::uint32_t> previous_, following_;  // by turn: of the same layer and micro-batch
  std::vector<std::uint64_t> used_before_;           // elements, in all turns before one
  std::uint32_t now_ = no_turn, end_ = 0;            // turns of this micro-batch: up to end_
  std::vector<Use> trace_;                           // of this micro-batch
  std::size_t next_ = 0;                             // the first that was not copied yet
  std::vector<std::vector<Residence>> residence_;    // by unit and piece
  std::vector<Slice> gpu_;                           // by unit, for the use in gpu_turn_
  std::vector<std::uint32_t> gpu_turn_;
  std::uint64_t on_gpu_ = 0, in_flight_ = 0;  // elements
  std::vector<Slice> slots_;                  // host memory for a tensor each
  std::vector<bool> taken_;                   // by slot
  bool reads_under_way_ = false;
};

}  // namespace spillway
