// resident: everything in GPU memory. The reference that every other policy's numbers are held to,
// and the fastest where it fits.
#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

namespace {

class Resident : public Policy {
 public:
  explicit Resident(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    const int recompute = read.choice("recompute", {"off", "needed", "full"});
    saves_ = recompute == 0;
    recomputes_output_ = recompute == 2;
  }

  PolicyInfo info() const override {
    return {"resident",
            "no offload: the usual way to train a model that fits",
            "parameters, gradients, optimizer state and activations stay in GPU memory",
            {{"recompute",
              "off",
              "off: keep all activations | needed: keep one checkpoint per block, recompute what "
              "backward needs | "
              "full: recompute whole blocks",
              {"needed", "full"}}}};
  }

  Plan plan(const Problem& problem, const Costs&) const override {
    Plan plan;
    plan.parameters.rest = plan.optimizer_state.rest = plan.checkpoints.rest = {.gpu = 1};
    plan.optimizer.gpu_stride = 1;
    plan.saved.recomputes_output = recomputes_output_;
    if (saves_) plan.saved.saves.assign(static_cast<std::size_t>(problem.model.layers), saved_all);
    return plan;
  }

  void step(Step& step) const override {
    for (const int m : step.ascending()) {
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) step.backward(layer, m);
    }
    for (const int layer : step.upward()) step.update(layer);
    step.update(step.embedding());
  }

 private:
  bool saves_ = true, recomputes_output_ = false;
};

}  // namespace

std::unique_ptr<Policy> make_resident(const PolicyOptions& options) {
  return std::make_unique<Resident>(options);
}

}  // namespace spillway
