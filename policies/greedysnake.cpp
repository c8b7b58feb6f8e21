// greedysnake: vertical micro-batches in snake order, with a fraction of the optimizer delayed into
// the next step's forward (policies/vertical.hpp).
//
// Source: GreedySnake (arXiv 2512.17570) and its first author's public code. Training stays
// synchronous: every weight is current when used, and the epilogue applies what the last step
// delayed.
#include <fmt/format.h>

#include <optional>

#include "policies/builtin.hpp"
#include "policies/options.hpp"
#include "policies/vertical.hpp"

namespace spillway {

namespace {

class GreedySnake : public Policy {
 public:
  explicit GreedySnake(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    options_.alpha = read.fraction("alpha");
    options_.snake = read.on_off("snake");
    options_.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    const auto ssd = [&](const char* name, double& fraction) {
      if (read.is_auto(name)) return true;
      fraction = read.fraction(name);
      return false;
    };
    optimizer_auto_ = ssd("optimizer_ssd", optimizer_ssd_);
    parameters_auto_ = ssd("parameters_ssd", parameters_ssd_);
    checkpoints_auto_ = ssd("checkpoints_ssd", options_.checkpoints_ssd);
  }

  PolicyInfo info() const override {
    const std::string least = "; auto: as little as fits host memory";
    return {
        "greedysnake",
        "GreedySnake (arXiv 2512.17570)",
        "vertical micro-batches in snake order; part of the optimizer runs in the next step's "
        "forward",
        {{"alpha", "0.25",
          "fraction of each layer's update that is delayed into the next forward, 0 to 1"},
         {"snake", "on", "on: micro-batch order turns at every layer | off: always ascending"},
         {"optimizer_ssd", "auto", "fraction of the optimizer state on the SSD" + least},
         {"checkpoints_ssd", "auto",
          "fraction of the inner micro-batches' checkpoints on the SSD" + least},
         {"parameters_ssd", "auto", "fraction of the 16-bit parameters on the SSD" + least},
         {"recompute", "full", "full: recompute whole blocks | needed: only what backward needs"}}};
  }

  // What costs least traffic per byte it frees goes first: optimizer state, checkpoints,
  // parameters.
  std::vector<PolicyOptions> placements() const override {
    std::vector<PolicyOptions> all;
    PolicyOptions now;
    if (optimizer_auto_) now["optimizer_ssd"] = "0";
    if (checkpoints_auto_) now["checkpoints_ssd"] = "0";
    if (parameters_auto_) now["parameters_ssd"] = "0";
    all.push_back(now);
    const auto raise = [&](bool is_auto, const char* name, int parts) {
      if (!is_auto) return;
      for (int part = 1; part <= parts; ++part) {
        now[name] = fmt::format("{:g}", static_cast<double>(part) / parts);
        all.push_back(now);
      }
    };
    raise(optimizer_auto_, "optimizer_ssd", 20);
    raise(checkpoints_auto_, "checkpoints_ssd", 10);
    raise(parameters_auto_, "parameters_ssd", 10);
    return all;
  }

  void setup(Program& program) override {
    state_.emplace(program);
    const Placement parameters{.host = 1 - parameters_ssd_, .ssd = parameters_ssd_};
    const Placement optimizer{.host = 1 - optimizer_ssd_, .ssd = optimizer_ssd_};
    const int embedding = state_->embedding();
    for (int unit = 0; unit < embedding; ++unit) {
      const std::uint64_t all = state_->elements(unit);
      const std::uint64_t delayed = fraction_of(all, options_.alpha);
      for (const auto& [first, count] :
           {std::pair{std::uint64_t{0}, delayed}, std::pair{delayed, all - delayed}}) {
        state_->place_parameters(unit, first, count, parameters);
        state_->place_optimizer(unit, first, count, optimizer);
      }
    }
    state_->place_parameters(embedding, {.gpu = 1});
    state_->place_optimizer(embedding, optimizer);
    delayed_.assign(static_cast<std::size_t>(embedding), std::nullopt);
  }

  void emit_step(Program& program, int step) override {
    emit_vertical_step(program, *state_, options_, step, delayed_);
  }

  void emit_epilogue(Program&) override {
    const std::uint64_t delayed = fraction_of(state_->elements(0), options_.alpha);
    for (std::size_t unit = 0; unit < delayed_.size(); ++unit) {
      if (!delayed_[unit]) continue;
      const auto update = state_->begin_update(static_cast<int>(unit), 0, delayed);
      state_->finish_update(update, delayed_[unit]->gradient, {}, delayed_[unit]->step);
      delayed_[unit].reset();
    }
  }

 private:
  VerticalOptions options_;
  double optimizer_ssd_ = 0, parameters_ssd_ = 0;
  bool optimizer_auto_ = true, parameters_auto_ = true, checkpoints_auto_ = true;
  std::optional<ModelState> state_;
  std::vector<std::optional<DelayedGradient>> delayed_;
};

}  // namespace

std::unique_ptr<Policy> make_greedysnake(const PolicyOptions& options) {
  return std::make_unique<GreedySnake>(options);
}

}  // namespace spillway
