// Parts of SymbolicRun: sums of gradients, updates, and messages between stages. Included by
// symbolic_run.hpp alone.
#pragma once

#include "tests/policies/symbolic_run.hpp"

namespace spillway::test {

inline void SymbolicRun::message(const Task& task) {
  require(problem_.workload.pipeline > 1, "a message by itself");
  const bool of_head =
      task.lane == Lane::stage_gradient_in || task.lane == Lane::stage_gradient_out;
  Value value;
  if (task.micro_batch < 0) {  // sums of a tied embedding
    require(task.layer == layers_ && head_ == layers_, "a sum that nobody shares");
    value = gradient(of_head ? Held::head_gradient : Held::gradient, task.layer, task.step,
                     (std::uint64_t{1} << micro_batches_) - 1);
  } else {
    value = task.lane == Lane::stage_in            ? input(task)
            : task.lane == Lane::stage_out         ? output(task)
            : task.lane == Lane::stage_gradient_in ? output_gradient_of(task)
                                                   : input_gradient_of(task);
  }
  if (task.kind == TaskKind::receive)
    return writes(operand(Role::destination, task.bytes, Tier::gpu), value, 0);
  reads(operand(Role::source, task.bytes, Tier::gpu), value, 0);
}

inline void SymbolicRun::accumulates(Role role, Held held, const Task& task) {
  if (trained(task.layer) == 0)
    return require(find(role) == nullptr, "a gradient of what is frozen");
  const Access& access = operand(role, trained(task.layer) * problem_.gradient_bytes(), Tier::gpu);
  if (joint_) return accumulates_among_ranks(access, held, task);
  if (sums_by_meshes())
    return adds_to(access,
                   gradient(held, task.layer, task.step, std::uint64_t{1} << task.micro_batch),
                   task.first_micro_batch);
  std::uint64_t& summed = summed_[{task.step, held, task.layer, group_of(task)}];
  const std::uint64_t bit = std::uint64_t{1} << task.micro_batch;
  require((summed & bit) == 0, "adds a micro-batch twice");
  require(task.first_micro_batch == (summed == 0), "starts the sum anew, or does not start it");
  if (summed != 0) reads(access, gradient(held, task.layer, task.step, summed), 0);
  summed |= bit;
  writes(access, gradient(held, task.layer, task.step, summed), 0);
}

inline void SymbolicRun::adds_to(const Access& access, Value sum, bool starts) {
  if (!starts) {
    const Value before = read_run(access, 0).value;
    reads(access, before, 0);
    require(before.held == sum.held && before.unit == sum.unit && before.version == sum.version,
            "adds to another sum");
    require((before.summed & sum.summed) == 0, "adds a micro-batch twice");
    sum.summed |= before.summed;
  }
  writes(access, sum, 0);
}

inline void SymbolicRun::accumulates_among_ranks(const Access& access, Held held,
                                                 const Task& task) {
  const int place = problem_.rank * micro_batches_ + task.micro_batch;
  const std::uint64_t bit = std::uint64_t{1} << place;
  const std::string mine = fmt::format("r{}m{}", problem_.rank, task.micro_batch);
  order_[{task.step, held, task.layer}].push_back(task.micro_batch);
  Value sum = gradient(held, task.layer, task.step, bit);
  if (task.first_micro_batch) {
    sum.first = joint_->names.id_of(mine);
  } else {
    const Value before = read_run(access, 0).value;
    require(before.held == held && before.unit == task.layer && before.version == task.step,
            "adds to another sum");
    require((before.summed & bit) == 0, "adds a micro-batch twice");
    reads(access, before, 0);
    sum.summed |= before.summed;
    sum.first = joint_->names.id_of(joint_->names.name(before.first) + "+" + mine);
  }
  writes(access, sum, 0);
}

inline void SymbolicRun::gradient_add(const Task& task) {
  require(problem_.workload.gradient_groups > 1, "groups that nobody asked for");
  require(task.lane == Lane::gpu_compute, "compute on another lane");
  if (sums_by_meshes()) {
    const std::uint64_t whole = trained(task.layer) * problem_.gradient_bytes();
    const Access& source = operand(Role::source, whole, Tier::gpu);
    const Value sum = read_run(source, 0).value;
    reads(source, sum, 0);
    return adds_to(operand(Role::destination, whole, Tier::gpu), sum, false);
  }
  const int group = group_of(task);
  require(group > 0, "the first group is added to nothing");
  const Access* const sum = find(Role::destination);
  require(sum != nullptr, "an operand is missing");
  const bool of_head = schedule_.buffers()[sum->buffer].kind == BufferKind::head_gradient;
  const Held held = of_head ? Held::head_gradient : Held::gradient;
  const std::uint64_t bytes = trained(task.layer) * problem_.gradient_bytes();
  reads(operand(Role::source, bytes, Tier::gpu),
        gradient(held, task.layer, task.step, members(group)), 0);
  const std::uint64_t before = (std::uint64_t{1} << (group * in_group_)) - 1;
  const Access& into = operand(Role::destination, bytes, Tier::gpu);
  reads(into, gradient(held, task.layer, task.step, before), 0);
  writes(into, gradient(held, task.layer, task.step, before | members(group)), 0);
}

inline void SymbolicRun::optimizer(const Task& task) {
  const Tier tier = task.lane == Lane::gpu_compute ? Tier::gpu : Tier::host;
  require(!schedule_.evaluates(), "an update in an evaluation");
  require(tier == Tier::gpu || task.lane == Lane::cpu_optimizer, "AdamW on another lane");
  require(task.layer >= 0 && task.layer <= head_, "no such unit");
  require(task.update >= 0 && task.update <= task.step, "an update of a step to come");
  require(task.params > 0 && task.first_element + task.params <= trained(task.layer),
          "no such elements");
  reads_complete(task, tier, task.update, task.first_element, task.params);
  reads_norms(task);
  Value state{Held::optimizer_state, task.layer, task.update, -1, 0,
              task.first_element,    task.params};
  const Access& access = operand(Role::optimizer_state, task.params * problem_.state_bytes(), tier);
  reads(access, state, 0);
  ++state.version;
  writes(access, state, 0);
  const std::uint64_t bytes = problem_.parameter_bytes();
  writes(operand(Role::parameters, task.params * bytes, tier),
         parameters(task.layer, task.update + 1), task.first_element * bytes);
}

}  // namespace spillway::test
