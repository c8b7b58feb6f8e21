// Who uses what when: the visits of a program by layer and micro-batch, in turns.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/step.hpp"

namespace spillway {

inline constexpr VisitId no_visit = 0xffffffffu;

// A row of visits to one layer in one step, all of which need its parameters or none.
struct Turn {
  VisitId begin = 0, end = 0;
  std::int32_t layer = 0;
  std::int32_t step = 0;
  bool backward = false;
  bool needs_parameters = true;
};

class Uses {
 public:
  Uses(const Problem& problem, const OrderOfWork& work);

  const std::vector<Turn>& turns() const { return turns_; }
  std::uint32_t turn_of(VisitId visit) const { return turn_of_[visit]; }

  // When layer `layer` runs on a micro-batch in a step; no_visit where that is not in the program.
  VisitId forward(int step, int layer, int micro_batch) const {
    return forward_[index(step, layer, micro_batch)];
  }
  VisitId backward(int step, int layer, int micro_batch) const {
    return backward_[index(step, layer, micro_batch)];
  }
  // The visit that completes the gradient of a layer's weights; and the last that makes the
  // gradient of its input.
  VisitId complete(int step, int layer) const {
    return complete_[static_cast<std::size_t>(step * layers_ + layer)];
  }
  VisitId last_backward(int step, int layer) const {
    return last_backward_[static_cast<std::size_t>(step * layers_ + layer)];
  }
  VisitId last_visit(int step) const { return last_visit_[static_cast<std::size_t>(step)]; }

 private:
  std::size_t index(int step, int layer, int micro_batch) const {
    const auto layers = static_cast<std::size_t>(layers_);
    const auto micro_batches = static_cast<std::size_t>(micro_batches_);
    return (static_cast<std::size_t>(step) * layers + static_cast<std::size_t>(layer)) *
               micro_batches +
           static_cast<std::size_t>(micro_batch);
  }

  int layers_, micro_batches_;
  std::vector<Turn> turns_;
  std::vector<std::uint32_t> turn_of_;             // by visit
  std::vector<VisitId> forward_, backward_;        // by step, layer, micro-batch
  std::vector<VisitId> complete_, last_backward_;  // by step, layer
  std::vector<VisitId> last_visit_;                // by step
};

}  // namespace spillway
