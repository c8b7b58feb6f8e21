// zero-infinity: parameters and optimizer state on the SSD, gradients through it; the optimizer
// walks the units after the whole backward, with one unit of read-ahead and one of write-behind.
//
// Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021 (arXiv 2104.07857), and DeepSpeed with
// offload_param and offload_optimizer on NVMe, pipeline_read and pipeline_write. The granularity
// here is one block where DeepSpeed's is a submodule (fetch) and a sub-group (optimizer).
#include <optional>

#include "policies/builtin.hpp"
#include "policies/horizontal.hpp"
#include "policies/look_ahead.hpp"
#include "policies/options.hpp"

namespace spillway {

namespace {

class ZeroInfinity : public Policy {
 public:
  explicit ZeroInfinity(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    pipelined_ = read.on_off("pipeline");
    gradients_on_ssd_ = read.choice("gradients", {"ssd", "host"}) == 0;
    parameters_on_ssd_ = read.choice("parameters", {"ssd", "host"}) == 0;
    pass_.checkpoints = read.choice("checkpoints", {"host", "gpu"}) == 0 ? Tier::host : Tier::gpu;
    pass_.host_ahead = static_cast<std::size_t>(read.count("read_ahead", 0, 16));
    pass_.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    pass_.gradients = Tier::host;
  }

  PolicyInfo info() const override {
    return {
        "zero-infinity",
        "ZeRO-Infinity (SC 2021), as DeepSpeed with parameters and optimizer on NVMe",
        "all model states on the SSD; horizontal micro-batches; the optimizer is a phase of its "
        "own",
        {{"pipeline", "on",
          "on: optimizer reads one unit ahead and writes one behind | off: one after the other"},
         {"gradients", "ssd",
          "ssd: gradients are written to the SSD in backward and read back | host: kept"},
         {"parameters", "ssd", "ssd | host: where the 16-bit parameters rest"},
         {"checkpoints", "host", "host | gpu: where activations between blocks wait for backward"},
         {"read_ahead", "2", "blocks of parameters read from the SSD ahead of compute, 0 to 16"},
         {"recompute", "full", "full: recompute whole blocks | needed: only what backward needs"}}};
  }

  void setup(Program& program) override {
    state_.emplace(program);
    for (int unit = 0; unit < state_->units(); ++unit) {
      const Placement blocks = parameters_on_ssd_ ? Placement{.ssd = 1} : Placement{.host = 1};
      state_->place_parameters(unit, unit == state_->embedding() ? Placement{.gpu = 1} : blocks);
      state_->place_optimizer(unit, {.ssd = 1});
    }
    // DeepSpeed keeps one host gradient buffer of the whole model, whatever is elsewhere.
    pass_.host_accumulator = [accumulators = state_->host_accumulators()](int unit) {
      return accumulators[static_cast<std::size_t>(unit)];
    };
  }

  void emit_step(Program& program, int step) override {
    std::vector<Gradients> gradients(static_cast<std::size_t>(state_->units()));
    emit_horizontal_pass(
        program, *state_, step, pass_, [&](int unit, Slice gradient, Slice head_gradient) {
          gradients[static_cast<std::size_t>(unit)] = {to_ssd(program, unit, gradient),
                                                       to_ssd(program, unit, head_gradient)};
        });
    program.at(step, Phase::optimizer);
    program.barrier();
    const auto units = static_cast<std::size_t>(state_->units());
    LookAhead<Loaded> loaded(units, pipelined_ ? 1 : 0, [&](std::size_t k) {
      const int unit = static_cast<int>(k);
      return Loaded{state_->begin_update(unit),
                    {to_host(program, unit, gradients[k].gradient),
                     to_host(program, unit, gradients[k].head)}};
    });
    for (std::size_t k = 0; k < units; ++k) {
      const Loaded ready = loaded.at(k);
      state_->finish_update(ready.update, ready.gradients.gradient, ready.gradients.head, step);
      if (!pipelined_) program.barrier();
    }
    program.barrier();
  }

 private:
  struct Gradients {
    Slice gradient, head;
  };
  struct Loaded {
    ModelState::Update update;
    Gradients gradients;
  };

  Slice to_ssd(Program& program, int unit, Slice host) const {
    if (!gradients_on_ssd_ || !host.valid()) return host;
    const Slice ssd =
        program.buffer(Tier::ssd, host.bytes, BufferKind::gradient, unit).part(0, host.bytes);
    program.copy(host, ssd, unit);
    return ssd;
  }
  static Slice to_host(Program& program, int unit, Slice slice) {
    if (!slice.valid() || program.tier(slice) == Tier::host) return slice;
    const Slice host =
        program.buffer(Tier::host, slice.bytes, BufferKind::gradient, unit).part(0, slice.bytes);
    program.copy(slice, host, unit);
    return host;
  }

  bool pipelined_ = true;
  bool gradients_on_ssd_ = true;
  bool parameters_on_ssd_ = true;
  HorizontalOptions pass_;
  std::optional<ModelState> state_;
};

}  // namespace

std::unique_ptr<Policy> make_zero_infinity(const PolicyOptions& options) {
  return std::make_unique<ZeroInfinity>(options);
}

}  // namespace spillway
