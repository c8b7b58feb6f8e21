// zero-offload: optimizer state and gradients in host memory, AdamW on the CPU after the whole
// backward.
//
// Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021, and DeepSpeed's `offload_optimizer: cpu`.
// The one-step delayed update is not synchronous and therefore not offered.
#include <optional>

#include "policies/builtin.hpp"
#include "policies/horizontal.hpp"
#include "policies/options.hpp"

namespace spillway {

namespace {

// With parameters=auto they stay on the GPU while they take no more than this share of its memory.
constexpr double parameters_share = 0.5;

class ZeroOffload : public Policy {
 public:
  explicit ZeroOffload(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    parameters_ = read.choice("parameters", {"auto", "gpu", "host"});
    pass_.checkpoints = read.choice("checkpoints", {"gpu", "host"}) == 0 ? Tier::gpu : Tier::host;
    pass_.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    pass_.gradients = Tier::host;
  }

  PolicyInfo info() const override {
    return {
        "zero-offload",
        "ZeRO-Offload (USENIX ATC 2021), as DeepSpeed's offload_optimizer=cpu",
        "optimizer state and gradients in host memory; AdamW on the CPU after backward",
        {{"parameters", "auto",
          "gpu | host | auto: where the 16-bit parameters rest; auto is gpu while they take at "
          "most half of it"},
         {"checkpoints", "gpu", "gpu | host: where activations between blocks wait for backward"},
         {"recompute", "full", "full: recompute whole blocks | needed: only what backward needs"}}};
  }

  // With parameters=auto: by the rule above or, where that does not fit, in host memory.
  std::vector<PolicyOptions> placements() const override {
    if (parameters_ != 0) return {{}};
    return {{}, {{"parameters", "host"}}};
  }

  void setup(Program& program) override {
    const Problem& problem = program.problem();
    const double parameter_bytes = static_cast<double>(problem.model.parameters()) *
                                   static_cast<double>(problem.parameter_bytes());
    const bool on_gpu =
        parameters_ == 1 ||
        (parameters_ == 0 &&
         parameter_bytes <= parameters_share * static_cast<double>(problem.machine.gpu.memory));
    state_.emplace(program);
    for (int unit = 0; unit < state_->units(); ++unit) {
      const bool stays = on_gpu || unit == state_->embedding();
      state_->place_parameters(unit, stays ? Placement{.gpu = 1} : Placement{.host = 1});
      state_->place_optimizer(unit, {.host = 1});
    }
    // DeepSpeed keeps one host gradient buffer of the whole model, whatever is elsewhere.
    pass_.host_accumulator = [accumulators = state_->host_accumulators()](int unit) {
      return accumulators[static_cast<std::size_t>(unit)];
    };
  }

  void emit_step(Program& program, int step) override {
    std::vector<std::pair<Slice, Slice>> gradients(static_cast<std::size_t>(state_->units()));
    emit_horizontal_pass(program, *state_, step, pass_,
                         [&](int unit, Slice gradient, Slice head_gradient) {
                           gradients[static_cast<std::size_t>(unit)] = {gradient, head_gradient};
                         });
    program.at(step, Phase::optimizer);
    program.barrier();
    for (int unit = 0; unit < state_->units(); ++unit) {
      const auto& [gradient, head_gradient] = gradients[static_cast<std::size_t>(unit)];
      state_->finish_update(state_->begin_update(unit), gradient, head_gradient, step);
    }
    program.barrier();
  }

 private:
  int parameters_ = 0;
  HorizontalOptions pass_;
  std::optional<ModelState> state_;
};

}  // namespace

std::unique_ptr<Policy> make_zero_offload(const PolicyOptions& options) {
  return std::make_unique<ZeroOffload>(options);
}

}  // namespace spillway
