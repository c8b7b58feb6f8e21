// zero-offload: optimizer state and gradients in host memory, AdamW on the CPU after the whole
// backward.
//
// Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021 (arXiv 2101.06840), and DeepSpeed 0.19.6 with
// offload_optimizer on the CPU: the code of ZeRO-Infinity without the SSD. At the boundary the
// gradient goes once more, in fp32, to the buffer of the flat fp32 group; then, sub-group by
// sub-group, CPU Adam and the 16-bit parameters back to where they rest. Adam overlaps neither
// backward nor the copy back. The one-step delayed update is not synchronous and therefore not
// offered.
#include <algorithm>
#include <optional>

#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/zero/zero_pass.hpp"

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
    sub_group_size_ = read.elements("sub_group_size", 1);
    fp32_gradients_ = read.choice("gradient_bytes", {"4", "2"}) == 0;
    settles_reuse_ = read.is_auto("max_reuse_distance");
    whole_micro_batch_ = read_working_memory(read);
    pass_options_ = read_zero_pass(read);
  }

  PolicyInfo info() const override {
    PolicyInfo info{
        "zero-offload",
        "ZeRO-Offload (USENIX ATC 2021), as DeepSpeed's offload_optimizer=cpu",
        "optimizer state and gradients in host memory; AdamW on the CPU after backward",
        {{"parameters",
          "auto",
          "gpu | host | auto: where the 16-bit parameters rest; auto is gpu while they take at "
          "most half of it",
          {"host"}},
         {"sub_group_size",
          "1e9",
          "elements the optimizer updates at a time, in whole tensors",
          {"1e8", "1e7"}},
         {"gradient_bytes", "4",
          "4: the complete gradient crosses PCIe once more in fp32, as DeepSpeed's code does | 2: "
          "it does not, as the paper counts"}}};
    for (PolicyOption& option : zero_pass_options("gpu")) {
      info.options.push_back(std::move(option));
    }
    return info;
  }

  // With parameters=auto: by the rule above or, where that does not fit, in host memory.
  std::vector<PolicyOptions> placements() const override {
    std::vector<PolicyOptions> all = {{}};
    if (parameters_ == 0) all.push_back({{"parameters", "host"}});
    if (parameters_ != 1 && settles_reuse_) {
      all.push_back(all.back());
      all.back()["max_reuse_distance"] = "0";
    }
    return all;
  }

  void setup(Program& program) override {
    const Problem& problem = program.problem();
    const double parameter_bytes = static_cast<double>(problem.model.parameters()) *
                                   static_cast<double>(problem.parameter_bytes());
    const bool on_gpu =
        parameters_ == 1 ||
        (parameters_ == 0 &&
         parameter_bytes <= parameters_share * static_cast<double>(problem.machine.gpu.memory));
    groups_ = sub_groups(problem.model, sub_group_size_);
    state_.emplace(program);
    for (int unit = 0; unit < state_->units(); ++unit) {
      const bool stays = on_gpu || unit == state_->embedding();
      if (stays) state_->place_parameters(unit, {.gpu = 1});
      for (const TensorRun& tensor : unit_tensors(problem.model, unit)) {
        if (!stays) state_->place_parameters(unit, tensor.first, tensor.elements, {.host = 1});
        state_->place_optimizer(unit, tensor.first, tensor.elements, {.host = 1});
      }
    }
    pass_.emplace(program, *state_, pass_options_, std::vector<Slice>{}, whole_micro_batch_);
    take_gradients(program);
  }

  void emit_step(Program& program, int step) override {
    pass_->emit(step, {[&](int unit, Slice gradient, Slice head_gradient) {
                         send(program, unit, gradient, gradients_[static_cast<std::size_t>(unit)]);
                         if (head_gradient.valid()) {
                           send(program, unit, head_gradient, head_gradient_);
                         }
                       },
                       [&] { program.barrier({Lane::pcie_d2h}); }});
    program.at(step, Phase::optimizer);
    program.barrier();  // the norm of the gradient
    for (const SubGroup& group : groups_) {
      std::vector<ModelState::Runs> updated;
      for (const TensorRun& tensor : group) {
        const ModelState::Update update =
            state_->begin_update(tensor.unit, tensor.first, tensor.elements);
        const Slice gradient = gradient_of(program, tensor);
        const Slice head =
            tensor.unit == state_->embedding()
                ? state_->gradient_part(head_gradient_, tensor.first, tensor.elements)
                : Slice{};
        updated.push_back(state_->apply_update(update, gradient, head, step));
      }
      program.barrier({Lane::cpu_optimizer});
      for (std::size_t k = 0; k < group.size(); ++k) {
        state_->bring_parameters_home(group[k].unit, updated[k]);
      }
      program.barrier({Lane::pcie_h2d});
    }
    program.barrier();
  }

 private:
  // The gradients the optimizer reads: of fp32's width, or the accumulators of the blocks.
  void take_gradients(Program& program) {
    const std::uint64_t width =
        std::max<std::uint64_t>(program.problem().gradient_bytes(), fp32_gradients_ ? 4 : 2);
    const int embedding = state_->embedding();
    gradients_.assign(static_cast<std::size_t>(state_->units()), {});
    const auto take = [&](int unit, BufferKind kind = BufferKind::gradient) {
      const std::uint64_t bytes = state_->elements(unit) * width;
      return program.persistent(Tier::host, bytes, kind, unit).part(0, bytes);
    };
    for (int unit = 0; fp32_gradients_ && unit < embedding; ++unit) {
      gradients_[static_cast<std::size_t>(unit)] = take(unit);
    }
    gradients_[static_cast<std::size_t>(embedding)] = take(embedding);
    head_gradient_ = take(embedding, BufferKind::head_gradient);
  }

  // A 16-bit gradient that travels as fp32: as many bytes, by sending it twice.
  static void send(Program& program, int unit, Slice gpu, Slice host) {
    if (!host.valid()) return;
    for (std::uint64_t at = 0; at < host.bytes; at += gpu.bytes) {
      program.copy(gpu, host.part(at, gpu.bytes), unit);
    }
  }

  Slice gradient_of(const Program& program, const TensorRun& tensor) const {
    const std::uint64_t width = program.problem().gradient_bytes();
    const Slice own = gradients_[static_cast<std::size_t>(tensor.unit)];
    const Slice whole = own.valid() ? own : pass_->host_accumulator(tensor.unit);
    return whole.part(tensor.first * width, tensor.elements * width);
  }

  int parameters_ = 0;
  std::uint64_t sub_group_size_ = 0;
  bool fp32_gradients_ = true, settles_reuse_ = true, whole_micro_batch_ = true;
  ZeroPassOptions pass_options_;

  std::vector<SubGroup> groups_;
  std::optional<ModelState> state_;
  std::optional<ZeroPass> pass_;
  std::vector<Slice> gradients_;  // in host memory, by unit; invalid: the accumulator
  Slice head_gradient_;
};

}  // namespace

std::unique_ptr<Policy> make_zero_offload(const PolicyOptions& options) {
  return std::make_unique<ZeroOffload>(options);
}

}  // namespace spillway
