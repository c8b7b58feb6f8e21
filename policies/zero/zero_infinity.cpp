// zero-infinity: parameters and optimizer state on the SSD, gradients through it; the optimizer
// walks sub-groups after the whole backward.
//
// Source: Rajbhandari et al., "ZeRO-Infinity", SC 2021 (arXiv 2104.07857), and DeepSpeed 0.19.6
// with offload_param and offload_optimizer on NVMe (partitioned_optimizer_swapper.py and
// pipelined_optimizer_swapper.py). Per sub-group: read master, m, v and gradient; Adam; write the
// 16-bit parameters and wait; write master, m, v. Serial as shipped; pipeline_read and
// pipeline_write add one sub-group of read-ahead and one of write-behind.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <tuple>

#include "base/errors.hpp"
#include "policies/common/builtin.hpp"
#include "policies/common/options.hpp"
#include "policies/zero/zero_pass.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t slot_element_bytes = 4;  // optimizer slots hold fp32

class ZeroInfinity : public Policy {
 public:
  explicit ZeroInfinity(const PolicyOptions& options) {
    const PolicyInfo about = info();
    const OptionReader read(about, options);
    pipeline_read_ = read.on_off("pipeline_read");
    pipeline_write_ = read.on_off("pipeline_write");
    sub_group_size_ = read.elements("sub_group_size", 1);
    const std::uint64_t needed = 4 * sets();
    if (!read.is_auto("buffer_count"))
      buffer_count_ = static_cast<std::uint64_t>(read.count("buffer_count", 4, 1024));
    if (buffer_count_ && *buffer_count_ < needed) {
      throw InputError(
          fmt::format("policy zero-infinity: option buffer_count={} is less than the {} that the "
                      "pipeline needs",
                      *buffer_count_, needed),
          "4, and 4 more for each of pipeline_read and pipeline_write; or leave it at auto");
    }
    gradients_on_ssd_ = read.choice("gradients", {"ssd", "host"}) == 0;
    gradient_bytes_ = read.choice("gradient_bytes", {"4", "2"}) == 0 ? 4 : 2;
    parameters_ = std::array{
        Tier::ssd, Tier::host,
        Tier::gpu}[static_cast<std::size_t>(read.choice("parameters", {"ssd", "host", "gpu"}))];
    persistence_threshold_ = read.elements("param_persistence_threshold");
    max_in_cpu_ = read.elements("max_in_cpu");
    param_buffer_count_ = static_cast<std::size_t>(read.count("param_buffer_count", 1, 1024));
    if (!read.is_auto("param_buffer_size")) {
      param_buffer_size_ = read.elements("param_buffer_size", 1);
    }
    pinned_rounding_ = read.on_off("pinned_rounding");
    overflow_check_ = read.on_off("overflow_check");
    settles_reuse_ = read.is_auto("max_reuse_distance");
    whole_micro_batch_ = read_working_memory(read);
    pass_options_ = read_zero_pass(read);
  }

  PolicyInfo info() const override {
    PolicyInfo info{
        "zero-infinity",
        "ZeRO-Infinity (SC 2021), as DeepSpeed with parameters and optimizer on NVMe",
        "all model states on the SSD; horizontal micro-batches; the optimizer is a phase of its "
        "own",
        {{"pipeline_read",
          "off",
          "on: the next sub-group is read while one is updated | off",
          {"off"}},
         {"pipeline_write",
          "off",
          "on: a sub-group is written while the next is updated | off",
          {"off"}},
         {"sub_group_size",
          "1e9",
          "elements the optimizer updates at a time, in whole tensors",
          {"1e8", "1e7"}},
         {"buffer_count",
          "auto",
          "slots of host memory for the optimizer, each of one sub-group in fp32; auto: 4, and 4 "
          "more for each pipeline (with 16-bit moments 3)",
          {"4"}},
         {"gradients",
          "ssd",
          "ssd: written to the SSD in the last micro-batch and read back | host: kept there",
          {"ssd"}},
         {"gradient_bytes",
          "4",
          "4 | 2: bytes per gradient on the SSD; DeepSpeed's code writes fp32, the papers count "
          "16 bit (32-bit sums stay 4)",
          {"2"}},
         {"parameters",
          "ssd",
          "ssd | host | gpu: where the 16-bit parameters rest",
          {"host", "ssd"}},
         {"max_in_cpu",
          "0",
          "the first so many elements of parameters rest in host memory instead of the SSD "
          "(DeepSpeed: 1e9)",
          {"0"}},
         {"param_buffer_count",
          "5",
          "slots of host memory for parameters read from the SSD",
          {"2", "1"}},
         {"param_buffer_size",
          "auto",
          "elements of such a slot, which holds one tensor; auto: the largest tensor (DeepSpeed: "
          "1e8)",
          {"auto"}},
         {"param_persistence_threshold",
          "0",
          "blocks of fewer elements stay on the GPU; a block is one buffer there, so that single "
          "small tensors (DeepSpeed: below 1e5) move with their block",
          {"0"}},
         {"pinned_rounding",
          "on",
          "on: pinned buffers take a power of two of host memory, as PyTorch pins | off",
          {"off"}},
         {"overflow_check",
          "on",
          "on: host memory for the temporaries of fp16's overflow check, a byte per parameter | "
          "off",
          {"off"}}}};
    for (PolicyOption& option : zero_pass_options("pageable")) {
      info.options.push_back(std::move(option));
    }
    return info;
  }

  std::vector<PolicyOptions> placements() const override {
    if (!settles_reuse_) return {{}};
    return {{}, {{"max_reuse_distance", "0"}}};
  }

  void setup(Program& program) override {
    const ModelSpec& model = program.problem().model;
    groups_ = sub_groups(model, sub_group_size_);
    state_bytes_ = program.problem().state_bytes();
    state_.emplace(program);
    place(model);
    const std::vector<Slice> slots = take_host_memory(program);
    pass_.emplace(program, *state_, pass_options_, slots, whole_micro_batch_);
    if (gradients_on_ssd_) return;
    const int embedding = state_->embedding();
    const std::uint64_t bytes = state_->elements(embedding) * program.problem().gradient_bytes();
    for (std::size_t k = 0; k < kept_.size(); ++k) {
      const BufferKind kind = k == 0 ? BufferKind::gradient : BufferKind::head_gradient;
      kept_[k] = program.persistent(Tier::host, bytes, kind, embedding).part(0, bytes);
    }
  }

  void emit_step(Program& program, int step) override {
    on_ssd_.clear();
    next_slot_ = slots_filled_ = used_of_slot_ = 0;
    pass_->emit(step, {[&](int unit, Slice gradient, Slice head_gradient) {
                         leave(program, unit, gradient, false);
                         if (head_gradient.valid()) leave(program, unit, head_gradient, true);
                       },
                       [&] { write_what_left(program); }});
    program.at(step, Phase::optimizer);
    program.barrier();  // the norm of the gradient
    if (pipeline_read_) read(program, 0);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (!pipeline_read_) read(program, g);
      program.barrier({Lane::ssd_read});
      if (pipeline_read_ && g + 1 < groups_.size()) read(program, g + 1);
      update(program, g, step);
    }
    program.barrier();
  }

 private:
  // Slots that hold what is read of a sub-group: master and moments (12 bytes an element, 8 with
  // 16-bit moments) and the gradient.
  std::uint64_t slots_of_set() const { return state_bytes_ / slot_element_bytes + 1; }

  std::size_t sets() const {
    return 1 + std::size_t{pipeline_read_} + std::size_t{pipeline_write_};
  }

  void place(const ModelSpec& model) {
    std::uint64_t in_cpu = 0;
    for (int unit = 0; unit < state_->units(); ++unit) {
      const bool stays = unit == state_->embedding() || parameters_ == Tier::gpu ||
                         state_->elements(unit) < persistence_threshold_;
      if (stays) state_->place_parameters(unit, {.gpu = 1});
      for (const TensorRun& tensor : unit_tensors(model, unit)) {
        if (!stays) {
          const bool in_host = parameters_ == Tier::host || in_cpu + tensor.elements <= max_in_cpu_;
          in_cpu += tensor.elements;
          state_->place_parameters(unit, tensor.first, tensor.elements,
                                   in_host ? Placement{.host = 1} : Placement{.ssd = 1});
        }
        state_->place_optimizer(unit, tensor.first, tensor.elements, {.ssd = 1});
      }
    }
  }

  std::uint64_t slot_elements() const {
    std::uint64_t most = 0;
    for (const SubGroup& group : groups_) most = std::max(most, elements_of(group));
    return most;
  }

  // Optimizer slots and parameter slots (returned), and what PyTorch takes beyond that.
  std::vector<Slice> take_host_memory(Program& program) {
    const Problem& problem = program.problem();
    const std::uint64_t slot = slot_elements() * slot_element_bytes;
    const std::uint64_t slot_count = buffer_count_.value_or(slots_of_set() * sets());
    const std::uint64_t tensor = largest_tensor(problem.model);
    const std::uint64_t param_slot =
        param_buffer_size_.value_or(tensor) * problem.parameter_bytes();
    const bool reads_parameters = parameters_ == Tier::ssd;
    if (reads_parameters && param_buffer_size_.value_or(tensor) < tensor) {
      throw InputError(fmt::format("policy zero-infinity: a tensor of model {} has {} elements, "
                                   "more than param_buffer_size={}",
                                   problem.model.name, tensor, *param_buffer_size_),
                       fmt::format("param_buffer_size={} or more, or auto", tensor));
    }
    const auto parameters = static_cast<std::uint64_t>(problem.model.parameters());
    std::uint64_t beyond = overflow_check_ ? parameters : 0;
    if (pinned_rounding_) {
      const auto rounding = [](std::uint64_t bytes) { return std::bit_ceil(bytes) - bytes; };
      beyond += rounding(parameters * problem.gradient_bytes()) + slot_count * rounding(slot);
      if (reads_parameters) beyond += param_buffer_count_ * rounding(param_slot);
    }
    if (beyond > 0) program.persistent(Tier::host, beyond, BufferKind::scratch);

    const auto take = [&](std::uint64_t bytes, BufferKind kind) {
      return program.persistent(Tier::host, bytes, kind).part(0, bytes);
    };
    slots_.clear();
    for (std::size_t k = 0; k < sets(); ++k) {
      const Slice set = take(slots_of_set() * slot, BufferKind::optimizer_state);
      sets_.push_back(set);
      for (std::uint64_t s = 0; s < slots_of_set(); ++s) slots_.push_back(set.part(s * slot, slot));
    }
    if (gradients_on_ssd_) {
      const std::uint64_t width = std::max(problem.gradient_bytes(), gradient_bytes_);
      head_slot_ = take(state_->elements(state_->embedding()) * width, BufferKind::head_gradient);
    }
    while (slots_.size() < slot_count) slots_.push_back(take(slot, BufferKind::gradient));
    std::vector<Slice> param_slots;
    for (std::size_t k = 0; reads_parameters && k < param_buffer_count_; ++k) {
      param_slots.push_back(take(param_slot, BufferKind::parameters));
    }
    return param_slots;
  }

  // -- gradients, at the boundary ----------------------------------------------------------------
  struct Leaving {
    Slice from, to;
    int unit = 0;
  };

  void leave(Program& program, int unit, Slice gpu, bool head) {
    if (!gradients_on_ssd_) {
      if (unit == state_->embedding()) program.copy(gpu, kept_[head ? 1 : 0], unit);
      return;
    }
    const std::uint64_t width = program.problem().gradient_bytes();
    for (const TensorRun& tensor : unit_tensors(program.problem().model, unit)) {
      const Slice gradient = gpu.part(tensor.first * width, tensor.elements * width);
      const Slice slot = slot_for(program, tensor.elements * std::max(width, gradient_bytes_));
      // A 16-bit gradient that travels as fp32: as many bytes, by sending it twice.
      for (std::uint64_t at = 0; at < slot.bytes; at += gradient.bytes) {
        program.copy(gradient, slot.part(at, gradient.bytes), unit);
      }
      const BufferKind kind = head ? BufferKind::head_gradient : BufferKind::gradient;
      const Slice ssd = program.buffer(Tier::ssd, slot.bytes, kind, unit).part(0, slot.bytes);
      leaving_.push_back({slot, ssd, unit});
      on_ssd_[{unit, tensor.first, head}] = ssd;
    }
  }

  // Tensors are packed into the slots one after the other. When the bucket has filled them all,
  // they are written; a slot is filled again once its bytes are on the SSD.
  Slice slot_for(Program& program, std::uint64_t bytes) {
    if (used_of_slot_ + bytes > slots_[next_slot_].bytes) {
      next_slot_ = (next_slot_ + 1) % slots_.size();
      used_of_slot_ = 0;
      if (++slots_filled_ == slots_.size()) write_what_left(program);
    }
    const Slice slot = slots_[next_slot_].part(used_of_slot_, bytes);
    used_of_slot_ += bytes;
    return slot;
  }

  void write_what_left(Program& program) {
    program.barrier({Lane::pcie_d2h});
    for (const Leaving& one : leaving_) program.copy(one.from, one.to, one.unit);
    leaving_.clear();
    slots_filled_ = 0;
  }

  // -- the optimizer -----------------------------------------------------------------------------
  struct TensorUpdate {
    ModelState::Update update;
    Slice gradient, head_gradient;
  };

  void read(Program& program, std::size_t g) {
    const Slice set = sets_[g % sets_.size()];
    std::uint64_t used = 0;
    const std::uint64_t gradient_width = program.problem().gradient_bytes();
    auto& updates = reading_[g % 2];
    updates.clear();
    for (const TensorRun& tensor : groups_[g]) {
      const Slice slot = set.part(used, tensor.elements * state_bytes_);
      used += slot.bytes;
      updates.push_back(
          {state_->begin_update(tensor.unit, tensor.first, tensor.elements, slot), {}, {}});
    }
    if (!pipeline_read_) program.barrier({Lane::ssd_read});
    const std::uint64_t slot_bytes = slots_[0].bytes;
    const Slice last = set.part((slots_of_set() - 1) * slot_bytes, slot_bytes);
    used = 0;
    for (std::size_t k = 0; k < updates.size(); ++k) {
      const TensorRun& tensor = groups_[g][k];
      updates[k].gradient = gradient_in_host(program, tensor, false, last, used);
      if (tensor.unit != state_->embedding()) continue;
      std::uint64_t used_of_head = tensor.first * std::max(gradient_width, gradient_bytes_);
      updates[k].head_gradient = gradient_in_host(program, tensor, true, head_slot_, used_of_head);
    }
  }

  Slice gradient_in_host(Program& program, const TensorRun& tensor, bool head, Slice slot,
                         std::uint64_t& used) const {
    const std::uint64_t width = program.problem().gradient_bytes();
    if (!gradients_on_ssd_) {
      const Slice whole = tensor.unit == state_->embedding() ? kept_[head ? 1 : 0]
                                                             : pass_->host_accumulator(tensor.unit);
      return whole.part(tensor.first * width, tensor.elements * width);
    }
    const Slice there = on_ssd_.at({tensor.unit, tensor.first, head});
    const Slice here = slot.part(used, there.bytes);
    used += here.bytes;
    program.copy(there, here, tensor.unit);
    return here.part(0, tensor.elements * width);
  }

  void update(Program& program, std::size_t g, int step) {
    const auto& updates = reading_[g % 2];
    std::vector<ModelState::Runs> updated;
    for (const TensorUpdate& one : updates) {
      updated.push_back(state_->apply_update(one.update, one.gradient, one.head_gradient, step));
    }
    program.barrier({Lane::cpu_optimizer});
    for (std::size_t k = 0; k < updates.size(); ++k) {
      state_->bring_parameters_home(updates[k].update.unit, updated[k]);
    }
    program.barrier({Lane::ssd_write, Lane::pcie_h2d});
    for (const TensorUpdate& one : updates) state_->bring_state_home(one.update);
    if (!pipeline_write_ || g + 1 == groups_.size()) program.barrier({Lane::ssd_write});
  }

  bool pipeline_read_ = false, pipeline_write_ = false;
  bool gradients_on_ssd_ = true, pinned_rounding_ = true, overflow_check_ = true;
  bool settles_reuse_ = true, whole_micro_batch_ = true;
  Tier parameters_ = Tier::ssd;
  std::uint64_t sub_group_size_ = 0, gradient_bytes_ = 4, state_bytes_ = 0;
  std::optional<std::uint64_t> buffer_count_;
  std::uint64_t persistence_threshold_ = 0, max_in_cpu_ = 0;
  std::size_t param_buffer_count_ = 0;
  std::optional<std::uint64_t> param_buffer_size_;  // elements
  ZeroPassOptions pass_options_;

  std::vector<SubGroup> groups_;
  std::optional<ModelState> state_;
  std::optional<ZeroPass> pass_;
  std::vector<Slice> slots_;   // of one sub-group in fp32
  Slice head_slot_;            // the embedding's second gradient
  std::vector<Slice> sets_;    // of slots in a row: master, m, v, and then the gradient
  std::array<Slice, 2> kept_;  // gradients=host: the embedding's, and its head's
  std::size_t next_slot_ = 0;
  std::size_t slots_filled_ = 0;  // and not yet written
  std::uint64_t used_of_slot_ = 0;
  std::vector<Leaving> leaving_;
  // By unit, first element, and whether it is the head's: gradients on the SSD.
  std::map<std::tuple<int, std::uint64_t, bool>, Slice> on_ssd_;
  std::array<std::vector<TensorUpdate>, 2> reading_;
};

}  // namespace

std::unique_ptr<Policy> make_zero_infinity(const PolicyOptions& options) {
  return std::make_unique<ZeroInfinity>(options);
}

}  // namespace spillway
