// The policy of docs/write-a-policy.md, as it stands there.
// [example begins]
#include "policies/common/policy.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

// eager-offload: optimizer state in host memory; the CPU updates a layer while the GPU is still in
// the backward of the layers below it.
class EagerOffload : public Policy {
 public:
  EagerOffload()
      : Policy("eager-offload", "an example",
               "optimizer state in host memory; AdamW on the CPU under the GPU's backward") {}

  void step(Step& step) const override {
    for (const int m : step.ascending()) {
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) {
        step.backward(layer, m);
        if (m + 1 == step.micro_batches()) step.update(layer);
      }
    }
    for (const int unit : step.outer()) step.update(unit);
  }

  Plan plan(const Problem&, const Costs&) const override {
    Plan plan;
    plan.parameters.rest = Share{.gpu = 1};
    plan.optimizer_state.rest = Share{.host = 1};
    plan.checkpoints.rest = Share(checkpoints_);
    return plan;
  }

 private:
  Option<Share> checkpoints_ =
      option("checkpoints", "gpu", Choice<Share>{{"gpu", {.gpu = 1}}, {"host", {.host = 1}}},
             {"host"}, "gpu | host: where inputs of layers wait");
};

std::unique_ptr<Policy> make_eager_offload() { return std::make_unique<EagerOffload>(); }

}  // namespace spillway
// [example ends]
