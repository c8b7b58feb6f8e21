// The policy of docs/write-a-policy.md, as it stands there.
// [example begins]
#include "policies/common/options.hpp"
#include "policies/common/policy.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

// eager-offload: optimizer state in host memory; the CPU updates a layer while the GPU is still in
// the backward of the layers below it.
class EagerOffload : public Policy {
 public:
  explicit EagerOffload(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    const bool on_gpu = read.choice("checkpoints", {"gpu", "host"}) == 0;
    checkpoints_ = on_gpu ? Share{.gpu = 1} : Share{.host = 1};
  }

  PolicyInfo info() const override {
    return {"eager-offload",
            "an example",
            "optimizer state in host memory; AdamW on the CPU under the GPU's backward",
            {{"checkpoints", "gpu", "gpu | host: where inputs of layers wait", {"host"}}}};
  }

  Plan plan(const Problem&, const Costs&) const override {
    Plan plan;
    plan.parameters.rest = {.gpu = 1};
    plan.optimizer_state.rest = {.host = 1};
    plan.checkpoints.rest = checkpoints_;
    return plan;
  }

  void step(Step& step) const override {
    for (const int m : step.ascending()) {
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) {
        step.backward(layer, m);
        if (m + 1 == step.micro_batches()) step.update(layer);
      }
    }
    step.update(step.embedding());
  }

 private:
  Share checkpoints_;
};

std::unique_ptr<Policy> make_eager_offload(const PolicyOptions& options) {
  return std::make_unique<EagerOffload>(options);
}

}  // namespace spillway
// [example ends]
