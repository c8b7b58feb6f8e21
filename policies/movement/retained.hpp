// Retained: which tensors stay on the GPU between two uses.
//
// What the next visit uses always stays. Beyond that, the program is walked once: everything whose
// kind may stay (Plan::retention) is held until its next use and, while that is more than there is
// memory left over or slots of the kind, what is used furthest in the future goes (Belady, 1966).
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/uses.hpp"

namespace spillway {

class Retained {
 public:
  Retained(const Problem& problem, const Plan& plan, const OrderOfWork& work, const Uses& uses);

  // What is on the GPU after visit v and stays there until its next use.
  // Parameters of the visit's layer, until the layer's next turn in this step.
  bool parameters(VisitId v) const { return has(v, parameters_bit); }
  // The input of a forward visit, until backward.
  bool input(VisitId v) const { return has(v, input_bit); }
  // The output of a forward visit, until the next layer's forward.
  bool output(VisitId v) const { return has(v, output_bit); }
  // What a forward visit saves, until backward.
  bool saved(VisitId v) const { return has(v, saved_bit); }
  // The gradient of a backward visit's input, until the backward of the layer below.
  bool activation_gradient(VisitId v) const { return has(v, activation_gradient_bit); }
  // The layer's gradient so far, until the next micro-batch adds to it.
  bool gradient(VisitId v) const { return has(v, gradient_bit); }

  // Most bytes that are on the GPU only because they are used again.
  std::uint64_t kept_bytes() const { return kept_; }

 private:
  enum Bit : std::uint8_t {
    parameters_bit = 1,
    input_bit = 2,
    output_bit = 4,
    saved_bit = 8,
    activation_gradient_bit = 16,
    gradient_bit = 32
  };
  class Held;
  bool rests(VisitId v, Bit what) const;
  bool has_backward(VisitId v) const;
  struct Gap {  // between two uses
    VisitId from = 0, to = 0;
    Bit what = parameters_bit;
    std::uint64_t bytes = 0;
  };
  bool has(VisitId v, Bit bit) const { return (stays_[v] & bit) != 0; }
  template <class Act>
  void for_gaps(VisitId v, const Act& act) const;
  VisitId next_use_of_parameters(std::uint32_t turn) const;
  VisitId next_sum(VisitId v) const;
  void keep_nearest();

  const Problem& problem_;
  const Plan& plan_;
  const OrderOfWork& work_;
  const Uses& uses_;
  int layers_;
  std::vector<std::uint8_t> stays_;  // by visit
  std::vector<VisitId> next_turn_;  // by turn: the first visit of the layer's next turn in the step
  std::uint64_t checkpoint_bytes_ = 0, parameter_bytes_ = 0, gradient_bytes_ = 0;
  std::vector<std::uint64_t> saved_bytes_;  // by layer
  // By layer: what rests on the GPU, and has no gaps.
  std::vector<bool> parameters_rest_, inputs_rest_, saved_rest_;
  std::uint64_t kept_ = 0;
};

}  // namespace spillway
