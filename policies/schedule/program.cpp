#include "policies/schedule/program.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "base/units.hpp"
#include "policies/model/operators.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/stages.hpp"
#include "policies/model/weight_operands.hpp"

namespace spillway {

namespace {

Access access(Slice slice, Role role, Mode mode) {
  return {slice.buffer.id, role, mode, slice.offset, slice.bytes};
}

const Route& hop(Tier from, Tier to) {
  const Route* const route = find_route(from, to);
  if (route != nullptr) return *route;
  bug("a copy is one hop along ssd - host - gpu", __FILE__, __LINE__,
      fmt::format("{} to {}", to_string(from), to_string(to)));
}

}  // namespace

const char* to_string(HostPoint point) {
  constexpr const char* names[host_point_count] = {"visit",
                                                   "turn",
                                                   "step",
                                                   "parameters read",
                                                   "parameters due",
                                                   "gradients leave",
                                                   "gradients left",
                                                   "optimizer begins",
                                                   "update due",
                                                   "updated",
                                                   "parameters sent",
                                                   "state sent",
                                                   "optimizer ends"};
  return names[static_cast<std::size_t>(point)];
}

void Program::fail_too_large(Tier tier, std::uint64_t bytes, BufferKind kind) const {
  if (bytes <= most_buffer_bytes) fail_too_long();
  throw InputError(
      fmt::format("a buffer for {} in the {} tier takes {}, more than the {} that "
                  "sizes are held to",
                  to_string(kind), to_string(tier), format_bytes(static_cast<double>(bytes)),
                  format_bytes(static_cast<double>(most_buffer_bytes))),
      "a smaller model or micro-batch, or smaller sizes in the policy's options");
}

void Program::fail_too_long() const {
  throw InputError(
      fmt::format("the schedule has more than {} tasks, the most that are built: {} "
                  "layers, {} micro-batches, and what the policy's options cut small",
                  most_tasks, problem_.model.layers, problem_.workload.micro_batches()),
      "larger micro-batches, fewer steps at a time, or larger sizes in the policy's "
      "options");
}

Program::Program(const Problem& problem, Recording recording)
    : problem_(problem), recording_(recording) {
  problem_.validate();
  costs_.forward_flops = forward_flops(problem_);
  costs_.head_flops = head_flops(problem_);
  costs_.weight_gradient_flops = weight_gradient_flops(problem_);
  costs_.weight_gradient_scratch = weight_gradient_scratch_bytes(problem_);
  costs_.head_scratch = head_scratch_bytes(problem_);
  costs_.embed_backward_scratch = embed_backward_scratch_bytes(problem_);
  const ModelSpec& model = problem_.model;
  const auto trained = [&](std::int64_t unit) {
    return static_cast<std::uint64_t>(trained_elements(model, unit));
  };
  trained_of_layer_ = trained(model.layers - 1);
  trained_of_outer_ = {trained(embedding_unit(model)), trained(head_unit(model))};
  costs_.by_mask.resize(std::size_t{saved_all(problem_.model)} + 1);
  if (problem_.workload.pipeline > 1) share_gradients(shard_group(problem_.stages()));
}

void Program::at(int step, Phase phase) {
  step_ = step;
  phase_ = phase;
}

Slice Program::buffer(Tier tier, std::uint64_t bytes, BufferKind kind, int layer, int micro_batch) {
  SPILLWAY_ASSERT(bytes > 0);
  if (bytes > most_buffer_bytes || buffers_.size() >= most_tasks) fail_too_large(tier, bytes, kind);
  BufferInfo info;
  info.kind = kind;
  info.tier = tier;
  info.layer = layer;
  info.micro_batch = micro_batch;
  info.bytes = round_up(bytes, buffer_alignment);
  buffers_.push_back(info);
  return {{static_cast<BufferId>(buffers_.size() - 1)}, 0, info.bytes};
}

Slice Program::persistent(Tier tier, std::uint64_t bytes, BufferKind kind, int layer) {
  const Slice slice = buffer(tier, bytes, kind, layer);
  buffers_.back().persistent = true;
  return slice;
}

void Program::home(BufferKind kind, int unit, std::uint64_t first_element, std::uint64_t elements,
                   Slice where) {
  const std::uint64_t element =
      kind == BufferKind::optimizer_state ? problem_.state_bytes() : problem_.parameter_bytes();
  SPILLWAY_ASSERT(where.bytes == elements * element);
  SPILLWAY_ASSERT(buffers_[where.buffer.id].persistent);
  const bool frozen = first_element >= trained_of(unit);
  SPILLWAY_ASSERT(!frozen || kind == BufferKind::parameters,
                  "what is frozen has no optimizer state");
  homes_.push_back({kind, unit, first_element, elements, frozen, where});
}

void Program::require_tier(Slice slice, Tier tier, const char* what) const {
  SPILLWAY_ASSERT(slice.valid(), what);
  SPILLWAY_ASSERT(buffers_[slice.buffer.id].tier == tier, what);
  SPILLWAY_ASSERT(slice.offset + slice.bytes <= buffers_[slice.buffer.id].bytes, what);
}

// The accumulator of what is trained of a unit.
void Program::require_gradient(Slice gradient, int unit, const char* what) const {
  SPILLWAY_ASSERT(gradient.valid() == (trained_of(unit) > 0), what);
  if (gradient.valid()) require_tier(gradient, Tier::gpu, what);
}

void Program::require_saved(Slice saved, SavedMask mask, const char* what) {
  SPILLWAY_ASSERT(saved.valid() == (mask != saved_none), what);
  if (!saved.valid()) return;
  require_tier(saved, Tier::gpu, what);
  SPILLWAY_ASSERT(saved.bytes == costs_of(mask).saved, what);
}

TaskId Program::emit(Task& task, std::initializer_list<Access> accesses) {
  const TaskId id = next_task_++;
  SPILLWAY_ASSERT(!plan_);
  if (id >= most_tasks) fail_too_long();
  const auto first_access = static_cast<std::uint32_t>(accesses_.size());
  for (const Access& one : accesses) {
    if (one.buffer == none) continue;  // an optional operand that is absent
    BufferInfo& buffer = buffers_[one.buffer];
    if (buffer.first_use == none) buffer.first_use = id;
    buffer.last_use = id;
    if (recording_ == Recording::all) accesses_.push_back(one);
  }
  if (recording_ != Recording::all) return id;
  task.step = step_;
  task.phase = phase_;
  task.first_access = first_access;
  task.access_count = static_cast<std::uint8_t>(accesses_.size() - first_access);
  tasks_.push_back(task);
  return id;
}

// A task of the GPU.
inline Task Program::compute_task(TaskKind kind, int layer, int micro_batch) const {
  Task task;
  task.kind = kind;
  task.lane = Lane::gpu_compute;
  task.layer = layer;
  task.micro_batch = micro_batch;
  return task;
}

const Program::MaskCosts& Program::costs_of(SavedMask mask) {
  SPILLWAY_ASSERT(mask < costs_.by_mask.size(), "a mask of the model's tensors");
  MaskCosts& costs = costs_.by_mask[mask];
  if (!costs.known) {
    costs = {true,
             saved_bytes(problem_, mask),
             forward_scratch_bytes(problem_, mask),
             backward_scratch_bytes(problem_, mask),
             {backward_flops(problem_, mask, false), backward_flops(problem_, mask, true)},
             spillway::weight_operand_bytes(problem_, mask),
             input_gradient_scratch_bytes(problem_, mask)};
  }
  return costs;
}

void Program::expect_steps(int steps) {
  const auto make_room = [&](auto& list) {
    // What the first step has more or less of than the others hardly matters.
    list.reserve(list.size() * static_cast<std::size_t>(std::max(1, steps)) * 21 / 20);
  };
  make_room(tasks_);
  make_room(accesses_);
  make_room(buffers_);
}

TaskId Program::copy(Slice from, Slice to, int layer, int micro_batch) {
  SPILLWAY_ASSERT(from.bytes == to.bytes && from.bytes > 0);
  const Route& move = hop(tier(from), tier(to));
  require_tier(from, tier(from), "copy source");
  require_tier(to, tier(to), "copy destination");
  Task task;
  task.kind = move.kind;
  task.lane = move.engine;
  task.layer = layer;
  task.micro_batch = micro_batch;
  task.bytes = from.bytes;
  return emit(task,
              {access(from, Role::source, Mode::read), access(to, Role::destination, Mode::write)});
}

TaskId Program::embed_forward(int micro_batch, Slice parameters, Slice output) {
  require_tier(parameters, Tier::gpu, "embed_forward parameters");
  require_tier(output, Tier::gpu, "embed_forward output");
  Task task =
      compute_task(TaskKind::embed_forward, static_cast<int>(problem_.model.layers), micro_batch);
  task.bytes = embed_forward_bytes(problem_);
  return emit(task, {access(parameters, Role::parameters, Mode::read),
                     access(output, Role::output, Mode::write)});
}

TaskId Program::forward(int layer, int micro_batch, Slice parameters, Slice input, Slice output,
                        Slice saved, SavedMask saves) {
  require_tier(parameters, Tier::gpu, "forward parameters");
  require_tier(input, Tier::gpu, "forward input");
  require_tier(output, Tier::gpu, "forward output");
  require_saved(saved, saves, "forward saved");
  Task task = compute_task(TaskKind::forward, layer, micro_batch);
  task.saves = saves;
  task.flops = costs_.forward_flops;
  Slice scratch;
  if (const auto bytes = costs_of(saves).forward_scratch; bytes > 0) {
    scratch = buffer(Tier::gpu, bytes, BufferKind::scratch, layer, micro_batch);
  }
  return emit(
      task, {access(parameters, Role::parameters, Mode::read),
             access(input, Role::input, Mode::read), access(output, Role::output, Mode::write),
             access(saved, Role::saved, Mode::write), access(scratch, Role::scratch, Mode::write)});
}

TaskId Program::head(int micro_batch, Slice parameters, Slice hidden, Slice head_gradient,
                     bool first_micro_batch) {
  require_tier(parameters, Tier::gpu, "head parameters");
  require_tier(hidden, Tier::gpu, "head hidden");
  require_gradient(head_gradient, static_cast<int>(head_unit(problem_.model)), "head gradient");
  Task task =
      compute_task(TaskKind::head, static_cast<int>(head_unit(problem_.model)), micro_batch);
  task.first_micro_batch = first_micro_batch;
  task.flops = costs_.head_flops;
  const Slice scratch =
      buffer(Tier::gpu, costs_.head_scratch, BufferKind::scratch, task.layer, micro_batch);
  const Mode sum = first_micro_batch ? Mode::write : Mode::read_write;
  return emit(task, {access(parameters, Role::parameters, Mode::read),
                     access(hidden, Role::activation_gradient, Mode::read_write),
                     access(head_gradient, Role::head_gradient, sum),
                     access(scratch, Role::scratch, Mode::write)});
}

TaskId Program::evaluate_head(int micro_batch, Slice parameters, Slice hidden) {
  require_tier(parameters, Tier::gpu, "head parameters");
  require_tier(hidden, Tier::gpu, "head hidden");
  Task task =
      compute_task(TaskKind::head, static_cast<int>(head_unit(problem_.model)), micro_batch);
  task.loss_only = true;
  task.flops =
      problem_.model.head_forward_flops(problem_.workload.micro_batch, problem_.workload.sequence);
  const Slice scratch =
      buffer(Tier::gpu, costs_.head_scratch, BufferKind::scratch, task.layer, micro_batch);
  return emit(task, {access(parameters, Role::parameters, Mode::read),
                     access(hidden, Role::activation_gradient, Mode::read),
                     access(scratch, Role::scratch, Mode::write)});
}

TaskId Program::backward(int layer, int micro_batch, Slice parameters, Slice input, Slice saved,
                         SavedMask available, Slice activation_gradient, Slice gradient,
                         bool first_micro_batch, bool recomputes_output, Slice held) {
  require_tier(parameters, Tier::gpu, "backward parameters");
  require_tier(input, Tier::gpu, "backward input");
  require_tier(activation_gradient, Tier::gpu, "backward activation gradient");
  require_gradient(gradient, layer, "backward gradient");
  require_saved(saved, available, "backward saved");
  Task task = compute_task(TaskKind::backward, layer, micro_batch);
  task.available = available;
  task.first_micro_batch = first_micro_batch;
  task.recomputes_output = recomputes_output;
  const MaskCosts& costs = costs_of(available);
  task.flops = costs.backward_flops[recomputes_output ? 1 : 0];
  const Slice scratch =
      buffer(Tier::gpu, costs.backward_scratch, BufferKind::scratch, layer, micro_batch);
  const Mode sum = first_micro_batch ? Mode::write : Mode::read_write;
  return emit(task,
              {access(parameters, Role::parameters, Mode::read),
               access(input, Role::input, Mode::read), access(saved, Role::saved, Mode::read),
               access(activation_gradient, Role::activation_gradient, Mode::read_write),
               access(gradient, Role::gradient, sum), access(scratch, Role::scratch, Mode::write),
               access(held, Role::source, Mode::read)});
}

TaskId Program::input_gradient(int layer, int micro_batch, Slice parameters, Slice input,
                               Slice saved, SavedMask available, Slice activation_gradient,
                               Slice operands, bool recomputes_output) {
  require_tier(parameters, Tier::gpu, "input_gradient parameters");
  require_tier(input, Tier::gpu, "input_gradient input");
  require_tier(activation_gradient, Tier::gpu, "input_gradient activation gradient");
  require_tier(operands, Tier::gpu, "input_gradient operands");
  require_saved(saved, available, "input_gradient saved");
  const MaskCosts& costs = costs_of(available);
  SPILLWAY_ASSERT(operands.bytes == costs.weight_operands);
  Task task = compute_task(TaskKind::input_gradient, layer, micro_batch);
  task.available = available;
  task.recomputes_output = recomputes_output;
  task.flops = costs.backward_flops[recomputes_output ? 1 : 0] - costs_.weight_gradient_flops;
  const Slice scratch =
      buffer(Tier::gpu, costs.input_gradient_scratch, BufferKind::scratch, layer, micro_batch);
  return emit(task, {access(parameters, Role::parameters, Mode::read),
                     access(input, Role::input, Mode::read), access(saved, Role::saved, Mode::read),
                     access(activation_gradient, Role::activation_gradient, Mode::read_write),
                     access(operands, Role::weight_operands, Mode::write),
                     access(scratch, Role::scratch, Mode::write)});
}

TaskId Program::weight_gradient(int layer, int micro_batch, Slice input, Slice saved,
                                SavedMask available, Slice operands, Slice gradient,
                                bool first_micro_batch) {
  require_tier(input, Tier::gpu, "weight_gradient input");
  require_tier(operands, Tier::gpu, "weight_gradient operands");
  require_gradient(gradient, layer, "weight_gradient gradient");
  require_saved(saved, available, "weight_gradient saved");
  SPILLWAY_ASSERT(operands.bytes == costs_of(available).weight_operands);
  Task task = compute_task(TaskKind::weight_gradient, layer, micro_batch);
  task.available = available;
  task.first_micro_batch = first_micro_batch;
  task.flops = costs_.weight_gradient_flops;
  Slice scratch;
  if (const auto bytes = costs_.weight_gradient_scratch; bytes > 0)
    scratch = buffer(Tier::gpu, bytes, BufferKind::scratch, layer, micro_batch);
  const Mode sum = first_micro_batch ? Mode::write : Mode::read_write;
  return emit(task,
              {access(input, Role::input, Mode::read), access(saved, Role::saved, Mode::read),
               access(operands, Role::weight_operands, Mode::read),
               access(gradient, Role::gradient, sum), access(scratch, Role::scratch, Mode::write)});
}

TaskId Program::embed_backward(int micro_batch, Slice activation_gradient, Slice gradient,
                               bool first_micro_batch) {
  require_tier(activation_gradient, Tier::gpu, "embed_backward activation gradient");
  require_gradient(gradient, static_cast<int>(problem_.model.layers), "embed_backward gradient");
  Task task =
      compute_task(TaskKind::embed_backward, static_cast<int>(problem_.model.layers), micro_batch);
  task.first_micro_batch = first_micro_batch;
  // The whole accumulator is cleared at the start of the sum.
  task.bytes = embed_backward_bytes(problem_) + (first_micro_batch ? gradient.bytes : 0);
  Slice scratch;
  if (const auto bytes = costs_.embed_backward_scratch; bytes > 0)
    scratch = buffer(Tier::gpu, bytes, BufferKind::scratch, task.layer, micro_batch);
  const Mode sum = first_micro_batch ? Mode::write : Mode::read_write;
  return emit(task,
              {access(activation_gradient, Role::activation_gradient, Mode::read),
               access(gradient, Role::gradient, sum), access(scratch, Role::scratch, Mode::write)});
}

TaskId Program::gradient_add(int unit, int micro_batch, Slice group, Slice sum) {
  require_tier(group, Tier::gpu, "gradient_add group");
  require_tier(sum, Tier::gpu, "gradient_add sum");
  SPILLWAY_ASSERT(group.bytes == sum.bytes);
  Task task = compute_task(TaskKind::gradient_add, unit, micro_batch);
  task.bytes = 3 * sum.bytes;  // both are read, one is written
  return emit(task, {access(group, Role::source, Mode::read),
                     access(sum, Role::destination, Mode::read_write)});
}

TaskId Program::optimizer(int unit, std::uint64_t first_element, std::uint64_t elements,
                          Slice gradient, Slice head_gradient, Slice optimizer_state,
                          Slice parameters, int update) {
  const Tier where = tier(optimizer_state);
  SPILLWAY_ASSERT(!is_drives(where));
  require_tier(gradient, where, "optimizer gradient");
  require_tier(parameters, where, "optimizer parameters");
  if (head_gradient.valid()) require_tier(head_gradient, where, "optimizer head gradient");
  SPILLWAY_ASSERT(gradient.bytes == elements * problem_.gradient_bytes());
  SPILLWAY_ASSERT(parameters.bytes == elements * problem_.parameter_bytes());
  SPILLWAY_ASSERT(optimizer_state.bytes == elements * problem_.state_bytes());
  Task task;
  task.kind = TaskKind::optimizer;
  task.lane = where == Tier::gpu ? Lane::gpu_compute : Lane::cpu_optimizer;
  task.layer = unit;
  task.update = update;
  task.params = elements;
  task.first_element = first_element;
  return emit(task, {access(gradient, Role::gradient, Mode::read),
                     access(head_gradient, Role::head_gradient, Mode::read),
                     access(optimizer_state, Role::optimizer_state, Mode::read_write),
                     access(parameters, Role::parameters, Mode::write),
                     access(norms_for(unit, update), Role::norms, Mode::read)});
}

// Units without a gradient, whose norms nobody waits for.
std::vector<bool> Program::frozen_units() const {
  std::vector<bool> frozen;
  for (int unit = 0; unit < static_cast<int>(unit_count(problem_.model)); ++unit)
    frozen.push_back(trained_of(unit) == 0);
  return frozen;
}

void Program::gradient_complete(int unit, Slice gradient, Slice head_gradient) {
  if (!problem_.workload.needs_norms()) return;
  const auto index = static_cast<std::size_t>(unit);
  Norms& norms = norms_[static_cast<std::size_t>(step_ % 2)];
  if (norms.step != step_) {
    const auto units = static_cast<std::uint64_t>(unit_count(whole_model(problem_.model)));
    const std::uint64_t bytes = units * norm_slot_bytes;
    norms = {step_, buffer(Tier::host, bytes, BufferKind::norms).part(0, bytes), frozen_units()};
  }
  SPILLWAY_ASSERT(!norms.known[index], "the gradient of a unit is complete once a step");
  norms.known[index] = true;
  const Tier where = tier(gradient);
  SPILLWAY_ASSERT(!is_drives(where));
  require_tier(gradient, where, "complete gradient");
  SPILLWAY_ASSERT(problem_.workload.ranks > 1 ||
                  gradient.bytes == trained_of(unit) * problem_.gradient_bytes());
  SPILLWAY_ASSERT(
      head_gradient.valid() == (problem_.model.tied && unit == embedding_unit(problem_.model)),
      "the embedding has two where the head is tied");
  if (head_gradient.valid()) require_tier(head_gradient, where, "complete head gradient");
  Task task;
  task.kind = TaskKind::gradient_norm;
  task.lane = where == Tier::gpu ? Lane::gpu_compute : Lane::cpu_optimizer;
  task.layer = unit;
  task.update = step_;
  task.bytes = gradient.bytes + head_gradient.bytes;
  emit(task, {access(gradient, Role::gradient, Mode::read),
              access(head_gradient, Role::head_gradient, Mode::read),
              access(norm_slot(norms, unit), Role::norms, Mode::write)});
  const bool all_known =
      std::find(norms.known.begin(), norms.known.end(), false) == norms.known.end();
  if (!updates_wait()) {
    if (problem_.workload.pipeline == 1) reduce_norms(norm_slot(norms, unit), unit);
  } else if (all_known) {
    reduce_norms(norms.slots, -1);
  }
}

// There is one for each unit of the whole model.
Slice Program::norm_slot(const Norms& norms, int unit) const {
  const auto whole = static_cast<std::uint64_t>(whole_unit(problem_.model, unit));
  return norms.slots.part(whole * norm_slot_bytes, norm_slot_bytes);
}

// What an update has to know: the norm of its own unit's gradient, or those of all.
Slice Program::norms_for(int unit, int update) const {
  if (!problem_.workload.needs_norms()) return {};
  const Norms& norms = norms_[static_cast<std::size_t>(update % 2)];
  const auto index = static_cast<std::size_t>(unit);
  SPILLWAY_ASSERT(norms.step == update && norms.known[index],
                  "gradient_complete comes before the update that applies the gradient");
  if (!updates_wait()) return norm_slot(norms, unit);
  SPILLWAY_ASSERT(std::find(norms.known.begin(), norms.known.end(), false) == norms.known.end(),
                  "where updates wait, gradient_complete of all units comes before the first");
  return norms.slots;
}

TaskId Program::barrier(LaneSet waits_for, LaneSet holds, std::int64_t host_ns) {
  if (problem_.workload.processes() == 1) {
    waits_for = waits_for.without(lanes_of_ranks);
    holds = holds.without(lanes_of_ranks);
  }
  if (problem_.workload.pipeline == 1) {
    waits_for = waits_for.without(lanes_of_stages);
    holds = holds.without(lanes_of_stages);
  }
  const LaneSet absent = lanes_of_no_drives(problem_.machine.drive_sets());
  Task task;
  task.kind = TaskKind::barrier;
  task.set_lanes(waits_for.without(absent), holds.without(absent));
  task.lane = Lane::host_sync;
  task.params = static_cast<std::uint64_t>(host_ns);
  return emit(task, {});
}

}  // namespace spillway
