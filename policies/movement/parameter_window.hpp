// Parameters that are fetched tensor by tensor, as far ahead as a number of elements.
//
// For each tensor in order of use
//   1. it is copied to the GPU if it is not there, after it was read if it is not in host memory
//   either;
//   2. the tensors that follow are copied, up to a bucket of elements, up to the first one that is
//      still on the SSD;
//   3. the tensors that follow are read, until the elements looked at exceed twice those on their
//   way to
//      the GPU, or as many tensors are in host memory as there may be;
//   4. after its use it is dropped, unless it is used again within the reuse distance, or its layer
//   stays (Retained), which does not count as being on the GPU.
// A layer's norms are operators, too, whose parameters come with the matrix that follows: 2 and 3
// happen when one is reached. A micro-batch begins without parameters, but for those of the layer
// that the one before ended with.
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
  // `units`: with the homes of parameters. `program`, `ahead` and `times` outlive the window.
  ParameterWindow(Program& program, const ParameterAhead& ahead, const Timetable& times,
                  const Units& units);

  // All parameters of the layer of visit `v` in GPU memory. In order of visits.
  Slice use(VisitId v) { return use_in(stay_of_[uses_.turn_of(v)]); }
  // Between forward and backward of the last layer, which are visit `v` together: those for
  // backward.
  Slice use_again(VisitId v) { return use_in(stay_of_[uses_.turn_of(v)] + 1); }

 private:
  // A turn, or the forward or the backward of one that has both.
  struct Stay {
    std::int32_t layer = 0;
    bool backward = false;
    bool stays = false;             // its layer, until the layer's next turn
    std::uint32_t micro_batch = 0;  // counted over all steps
  };
  struct Use {
    std::uint32_t stay = 0;
    std::uint32_t piece = 0;
  };
  // Of a tensor, now.
  struct Residence {
    Slice host;            // read from the SSD and not dropped yet
    std::size_t slot = 0;  // of it
    bool on_gpu = false;
    bool counts = false;     // in on_gpu_
    bool in_flight = false;  // copied ahead and not used yet
  };
  static constexpr std::uint32_t no_stay = 0xffffffffu;

  const Pieces& pieces(std::uint32_t stay) const {
    return units_[static_cast<std::size_t>(stays_[stay].layer)];
  }
  const Piece& piece(const Use& use) const { return pieces(use.stay)[use.piece]; }
  std::uint64_t elements(const Use& use) const { return piece(use).elements; }
  Residence& residence(const Use& use) {
    return residence_[static_cast<std::size_t>(stays_[use.stay].layer)][use.piece];
  }

  // Whether stay `s` is the first of a micro-batch.
  bool begins(std::uint32_t s) const {
    return s == 0 || stays_[s].micro_batch != stays_[s - 1].micro_batch;
  }
  Slice use_in(std::uint32_t stay);
  void find_stays();
  void begin_micro_batch(std::uint32_t first);
  bool is_kept(std::uint32_t stay, std::uint32_t piece) const;
  bool is_used_soon(std::uint32_t stay, std::uint32_t piece) const;
  bool begins_with_norm(const Use& use) const;
  Slice gpu_memory(std::uint32_t stay);
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
  const Uses& uses_;
  const Retained& retained_;
  Units units_;                    // a piece is a tensor
  std::uint64_t second_norm_ = 0;  // the element of a layer that its second norm stands before
  std::vector<Stay> stays_;
  std::vector<std::uint32_t> stay_of_;               // by turn: the first of it
  std::vector<std::uint32_t> previous_, following_;  // by stay: of the same layer
  std::vector<std::uint64_t> used_before_;           // elements, in all stays before one
  std::uint32_t now_ = no_stay, end_ = 0;            // stays of this micro-batch: up to end_
  std::vector<Use> trace_;                           // of this micro-batch
  std::size_t next_ = 0;                             // the first that was not copied yet
  std::vector<std::vector<Residence>> residence_;    // by unit and piece
  std::vector<Slice> gpu_;                           // by unit, for the use in gpu_stay_
  std::vector<std::uint32_t> gpu_stay_;
  std::uint64_t on_gpu_ = 0, in_flight_ = 0;  // elements
  std::vector<Slice> slots_;                  // host memory for a tensor each
  std::vector<bool> taken_;                   // by slot
  bool reads_under_way_ = false;
};

}  // namespace spillway
