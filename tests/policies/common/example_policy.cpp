// The policy of docs/write-a-policy.md: what stands between the two marks is the document's code,
// word for word; example_policy_test.cpp holds them to that, and the schedule to what every
// schedule is held to.

// [example begins]
#include <optional>

#include "policies/common/horizontal.hpp"
#include "policies/common/options.hpp"
#include "policies/common/policy.hpp"

namespace spillway {

// eager-offload: optimizer state in host memory; the CPU updates a block while the GPU is still in
// the backward of the blocks below it.
class EagerOffload : public Policy {
 public:
  explicit EagerOffload(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    pass_.checkpoints = read.choice("checkpoints", {"gpu", "host"}) == 0 ? Tier::gpu : Tier::host;
    pass_.gradients = Tier::host;  // each block's leaves the GPU as soon as it is complete
  }

  PolicyInfo info() const override {
    return {
        "eager-offload",
        "an example",
        "optimizer state in host memory; AdamW on the CPU under the GPU's backward",
        {{"checkpoints", "gpu", "gpu | host: where activations between blocks wait for backward"}}};
  }

  void setup(Program& program) override {
    state_.emplace(program);
    for (int unit = 0; unit < state_->units(); ++unit) {
      state_->place_parameters(unit, {.gpu = 1});
      state_->place_optimizer(unit, {.host = 1});
    }
    pass_.host_accumulator = [this](int unit) { return state_->gradient_buffer(Tier::host, unit); };
  }

  void emit_step(Program& program, int step) override {
    // Called right after the copy that brings a unit's complete gradient to host memory.
    const auto update = [&](int unit, Slice gradient, Slice head_gradient) {
      state_->finish_update(state_->begin_update(unit), gradient, head_gradient, step);
    };
    emit_horizontal_pass(program, *state_, step, pass_, update);
  }

 private:
  HorizontalOptions pass_;
  std::optional<ModelState> state_;
};

std::unique_ptr<Policy> make_eager_offload(const PolicyOptions& options) {
  return std::make_unique<EagerOffload>(options);
}

}  // namespace spillway
// [example ends]
