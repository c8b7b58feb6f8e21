// Parameters that are fetched tensor by tensor, as far ahead as a number of elements.
//
// For each tensor in order of use
//   1. the tensor is copied to the GPU unless it is there; before that it is read from the SSD
//      unless it is in host memory;
//   2. the tensors that follow are copied to the GPU, up to a bucket of elements or to the first
//      tensor that is still on the SSD;
//   3. the tensors that follow are read from the SSD, until the elements looked at exceed twice
//      those on their way to the GPU, or host memory holds the most tensors it may hold;
//   4. after its use the tensor is dropped, unless it is used again within the reuse distance, or
//      its layer stays (Retained), which does not count as being on the GPU.
// A layer's norms are operators with parameters, too, which come with the matrix that follows:
// steps 2 and 3 also happen when a norm is reached. A micro-batch begins without parameters on the
// GPU, except those of the layer with which the micro-batch before it ended and of layers that
// stay.
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

  // The parameters of the layer of visit `v`, in GPU memory. To be called in order of visits.
  Slice use(VisitId v) { return use_in(stay_of_[uses_.turn_of(v)]); }
  // The parameters for the backward of the last layer, whose forward and backward are visit `v`
  // together. To be called between the two.
  Slice use_again(VisitId v) { return use_in(stay_of_[uses_.turn_of(v)] + 1); }

 private:
  // A turn; of a turn with forward and backward, either half.
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
  // Where a tensor is at this point of the program.
  struct Residence {
    Slice host;            // read from the SSD and not dropped yet
    std::size_t slot = 0;  // of `host`
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
