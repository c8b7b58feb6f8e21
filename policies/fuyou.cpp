// fuyou: the optimizer runs during backward, unit by unit, as gradients arrive; all model states on
// the SSD.
//
// Source: Liao et al., Fuyou (arXiv 2403.06504v1) = LoHan (v2) = Ratel (ICDE 2025), section IV-C,
// active gradient offloading. Gradients never touch the SSD. SSD order is R(i), R(i-1), W(i),
// R(i-2), W(i-1), ...: two optimizer-state slots, so that the read of i-2 waits for the write of i.
// The paper has one micro-batch per step; with several, gradients accumulate in host memory and the
// optimizer runs in the last one's backward.
#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "policies/builtin.hpp"
#include "policies/horizontal.hpp"
#include "policies/look_ahead.hpp"
#include "policies/options.hpp"

namespace spillway {

namespace {

enum class Pipeline { optimized, naive, serial };

class Fuyou : public Policy {
 public:
  explicit Fuyou(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    pipeline_ = static_cast<Pipeline>(read.choice("optimizer", {"optimized", "naive", "serial"}));
    checkpoints_auto_ = read.is_auto("checkpoints_ssd");
    if (!checkpoints_auto_) pass_.checkpoints_on_ssd = read.fraction("checkpoints_ssd");
    pass_.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    pass_.checkpoints = Tier::host;
    pass_.gradients = Tier::host;
  }

  PolicyInfo info() const override {
    return {
        "fuyou",
        "Fuyou / LoHan / Ratel (arXiv 2403.06504, ICDE 2025)",
        "all model states on the SSD; the CPU optimizer runs under the GPU's backward",
        {{"optimizer", "optimized",
          "optimized: read-ahead of one unit, all under backward | naive: in backward, one unit "
          "at a time, the GPU waiting for it | "
          "serial: after backward"},
         {"checkpoints_ssd", "auto",
          "fraction of the activations between blocks that spills from host memory to the SSD; "
          "auto: the least that fits"},
         {"recompute", "full", "full: recompute whole blocks | needed: only what backward needs"}}};
  }

  std::vector<PolicyOptions> placements() const override {
    if (!checkpoints_auto_) return {{}};
    std::vector<PolicyOptions> all;
    for (int tenth = 0; tenth <= 10; ++tenth)
      all.push_back({{"checkpoints_ssd", fmt::format("{:g}", tenth / 10.0)}});
    return all;
  }

  void setup(Program& program) override {
    state_.emplace(program);
    for (int unit = 0; unit < state_->units(); ++unit) {
      state_->place_parameters(
          unit, unit == state_->embedding() ? Placement{.gpu = 1} : Placement{.ssd = 1});
      state_->place_optimizer(unit, {.ssd = 1});
    }
    if (pipeline_ == Pipeline::naive) {
      // One unit at a time: the next one is read into the memory that the last one was written
      // from.
      std::uint64_t most = 0;
      for (int unit = 0; unit < state_->units(); ++unit)
        most = std::max(most, state_->elements(unit));
      slot_ = program.persistent(Tier::host, most * 12, BufferKind::optimizer_state);
    }
    pass_.host_accumulator = [this](int unit) { return state_->gradient_buffer(Tier::host, unit); };
  }

  void emit_step(Program& program, int step) override {
    // Units in the order in which their gradients complete: blocks from the last, then the
    // embedding.
    const auto units = static_cast<std::size_t>(state_->units());
    const auto unit_of = [&](std::size_t k) {
      return k + 1 == units ? state_->embedding()
                            : static_cast<int>(units) - 2 - static_cast<int>(k);
    };
    LookAhead<ModelState::Update> updates(
        units, pipeline_ == Pipeline::naive ? 0 : 1, [&](std::size_t k) {
          const int unit = unit_of(k);
          return state_->begin_update(unit, 0, state_->elements(unit), slot_);
        });
    std::size_t arrived = 0;
    std::vector<std::pair<Slice, Slice>> waiting;
    emit_horizontal_pass(
        program, *state_, step, pass_, [&](int, Slice gradient, Slice head_gradient) {
          if (pipeline_ == Pipeline::serial) {
            waiting.emplace_back(gradient, head_gradient);
          } else {
            // The naive handler runs on the thread that launches the GPU's work, which waits for
            // the read and for AdamW; the write goes on under the next unit's backward, and the
            // next read waits for it.
            const auto wait = [&] {
              if (pipeline_ == Pipeline::naive) program.barrier();
            };
            wait();
            state_->finish_update(updates.at(arrived++), gradient, head_gradient, step, wait);
          }
        });
    if (pipeline_ != Pipeline::serial) return;
    program.at(step, Phase::optimizer);
    program.barrier();
    for (std::size_t k = 0; k < units; ++k) {
      state_->finish_update(updates.at(k), waiting[k].first, waiting[k].second, step);
    }
    program.barrier();
  }

 private:
  Pipeline pipeline_ = Pipeline::optimized;
  Slice slot_;  // naive: the one place for optimizer state in host memory
  bool checkpoints_auto_ = true;
  HorizontalOptions pass_;
  std::optional<ModelState> state_;
};

}  // namespace

std::unique_ptr<Policy> make_fuyou(const PolicyOptions& options) {
  return std::make_unique<Fuyou>(options);
}

}  // namespace spillway
