// Runs the tasks of one schedule, in program order, on shadow memory: what find_dataflow_error and
// find_ranks_dataflow_error are made of.
//
// Of several ranks, each has a run with memory of its own. A run stops before every collective,
// which the ranks then do together (ranks_dataflow.cpp). Gradients then have the name of the sum
// that they are, and whoever joins the runs says which name a complete gradient must have. A stage
// of a pipeline runs by itself: what another one sends is what it should be, and what it sends is
// checked.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/weight_operands.hpp"
#include "policies/schedule/schedule.hpp"
#include "tests/policies/shadow_memory.hpp"

namespace spillway::test {

struct Violation {
  std::string text;
};

// Names of sums of gradients, which say what was added to what: "r0m0+r0m1" is what rank 0 had of
// two micro-batches, "sum[A,B]" what two ranks had, in the order of their ranks.
class SumNames {
 public:
  std::uint64_t id_of(const std::string& name) {
    const auto [known, is_new] = ids_.emplace(name, names_.size());
    if (is_new) names_.push_back(name);
    return known->second;
  }
  const std::string& name(std::uint64_t id) const { return names_[id]; }

 private:
  std::map<std::string, std::uint64_t> ids_;
  std::vector<std::string> names_;
};

class SymbolicRun {
 public:
  // What several ranks have in common; one rank has none of it.
  struct Joint {
    SumNames names;
    // Of a rank's complete gradient of a unit.
    std::function<std::string(int rank, int unit, Held held, int step)> stated_sum;
  };

  explicit SymbolicRun(const Schedule& schedule, bool forward_again, Joint* joint = nullptr)
      : schedule_(schedule),
        forward_again_(forward_again),
        joint_(joint),
        problem_(schedule.problem()),
        layers_(static_cast<int>(problem_.model.layers)),
        head_(static_cast<int>(head_unit(problem_.model))),
        micro_batches_(static_cast<int>(problem_.workload.micro_batches())),
        in_group_(problem_.workload.ranks > 1
                      ? micro_batches_
                      : micro_batches_ / static_cast<int>(problem_.workload.gradient_groups)) {}

  void run() {
    begin();
    while (is_at_collective()) fail("a collective of one rank");
    end();
  }

  void begin() {
    for (const HomePart& home : schedule_.homes())
      put(home.where, home_value(home, 0), home_from(home));
  }
  // Goes on to the next collective, or to the end.
  bool is_at_collective() {
    for (; next_ < schedule_.tasks().size(); ++next_) {
      task_ = next_;
      begin_buffers();
      if (is_collective(now().kind)) {
        require(now().step >= step_ && now().step <= schedule_.steps(),
                "steps go back, or too far");
        step_ = now().step;
        return true;
      }
      execute(now());
    }
    return false;
  }
  void end() {
    check_counts();
    for (const HomePart& home : schedule_.homes()) {
      const BufferInfo& buffer = schedule_.buffers()[home.where.buffer.id];
      const std::string found = memory(buffer).expect(
          buffer.offset + home.where.offset, home.where.bytes,
          home_value(home, version_after(schedule_.steps())), home_from(home));
      if (!found.empty()) throw Violation{rank_text() + "after the last task, at a home: " + found};
    }
  }

  // At a collective: the task, and what is read and written for it.
  const Task& now() const { return schedule_.tasks()[task_]; }
  const RankGroup& group() const { return schedule_.groups()[now().group]; }
  void collective_done() { ++next_; }
  Access collective_operand(Role role) const {
    const Access* access = find(role);
    require(access != nullptr, "an operand is missing");
    return operand(role, access->bytes, role == Role::norms ? Tier::host : Tier::gpu);
  }
  ShadowMemory::Run read_run(const Access& access, std::uint64_t done) {
    require(access.mode != Mode::write, "reads what it does not declare to read");
    const BufferInfo& buffer = schedule_.buffers()[access.buffer];
    ShadowMemory::Run run = memory(buffer).at(buffer.offset + access.offset + done);
    run.end = std::min(run.end, buffer.offset + access.offset + access.bytes);
    if (run.value.held == Held::nothing || run.value.held == Held::scratch)
      fail("takes " + to_string(run.value));
    return run;
  }
  void write_part(Access access, std::uint64_t from, std::uint64_t bytes, const Value& value,
                  std::uint64_t value_from) {
    access.offset += from;
    access.bytes = bytes;
    writes(access, value, value_from);
  }
  // Micro-batches in the order in which this rank added them up.
  const std::vector<int>& order_of(int step, Held held, int unit) {
    return order_[{step, held, unit}];
  }
  const Problem& problem() const { return problem_; }
  [[noreturn]] void fail(const std::string& text) const {
    throw Violation{
        fmt::format("{}#{} {}: {}", rank_text(), task_, schedule_.describe(task_), text)};
  }
  void require(bool condition, const char* text) const {
    if (!condition) fail(text);
  }

 private:
  // -- values
  // --------------------------------------------------------------------------------------
  static constexpr int frozen = -1;  // the version of parameters that are not trained
  int version_after(int steps) const { return schedule_.evaluates() ? 0 : steps; }
  static Value home_value(const HomePart& home, int version) {
    if (home.kind == BufferKind::parameters)
      return {Held::parameters, home.unit, home.frozen ? frozen : version, -1, 0, 0, 0};
    return {Held::optimizer_state, home.unit, version, -1, 0, home.first_element, home.elements};
  }
  // Parameters are named as bytes of the whole unit; optimizer state by its run, [master | m | v].
  std::uint64_t home_from(const HomePart& home) const {
    return home.kind == BufferKind::parameters ? home.first_element * problem_.parameter_bytes()
                                               : 0;
  }
  Value parameters(int unit, int version) const {
    return {Held::parameters, unit, version, -1, 0, 0, 0};
  }
  Value activation(Held held, int unit, const Task& task) const {
    return {held, unit, task.step, task.micro_batch, 0, 0, 0};
  }
  Value gradient(Held held, int unit, int step, std::uint64_t summed) const {
    return {held, unit, step, -1, summed, 0, 0};
  }
  std::uint64_t elements(int unit) const {
    return static_cast<std::uint64_t>(unit_elements(problem_.model, unit));
  }
  std::uint64_t trained(int unit) const {
    return static_cast<std::uint64_t>(trained_elements(problem_.model, unit));
  }

  // -- memory
  // --------------------------------------------------------------------------------------
  ShadowMemory& memory(const BufferInfo& buffer) {
    return memory_[static_cast<std::size_t>(buffer.tier)];
  }
  void put(Slice slice, const Value& value, std::uint64_t from) {
    const BufferInfo& buffer = schedule_.buffers()[slice.buffer.id];
    memory(buffer).write(buffer.offset + slice.offset, slice.bytes, value, from);
  }
  // A transient buffer starts with nothing in it, whatever was there before.
  void begin_buffers() {
    for (const Access& access : schedule_.accesses(schedule_.tasks()[task_])) {
      const BufferInfo& buffer = schedule_.buffers()[access.buffer];
      if (buffer.persistent || buffer.first_use != task_) continue;
      memory(buffer).write(buffer.offset, buffer.bytes, {}, 0);
    }
  }

  // -- operands
  // ------------------------------------------------------------------------------------
  std::string rank_text() const { return joint_ ? fmt::format("rank {} ", problem_.rank) : ""; }
  const Access* find(Role role) const {
    const Access* found = nullptr;
    for (const Access& access : schedule_.accesses(schedule_.tasks()[task_])) {
      if (access.role != role) continue;
      require(found == nullptr, "two operands in one role");
      found = &access;
    }
    return found;
  }
  const Access& operand(Role role, std::uint64_t bytes, Tier tier) const {
    const Access* access = find(role);
    require(access != nullptr, "an operand is missing");
    const BufferInfo& buffer = schedule_.buffers()[access->buffer];
    require(buffer.tier == tier, "an operand is in the wrong tier");
    if (access->bytes != bytes)
      fail(fmt::format("operand of {} bytes, not {}", access->bytes, bytes));
    require(access->offset + access->bytes <= buffer.bytes, "an operand reaches beyond its buffer");
    return *access;
  }
  void reads(const Access& access, const Value& value, std::uint64_t from) {
    require(access.mode != Mode::write, "reads what it does not declare to read");
    const BufferInfo& buffer = schedule_.buffers()[access.buffer];
    const std::string found =
        memory(buffer).expect(buffer.offset + access.offset, access.bytes, value, from);
    if (!found.empty()) fail(found);
  }
  void writes(const Access& access, const Value& value, std::uint64_t from) {
    require(access.mode != Mode::read, "writes what it does not declare to write");
    put({{access.buffer}, access.offset, access.bytes}, value, from);
  }

  // -- tasks
  // ---------------------------------------------------------------------------------------
  void execute(const Task& task) {
    require(task.step >= step_ && task.step <= schedule_.steps(), "steps go back, or too far");
    step_ = task.step;
    switch (task.kind) {
      case TaskKind::embed_forward:
        return embed_forward(task);
      case TaskKind::forward:
        return forward(task);
      case TaskKind::head:
        return head(task);
      case TaskKind::backward:
        return backward(task);
      case TaskKind::embed_backward:
        return embed_backward(task);
      case TaskKind::optimizer:
        return optimizer(task);
      case TaskKind::gradient_norm:
        return gradient_norm(task);
      case TaskKind::barrier:
        return;
      case TaskKind::h2d:
        return copy(Tier::host, Tier::gpu, Lane::pcie_h2d, task);
      case TaskKind::d2h:
        return copy(Tier::gpu, Tier::host, Lane::pcie_d2h, task);
      case TaskKind::read:
        return copy(drives_tier(drive_set(task.lane)), Tier::host, read_lane(drive_set(task.lane)),
                    task);
      case TaskKind::write:
        return copy(Tier::host, drives_tier(drive_set(task.lane)), write_lane(drive_set(task.lane)),
                    task);
      case TaskKind::gradient_add:
        return gradient_add(task);
      case TaskKind::broadcast:
      case TaskKind::all_gather:
      case TaskKind::reduce_scatter:
      case TaskKind::all_reduce:
      case TaskKind::norms_reduce:
        fail("a collective by itself");
      case TaskKind::send:
      case TaskKind::receive:
        return message(task);
      case TaskKind::input_gradient:
        return input_gradient(task);
      case TaskKind::weight_gradient:
        return weight_gradient(task);
    }
  }
  void on_gpu(const Task& task, int unit) {
    require(task.lane == Lane::gpu_compute, "compute on another lane");
    require(task.layer == unit, "the wrong unit");
    require(task.micro_batch >= 0 && task.micro_batch < micro_batches_, "no such micro-batch");
    ++count_[{task.step, task.kind, task.layer, task.micro_batch}];
  }
  void reads_parameters(const Task& task) {
    const std::uint64_t width = problem_.parameter_bytes();
    Access part = operand(Role::parameters, elements(task.layer) * width, Tier::gpu);
    const std::uint64_t changing = trained(task.layer) * width, all = part.bytes;
    part.bytes = changing;
    if (changing > 0) reads(part, parameters(task.layer, version_after(task.step)), 0);
    part.offset += changing;
    part.bytes = all - changing;
    if (part.bytes > 0) reads(part, parameters(task.layer, frozen), changing);
  }
  const Access& hidden(Role role) const {
    return operand(role, checkpoint_bytes(problem_), Tier::gpu);
  }
  // Every tensor of `mask` in its place, as a value of its own: calls use(part of the operand,
  // value).
  template <class Use>
  void saved(const Task& task, SavedMask mask, Use use) {
    require((mask != saved_none) == (find(Role::saved) != nullptr), "saves, or not");
    if (mask == saved_none) return;
    const Access& whole = operand(Role::saved, saved_bytes(problem_, mask), Tier::gpu);
    for (const SavedLayout& tensor : saved_layout(problem_, mask, problem_.workload.micro_batch)) {
      Access part = whole;
      part.offset += tensor.offset;
      part.bytes = tensor.bytes;
      Value value = activation(Held::saved, task.layer, task);
      value.first = tensor.tensor;
      use(part, value);
    }
  }
  void scratch(std::uint64_t bytes) {
    if (bytes == 0) return require(find(Role::scratch) == nullptr, "scratch that is not needed");
    const Access& access = operand(Role::scratch, bytes, Tier::gpu);
    writes(access, {Held::scratch, -1, -1, -1, 0, 0, 0}, 0);
  }
  void accumulates(Role role, Held held, const Task& task);
  // A sum begins anew as often as its micro-batches are reduced by themselves.
  void accumulates_among_ranks(const Access& access, Held held, const Task& task);
  // A sum that one rank makes as several with meshes do: in whatever order, each micro-batch once.
  bool sums_by_meshes() const { return problem_.workload.group_meshes != GradientMeshes{}; }
  void adds_to(const Access& access, Value sum, bool starts);
  // The group of micro-batches that a task's is summed in, and all that are in it.
  int group_of(const Task& task) const { return task.micro_batch / in_group_; }
  std::uint64_t members(int group) const {
    return ((std::uint64_t{1} << in_group_) - 1) << (group * in_group_);
  }
  // The sum of the first groups is in the memory of the first one.
  void gradient_add(const Task& task);
  // The input of a layer, and what its output is to the next one, in the whole model.
  int input_of(int layer) const { return static_cast<int>(whole_layer(problem_.model, layer)); }
  int output_of(int layer) const { return input_of(layer) + 1; }
  Value input(const Task& task) const {
    return activation(Held::activation, input_of(task.layer), task);
  }
  Value output(const Task& task) const {
    return activation(Held::activation, output_of(task.layer), task);
  }
  Value input_gradient_of(const Task& task) const {
    return activation(Held::activation_gradient, input_of(task.layer), task);
  }
  Value output_gradient_of(const Task& task) const {
    return activation(Held::activation_gradient, output_of(task.layer), task);
  }
  void message(const Task& task);
  void embed_forward(const Task& task) {
    on_gpu(task, layers_);
    reads_parameters(task);
    writes(hidden(Role::output), activation(Held::activation, 0, task), 0);
  }
  void forward(const Task& task) {
    on_gpu(task, task.layer);
    require(task.layer >= 0 && task.layer < layers_, "no such layer");
    reads_parameters(task);
    reads(hidden(Role::input), input(task), 0);
    scratch(forward_scratch_bytes(problem_, task.saves));
    saved(task, task.saves,
          [&](const Access& part, const Value& value) { writes(part, value, 0); });
    writes(hidden(Role::output), output(task), 0);
  }
  void head(const Task& task) {
    on_gpu(task, head_);
    reads_parameters(task);
    const Access& access = hidden(Role::activation_gradient);
    reads(access, activation(Held::activation, output_of(layers_ - 1), task), 0);
    scratch(head_scratch_bytes(problem_));
    require(task.loss_only == schedule_.evaluates(),
            "a gradient in an evaluation, or none without");
    if (task.loss_only) return require(!find(Role::head_gradient), "a gradient of a loss alone");
    writes(access, activation(Held::activation_gradient, output_of(layers_ - 1), task), 0);
    accumulates(Role::head_gradient, head_ == layers_ ? Held::head_gradient : Held::gradient, task);
  }
  void reads_activations(const Task& task) {
    on_gpu(task, task.layer);
    require(task.layer >= 0 && task.layer < layers_, "no such layer");
    reads(hidden(Role::input), input(task), 0);
    saved(task, task.available,
          [&](const Access& part, const Value& value) { reads(part, value, 0); });
  }
  void backward_with(const Task& task, std::uint64_t scratch_bytes) {
    reads_activations(task);
    reads_parameters(task);
    const Access& access = hidden(Role::activation_gradient);
    reads(access, output_gradient_of(task), 0);
    scratch(scratch_bytes);
    writes(access, input_gradient_of(task), 0);
  }
  void backward(const Task& task) {
    backward_with(task, backward_scratch_bytes(problem_, task.available));
    accumulates(Role::gradient, Held::gradient, task);
  }
  // What the first pass leaves for the second.
  Value operands_of(const Task& task) const {
    Value value = activation(Held::saved, task.layer, task);
    value.first = std::uint64_t{1} << 32;
    return value;
  }
  const Access& weight_operands(const Task& task) const {
    return operand(Role::weight_operands, weight_operand_bytes(problem_, task.available),
                   Tier::gpu);
  }
  void input_gradient(const Task& task) {
    require(problem_.workload.pipeline > 1, "a pass that stages alone have");
    backward_with(task, input_gradient_scratch_bytes(problem_, task.available));
    writes(weight_operands(task), operands_of(task), 0);
  }
  void weight_gradient(const Task& task) {
    reads_activations(task);
    reads(weight_operands(task), operands_of(task), 0);
    scratch(weight_gradient_scratch_bytes(problem_));
    accumulates(Role::gradient, Held::gradient, task);
  }
  void embed_backward(const Task& task) {
    on_gpu(task, layers_);
    reads(hidden(Role::activation_gradient), activation(Held::activation_gradient, 0, task), 0);
    accumulates(Role::gradient, Held::gradient, task);
  }
  // Whether the gradient of a task's unit is its own and the tied head's.
  bool has_two_sums(const Task& task) const { return task.layer == layers_ && head_ == layers_; }
  // Elements of the gradient of `step`, and of the head's, complete.
  void reads_complete(const Task& task, Tier tier, int step, std::uint64_t first,
                      std::uint64_t elements) {
    const std::uint64_t width = problem_.gradient_bytes();
    const std::int64_t parts = micro_batches_ * problem_.workload.ranks;
    const std::uint64_t everyone =
        parts == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << parts) - 1;
    const auto reads_sum = [&](Role role, Held held) {
      Value sum = gradient(held, task.layer, step, everyone);
      const Access& access = operand(role, elements * width, tier);
      if (joint_) {
        const std::string stated = joint_->stated_sum(problem_.rank, task.layer, held, step);
        const Value found = read_run(access, 0).value;
        if (found.held == held && joint_->names.name(found.first) != stated)
          fail("the gradient is " + joint_->names.name(found.first) + ", not " + stated);
        sum.first = joint_->names.id_of(stated);
      }
      reads(access, sum, first * width);
    };
    reads_sum(Role::gradient, Held::gradient);
    require((find(Role::head_gradient) != nullptr) == has_two_sums(task), "the head's gradient");
    if (has_two_sums(task)) reads_sum(Role::head_gradient, Held::head_gradient);
  }
  Access gradient_operand(Tier tier) const {
    const Access* access = find(Role::gradient);
    require(access != nullptr, "an operand is missing");
    return operand(Role::gradient, access->bytes, tier);
  }
  void optimizer(const Task& task);
  Value norm(int unit, int step) const { return {Held::norm, unit, step, -1, 0, 0, 0}; }
  void gradient_norm(const Task& task) {
    const Tier tier = task.lane == Lane::gpu_compute ? Tier::gpu : Tier::host;
    require(problem_.workload.needs_norms(), "a norm that nobody asked for");
    require(tier == Tier::gpu || task.lane == Lane::cpu_optimizer, "a norm on another lane");
    require(task.update == task.step, "the norm of another step's gradient");
    const std::uint64_t width = problem_.gradient_bytes();
    std::uint64_t first = 0, elements = trained(task.layer);
    if (joint_) {  // of what this rank has of the gradient
      const Access whole = gradient_operand(tier);
      first = read_run(whole, 0).from / width;
      elements = whole.bytes / width;
    }
    reads_complete(task, tier, task.step, first, elements);
    require(task.bytes == (has_two_sums(task) ? 2 : 1) * elements * width,
            "bytes of another gradient");
    Value part = norm(task.layer, task.step);
    part.first = first;
    part.elements = joint_ ? elements : 0;
    writes(operand(Role::norms, norm_slot_bytes, Tier::host), part, 0);
    ++count_[{task.step, task.kind, task.layer, 0}];
  }
  // (symbolic_checks.hpp)
  void reads_norms(const Task& task);
  void copy(Tier from, Tier to, Lane lane, const Task& task);
  void check_counts() const;
  void check_count(int step, TaskKind kind, int layer, int micro_batch) const;

  const Schedule& schedule_;
  bool forward_again_;
  Joint* joint_;  // null: one rank
  const Problem& problem_;
  int layers_, head_, micro_batches_, in_group_;
  int step_ = 0;
  TaskId task_ = 0, next_ = 0;
  std::array<ShadowMemory, tier_count> memory_;
  std::map<std::tuple<int, TaskKind, int, int>, int> count_;  // step, kind, layer, micro-batch
  std::map<std::tuple<int, Held, int, int>, std::uint64_t> summed_;  // step, which, unit, group
  std::map<std::tuple<int, Held, int>, std::vector<int>> order_;
};

}  // namespace spillway::test

#include "tests/policies/symbolic_checks.hpp"
#include "tests/policies/symbolic_sums.hpp"
