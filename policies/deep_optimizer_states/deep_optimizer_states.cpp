// deep-optimizer-states: optimizer state in host memory; the CPU updates most sub-groups while the
// state of every k-th one crosses PCIe, is updated on the GPU, and goes back.
//
// Source: Maurya et al., "Deep Optimizer States", Middleware 2024 (arXiv 2410.21316), and the
// authors' branch of DeepSpeed. ZeRO-3 with 16-bit parameters on the GPU. At sub-group x with
// x mod k = 0 the state of the last GPU sub-group leaves and that of the next one, x + k - 1,
// arrives; (x + 1) mod k = 0 is updated on the GPU. Gradients of GPU sub-groups never leave the
// GPU, those of CPU sub-groups leave in the background of backward. The update starts after the
// whole backward and the norm of the gradient: it is synchronous.
//
// The authors copy master, m and v of a sub-group apart; here they are one copy per tensor. A
// block's gradient is one buffer: it stays on the GPU as long as one of its tensors does.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "policies/common/builtin.hpp"
#include "policies/common/horizontal.hpp"
#include "policies/common/options.hpp"
#include "policies/deep_optimizer_states/update_stride.hpp"
#include "policies/model/tensors.hpp"

namespace spillway {

namespace {

class DeepOptimizerStates : public Policy {
 public:
  explicit DeepOptimizerStates(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    if (read.text("stride") == "off") {
      stride_ = 0;
    } else if (!read.is_auto("stride")) {
      stride_ = read.count("stride", 2, 1'000'000);
    }
    sub_group_size_ = read.elements("sub_group_size", 1);
    double_staging_ = read.choice("staging", {"single", "double"}) == 1;
    in_background_ = read.choice("gradients", {"async", "sync"}) == 0;
    pass_.checkpoints = read.choice("checkpoints", {"gpu", "host"}) == 0 ? Tier::gpu : Tier::host;
    pass_.recomputes_output = read.choice("recompute", {"full", "needed"}) == 0;
    pass_.gradients = Tier::gpu;
  }

  PolicyInfo info() const override {
    return {
        "deep-optimizer-states",
        "Deep Optimizer States (Middleware 2024), ZeRO-3 with optimizer states in host memory",
        "every k-th sub-group is updated on the GPU while the CPU updates the others",
        {{"stride",
          "auto",
          "auto | 2 or more | off: one in so many sub-groups is updated on the GPU; auto: so many "
          "that CPU and PCIe take equally long; off: none",
          {"off"}},
         {"sub_group_size", "1e8", "elements updated at a time, in whole tensors", {"1e7"}},
         {"staging",
          "single",
          "single | double: GPU buffers for the state of a sub-group; with two, one arrives while "
          "another leaves",
          {"single"}},
         {"gradients",
          "async",
          "async: those of CPU sub-groups leave in the background of backward | sync: into "
          "pageable "
          "memory while the host thread waits, as in DeepSpeed before",
          {"sync"}},
         {"checkpoints",
          "gpu",
          "gpu | host: where activations between blocks wait for backward",
          {"host"}},
         {"recompute",
          "full",
          "full: recompute whole blocks | needed: only what backward needs",
          {"full"}}}};
  }

  void setup(Program& program) override {
    const Problem& problem = program.problem();
    if (!stride_) stride_ = best_stride(update_rates(problem, Costs(problem), double_staging_));
    groups_ = sub_groups(problem.model, sub_group_size_);
    state_.emplace(program);
    for (int unit = 0; unit < state_->units(); ++unit) {
      state_->place_parameters(unit, {.gpu = 1});
      for (const TensorRun& tensor : unit_tensors(problem.model, unit)) {
        state_->place_optimizer(unit, tensor.first, tensor.elements, {.host = 1});
      }
    }
    std::uint64_t largest = 0;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (on_gpu(g)) largest = std::max(largest, elements_of(groups_[g]) * problem.state_bytes());
      for (const TensorRun& tensor : groups_[g]) {
        if (!on_gpu(g)) take_gradients(program, tensor);
      }
    }
    for (int set = 0; largest > 0 && set < (double_staging_ ? 2 : 1); ++set) {
      staging_.push_back(program.persistent(Tier::gpu, largest, BufferKind::optimizer_state));
    }
  }

  void emit_step(Program& program, int step) override {
    gradients_.assign(static_cast<std::size_t>(state_->units()), {});
    HorizontalOptions pass = pass_;
    pass.complete = [&](int unit, Slice gradient, Slice head_gradient) {
      gradients_[static_cast<std::size_t>(unit)] = {gradient, head_gradient};
      send_gradients(program, unit);
    };
    emit_horizontal_pass(program, *state_, step, pass, [](int, Slice, Slice) {});
    program.at(step, Phase::optimizer);
    program.barrier();         // the norm of the gradient
    std::size_t arriving = 0;  // GPU sub-groups so far
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      const auto k = static_cast<std::size_t>(*stride_);
      if (k > 0 && g % k == 0) {
        if (!double_staging_) send_state_home();
        if (g + k - 1 < groups_.size()) fetch_state(program, g + k - 1, arriving++);
        if (double_staging_) send_state_home();
      }
      if (on_gpu(g)) {
        update_on_gpu(g, step);
      } else {
        update_on_cpu(program, g, step);
      }
    }
    send_parameters();
    send_state_home();
    program.barrier();
  }

 private:
  struct Gradients {
    Slice gradient, head;
  };
  struct HostGradient {
    TensorRun tensor;
    Gradients where;
  };

  bool on_gpu(std::size_t g) const {
    return *stride_ > 0 && (g + 1) % static_cast<std::size_t>(*stride_) == 0;
  }

  void take_gradients(Program& program, const TensorRun& tensor) {
    const std::uint64_t bytes = tensor.elements * program.problem().gradient_bytes();
    const auto take = [&](BufferKind kind) {
      return program.persistent(Tier::host, bytes, kind, tensor.unit).part(0, bytes);
    };
    HostGradient mine{tensor, {take(BufferKind::gradient), {}}};
    if (tensor.unit == state_->embedding()) mine.where.head = take(BufferKind::head_gradient);
    host_gradients_[tensor.unit].push_back(mine);
  }

  Gradients part_of(const Gradients& whole, const TensorRun& tensor) const {
    const auto part = [&](Slice slice) {
      return slice.valid() ? state_->gradient_part(slice, tensor.first, tensor.elements) : slice;
    };
    return {part(whole.gradient), part(whole.head)};
  }

  // What the CPU will need of a unit's gradient.
  void send_gradients(Program& program, int unit) const {
    if (!in_background_) program.barrier({Lane::gpu_compute}, {Lane::pcie_d2h});
    const HostMemory memory = in_background_ ? HostMemory::pinned : HostMemory::pageable;
    const auto leaving = host_gradients_.find(unit);
    const std::vector<HostGradient> none_leave;
    for (const HostGradient& to : leaving == host_gradients_.end() ? none_leave : leaving->second) {
      const Gradients from = part_of(gradients_[static_cast<std::size_t>(unit)], to.tensor);
      program.copy(from.gradient, to.where.gradient, unit, -1, memory);
      if (from.head.valid()) program.copy(from.head, to.where.head, unit, -1, memory);
    }
    if (!in_background_) program.barrier({Lane::pcie_d2h});
  }

  void fetch_state(Program& program, std::size_t g, std::size_t turn) {
    const Slice staging = staging_[turn % staging_.size()];
    std::uint64_t used = 0;
    for (const TensorRun& tensor : groups_[g]) {
      ModelState::Update update = state_->begin_update(tensor.unit, tensor.first, tensor.elements);
      for (ModelState::Run& run : update.state) {
        const Slice here = staging.part(used, run.where.bytes);
        program.copy(run.where, here, tensor.unit);
        used += here.bytes;
        run.where = here;
      }
      arrived_.push_back(update);
    }
  }

  void send_state_home() {
    for (const ModelState::Update& update : updated_) state_->bring_state_home(update);
    updated_.clear();
  }

  void update_on_gpu(std::size_t g, int step) {
    for (std::size_t k = 0; k < groups_[g].size(); ++k) {
      const TensorRun& tensor = groups_[g][k];
      const Gradients mine = part_of(gradients_[static_cast<std::size_t>(tensor.unit)], tensor);
      state_->apply_update(arrived_[k], mine.gradient, mine.head, step);
    }
    updated_ = std::move(arrived_);
    arrived_.clear();
  }

  void update_on_cpu(Program& program, std::size_t g, int step) {
    std::vector<std::pair<int, ModelState::Runs>> mine_updated;
    for (const TensorRun& tensor : groups_[g]) {
      const std::vector<HostGradient>& of_unit = host_gradients_.at(tensor.unit);
      const auto mine = std::find_if(of_unit.begin(), of_unit.end(), [&](const HostGradient& one) {
        return one.tensor.first == tensor.first;
      });
      const ModelState::Update update =
          state_->begin_update(tensor.unit, tensor.first, tensor.elements);
      const ModelState::Runs fresh =
          state_->apply_update(update, mine->where.gradient, mine->where.head, step);
      mine_updated.emplace_back(tensor.unit, fresh);
    }
    if (in_background_) {
      send_parameters();  // of the sub-group before, while this one is updated
      fresh_ = std::move(mine_updated);
      return;
    }
    fresh_ = std::move(mine_updated);
    send_parameters();
    program.barrier({Lane::pcie_h2d});
  }

  void send_parameters() {
    for (const auto& [unit, runs] : fresh_) state_->bring_parameters_home(unit, runs);
    fresh_.clear();
  }

  std::optional<int> stride_;  // 0: off; none: settled by the machine
  std::uint64_t sub_group_size_ = 0;
  bool double_staging_ = false;
  bool in_background_ = true;
  HorizontalOptions pass_;

  std::vector<SubGroup> groups_;
  std::optional<ModelState> state_;
  std::vector<Slice> staging_;  // GPU memory for the state of a sub-group
  // By unit: of the tensors that the CPU updates.
  std::map<int, std::vector<HostGradient>> host_gradients_;
  std::vector<Gradients> gradients_;         // on the GPU, by unit
  std::vector<ModelState::Update> arrived_;  // of the GPU sub-group to come, in staging
  // Updated by the CPU and not yet sent to the GPU, with their units.
  std::vector<std::pair<int, ModelState::Runs>> fresh_;
  std::vector<ModelState::Update> updated_;  // of the last one, not yet sent home
};

}  // namespace

std::unique_ptr<Policy> make_deep_optimizer_states(const PolicyOptions& options) {
  return std::make_unique<DeepOptimizerStates>(options);
}

}  // namespace spillway
