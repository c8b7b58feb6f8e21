// [example begins]
#include "policies/common/plugin.hpp"

namespace {

using namespace spillway;

// hybrid: the lower layers take all micro-batches in a row, so that their parameters are fetched
// twice a step; the upper layers take one micro-batch at a time, forward and at once backward, so
// that their checkpoints need not be kept for the other micro-batches.
class Hybrid : public Policy {
 public:
  Hybrid()
      : Policy("hybrid", "an example",
               "lower layers take all micro-batches in a row, upper layers one at a time") {}

  void step(Step& step) const override {
    const int layers = step.layers();
    const int lower = static_cast<int>(lower_ * layers);
    for (int layer = 0; layer < lower; ++layer) {
      for (const int m : step.ascending()) step.forward(layer, m);
    }
    for (const int m : step.ascending()) {
      for (int layer = lower; layer < layers; ++layer) step.forward(layer, m);
      for (int layer = layers - 1; layer >= lower; --layer) {
        step.backward(layer, m);
        if (m + 1 == step.micro_batches()) step.update(layer);
      }
    }
    for (int layer = lower - 1; layer >= 0; --layer) {
      for (const int m : step.ascending()) step.backward(layer, m);
      step.update(layer);
    }
    for (const int unit : step.outer()) step.update(unit);
  }

  Plan plan(const Problem&, const Costs&) const override {
    Plan plan;
    plan.parameters.rest = Share{.host = 1};
    plan.optimizer_state.rest = Share::host_and_ssd(optimizer_ssd_);
    return plan;
  }

 private:
  Option<double> lower_ =
      option("lower", "0.5", fraction, {}, "share of the layers that are lower");
  Option<double> optimizer_ssd_ = option("optimizer_ssd", "0", fraction, {"0.5", "1"},
                                         "share of the optimizer state that rests on the SSD");
};

}  // namespace

SPILLWAY_PLUGIN(Hybrid)
// [example ends]
