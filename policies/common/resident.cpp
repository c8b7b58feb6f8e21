// resident: everything in GPU memory. The reference that every other policy's numbers are held to,
// and the fastest where it fits.
#include <optional>

#include "policies/common/builtin.hpp"
#include "policies/common/horizontal.hpp"
#include "policies/common/options.hpp"

namespace spillway {

namespace {

class Resident : public Policy {
 public:
  explicit Resident(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    const int recompute = read.choice("recompute", {"off", "needed", "full"});
    saves_ = recompute == 0;
    pass_.recomputes_output = recompute == 2;
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

  void setup(Program& program) override {
    state_.emplace(program);
    if (saves_) {
      pass_.saves.assign(static_cast<std::size_t>(program.problem().model.layers), saved_all);
    }
    for (int unit = 0; unit < state_->units(); ++unit) {
      state_->place_parameters(unit, {.gpu = 1});
      state_->place_optimizer(unit, {.gpu = 1});
    }
  }

  void emit_step(Program& program, int step) override {
    std::vector<std::pair<Slice, Slice>> gradients(static_cast<std::size_t>(state_->units()));
    emit_horizontal_pass(program, *state_, step, pass_,
                         [&](int unit, Slice gradient, Slice head_gradient) {
                           gradients[static_cast<std::size_t>(unit)] = {gradient, head_gradient};
                         });
    program.at(step, Phase::optimizer);
    for (int unit = 0; unit < state_->units(); ++unit) {
      const auto& [gradient, head_gradient] = gradients[static_cast<std::size_t>(unit)];
      state_->finish_update(state_->begin_update(unit), gradient, head_gradient, step);
    }
  }

 private:
  bool saves_ = true;
  HorizontalOptions pass_;
  std::optional<ModelState> state_;
};

}  // namespace

std::unique_ptr<Policy> make_resident(const PolicyOptions& options) {
  return std::make_unique<Resident>(options);
}

}  // namespace spillway
