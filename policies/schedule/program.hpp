// Program: what a policy writes to. Emit tasks in program order; dependencies and memory are
// derived.
//
// Sequential task flow: a task declares the bytes it reads and writes, and `finish` derives
// read-after-write, write-after-read and write-after-write edges from them, at the granularity of
// byte ranges in each tier's arena, so that reuse of memory is just another write. A transient
// buffer is allocated at the task that first touches it and given back after its last. Persistent
// buffers live throughout. Emission order is prefetch order: what is emitted earlier on its lane
// starts earlier.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "policies/model/saved.hpp"
#include "policies/schedule/buffer_planner.hpp"
#include "policies/schedule/schedule.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Points between tasks at which a framework's host thread may wait. They are no tasks and order
// nothing by themselves; Rewriting reports them, so that barriers can be emitted there.
enum class HostPoint : std::uint8_t {
  visit,             // a layer on a micro-batch begins
  turn,              // a layer begins
  step,              // a step begins
  parameters_read,   // reads from the SSD were started whose result is copied to the GPU next
  parameters_due,    // the layer that runs next needs a tensor of its parameters on the GPU
  gradients_leave,   // complete gradients leave the GPU next
  gradients_left,    // and have been sent
  optimizer_begins,  // the updates of a step come next, all in a row
  update_due,        // what an update reads is on its way to the memory where it runs
  updated,           // an update was started
  parameters_sent,   // the parameters that it made were sent where they rest
  state_sent,        // and its optimizer state, which nothing is to overlap
  optimizer_ends
};
inline constexpr int host_point_count = 13;
const char* to_string(HostPoint point);  // "visit", "parameters due"

// What is kept of the tasks that are emitted.
enum class Recording : std::uint8_t {
  all,
  lifetimes  // only of buffers, for live_peaks(): faster, to try out where model states go
};

// Longer schedules, and larger buffers, are refused: InputError. A schedule of as many tasks takes
// some 7 GB to build and simulate.
inline constexpr TaskId most_tasks = 30'000'000;
inline constexpr std::uint64_t most_buffer_bytes = 1'000'000'000'000'000'000;

class Program {
 public:
  explicit Program(const Problem& problem, Recording recording = Recording::all);

  const Problem& problem() const { return problem_; }

  // The place of the tasks that follow.
  void at(int step, Phase phase);
  int step() const { return step_; }

  // -- buffers -----------------------------------------------------------------------------------
  // A new transient buffer; `bytes` is rounded up to buffer_alignment.
  Slice buffer(Tier tier, std::uint64_t bytes, BufferKind kind, int layer = -1,
               int micro_batch = -1);
  // A buffer that lives through the whole schedule.
  Slice persistent(Tier tier, std::uint64_t bytes, BufferKind kind, int layer = -1);
  Tier tier(Slice slice) const { return buffers_[slice.buffer.id].tier; }
  // Declares that the elements of a unit rest in `where`; every element of every unit needs a
  // parameters home and an optimizer_state home, exactly once.
  void home(BufferKind kind, int unit, std::uint64_t first_element, std::uint64_t elements,
            Slice where);

  // -- moving bytes ------------------------------------------------------------------------------
  // One hop: host->gpu h2d, gpu->host d2h, ssd->host read, host->ssd write. Sizes must be equal.
  TaskId copy(Slice from, Slice to, int layer = -1, int micro_batch = -1);

  // -- compute, on gpu.compute; every slice must be in the gpu tier ------------------------------
  TaskId embed_forward(int micro_batch, Slice parameters, Slice output);
  // Keeps the tensors of `saves` (a mask of saved_tensors()) in `saved`, laid out by saved_layout;
  // with an invalid `saved` and no mask nothing but the output.
  TaskId forward(int layer, int micro_batch, Slice parameters, Slice input, Slice output,
                 Slice saved = {}, SavedMask saves = saved_none);
  // Final norm, logits, loss and their gradients. `hidden` holds (b, T, C) and, afterwards, its
  // gradient. `parameters` and `head_gradient` are of the head's unit: where that is the embedding,
  // this gradient is a second accumulator. Where the unit is frozen, the gradient is invalid.
  TaskId head(int micro_batch, Slice parameters, Slice hidden, Slice head_gradient,
              bool first_micro_batch);
  // The losses alone: `hidden` is read.
  TaskId evaluate_head(int micro_batch, Slice parameters, Slice hidden);
  // `activation_gradient` holds dL/d(output) and, afterwards, dL/d(input). `saved` holds the
  // tensors of `available` (a mask of saved_tensors()), and no others; the rest is recomputed from
  // `input`; with `recomputes_output` the layer's output too, which nothing needs but which
  // frameworks that re-run the whole layer pay for. `held`, a gradient that is being reduced, is
  // not used, but no other buffer takes its memory before this task is emitted.
  TaskId backward(int layer, int micro_batch, Slice parameters, Slice input, Slice saved,
                  SavedMask available, Slice activation_gradient, Slice gradient,
                  bool first_micro_batch, bool recomputes_output, Slice held = {});
  // backward() in two passes. `operands`: weight_operand_bytes() of GPU memory, which the first
  // writes and the second, the gradient of the weights, reads.
  TaskId input_gradient(int layer, int micro_batch, Slice parameters, Slice input, Slice saved,
                        SavedMask available, Slice activation_gradient, Slice operands,
                        bool recomputes_output);
  TaskId weight_gradient(int layer, int micro_batch, Slice input, Slice saved, SavedMask available,
                         Slice operands, Slice gradient, bool first_micro_batch);
  std::uint64_t weight_operand_bytes(SavedMask available) {
    return costs_of(available).weight_operands;
  }
  TaskId embed_backward(int micro_batch, Slice activation_gradient, Slice gradient,
                        bool first_micro_batch);

  // The sum of the group that micro-batch `micro_batch` ends, of a unit's gradient or of what a
  // tied head adds to it, is added to the sum of the groups before it.
  TaskId gradient_add(int unit, int micro_batch, Slice group, Slice sum);

  // AdamW on elements [first_element, first_element + elements) of a unit: lane cpu.optimizer with
  // all slices in host memory, or gpu.compute with all in the gpu tier. `gradient` (and
  // `head_gradient`, for the embedding of a tied head) cover just these elements. `update` is the
  // step whose gradient is applied.
  TaskId optimizer(int unit, std::uint64_t first_element, std::uint64_t elements, Slice gradient,
                   Slice head_gradient, Slice optimizer_state, Slice parameters, int update);

  // The gradient of a unit is complete: summed over all micro-batches, the embedding unit's
  // together with its `head_gradient`. Call it once per unit and step, before the updates that
  // apply it. Where the workload clips or skips this emits gradient_norm, on gpu.compute with
  // slices in GPU memory, on cpu.optimizer in host memory; otherwise nothing.
  void gradient_complete(int unit, Slice gradient, Slice head_gradient = {});
  // Whether this has to be said of all units before the step's first optimizer is emitted (else
  // before the unit's own): an update then waits for the norm of the whole gradient.
  bool updates_wait() const { return problem_.workload.updates_wait(); }

  // -- collectives, of every rank of a group; every slice in the gpu tier -------------------------
  // This rank's part of a whole -> the parts of all, in order of the ranks; `part` may lie in
  // `whole`, where it belongs.
  TaskId all_gather(Lane lane, const RankGroup& group, Slice part, Slice whole, int layer,
                    int micro_batch = -1);
  // From the rank at place `from` of the group to the others.
  TaskId broadcast(Lane lane, const RankGroup& group, int from, Slice part, int layer,
                   int micro_batch = -1);
  // The sum of the group's wholes, of which this rank gets its part: in place of `part`, or added
  // to it.
  TaskId reduce_scatter(Lane lane, const RankGroup& group, Slice whole, Slice part, bool adds,
                        int layer, int micro_batch = -1);
  // The sum of the group's wholes, in place.
  TaskId all_reduce(Lane lane, const RankGroup& group, Slice whole, int layer,
                    int micro_batch = -1);
  // -- messages between stages of a pipeline, in the gpu tier -------------------------------------
  TaskId send(Lane lane, int stage, Slice message, int layer, int micro_batch = -1) {
    return this->message(TaskKind::send, lane, stage, message, layer, micro_batch);
  }
  TaskId receive(Lane lane, int stage, Slice message, int layer, int micro_batch = -1) {
    return this->message(TaskKind::receive, lane, stage, message, layer, micro_batch);
  }

  // The ranks among which a unit's gradient is shared out once it is complete, so that norms are
  // summed over them. To be said before the first gradient is.
  void share_gradients(const RankGroup& group, const GradientMeshes& meshes = {}) {
    gradient_group_ = group;
    meshes_ = meshes;
  }

  // What was emitted before on the lanes `waits_for` ends before anything emitted after on the
  // lanes `holds` starts; barriers keep their order among themselves, as on a host thread that
  // waits.
  // The host thread works for `host_ns` in between.
  TaskId barrier(LaneSet waits_for = LaneSet::all(), LaneSet holds = LaneSet::all(),
                 std::int64_t host_ns = 0);

  // Bytes by tier that hold something only because memory was left over (TierUse::kept_bytes).
  void set_kept(const TierBytes& kept) { kept_ = kept; }
  // What the schedule says of itself (Schedule::spare(), evaluates()).
  void set_spare(const TierBytes& spare) { spare_ = spare; }
  void set_evaluates() { evaluates_ = true; }
  // The place of the host thread in program order; kept with Recording::all.
  void point(HostPoint what) {
    if (recording_ == Recording::all) points_.push_back({next_task_, what});
  }

  // -- result ------------------------------------------------------------------------------------
  std::size_t task_count() const { return next_task_; }
  // Makes room for `steps` times what has been emitted so far: call it after one step.
  void expect_steps(int steps);
  // Most bytes live at one point of the program, by tier: what no placement can do without. What is
  // read in place does not count.
  TierBytes live_peaks() const;
  // Places all buffers (nothing may be emitted afterwards) and says what that takes of each tier:
  // what the schedule will use.
  const MemoryUse& plan_memory();
  // Plans memory, derives dependencies. Does not throw when it does not fit: see
  // Schedule::require_fit. `tasks_of_trials`: emitted before to settle what the policy left open.
  Schedule finish(std::string policy, int steps, std::uint64_t tasks_of_trials = 0) &&;

 private:
  friend class Rewriting;
  struct PlacedPoint {
    TaskId before = 0;  // the task that comes next
    HostPoint what = HostPoint::visit;
  };
  TaskId emit(Task& task, std::initializer_list<Access> accesses);
  Task collective(TaskKind kind, Lane lane, const RankGroup& group, int layer, int micro_batch);
  void reduce_norms(Slice slots, int unit);
  TaskId message(TaskKind kind, Lane lane, int stage, Slice message, int layer, int micro_batch);
  [[noreturn]] void fail_too_long() const;
  [[noreturn]] void fail_too_large(Tier tier, std::uint64_t bytes, BufferKind kind) const;
  Task compute_task(TaskKind kind, int layer, int micro_batch) const;
  void require_tier(Slice slice, Tier tier, const char* what) const;
  void require_gradient(Slice gradient, int unit, const char* what) const;
  void require_saved(Slice saved, SavedMask mask, const char* what);

  Problem problem_;
  Recording recording_;
  int step_ = 0;
  Phase phase_ = Phase::forward;
  TaskId next_task_ = 0;
  std::vector<Task> tasks_;
  std::vector<Access> accesses_;
  std::vector<BufferInfo> buffers_;
  std::vector<HomePart> homes_;
  std::vector<RankGroup> groups_;
  RankGroup gradient_group_;
  GradientMeshes meshes_;
  TierBytes kept_{}, spare_{};
  bool evaluates_ = false;
  std::vector<PlacedPoint> points_;
  std::optional<MemoryPlan> plan_;  // once memory is planned

  // Of a layer with these tensors saved.
  struct MaskCosts {
    bool known = false;
    std::uint64_t saved = 0, forward_scratch = 0, backward_scratch = 0;
    std::array<double, 2> backward_flops{};  // recomputing the output, too: the second
    std::uint64_t weight_operands = 0, input_gradient_scratch = 0;
  };
  // Of one micro-batch; the same for all tasks of a kind.
  struct TaskSizes {
    double forward_flops = 0, head_flops = 0, weight_gradient_flops = 0;
    std::uint64_t head_scratch = 0, embed_backward_scratch = 0, weight_gradient_scratch = 0;
    std::vector<MaskCosts> by_mask;  // as many as there are masks
  };
  const MaskCosts& costs_of(SavedMask mask);
  Slice norms_for(int unit, int update) const;
  struct Norms;
  Slice norm_slot(const Norms& norms, int unit) const;
  std::vector<bool> frozen_units() const;
  std::uint64_t in_place_bytes() const;
  // Elements of the unit that are trained.
  std::uint64_t trained_of(int unit) const {
    const ModelSpec& model = problem_.model;
    if (unit >= model.layers)
      return trained_of_outer_[static_cast<std::size_t>(unit - model.layers)];
    return unit < model.frozen_layers ? 0 : trained_of_layer_;
  }
  std::uint64_t trained_of_layer_ = 0;               // that is not frozen
  std::array<std::uint64_t, 2> trained_of_outer_{};  // the embedding, the head
  TaskSizes costs_;

  // The sums of squares of one step's gradient, by unit.
  struct Norms {
    int step = -1;
    Slice slots;
    std::vector<bool> known;
  };
  // By step modulo 2: an update may be delayed into the next step.
  std::array<Norms, 2> norms_;
};

// The memories of a machine: the GPU's, the host's, and its sets of drives (ssd, though without
// any, where there is none).
std::vector<Tier> memories_of(const Machine& machine);
// How many lanes tasks of the problem may be on, which are the first ones.
std::size_t lane_count_of(const Problem& problem);
// Bytes of memory by tier.
TierBytes capacities(const Machine& machine);

// The exact-shape key under which a compute task's time is measured and looked up, e.g.
// "gpt,C128,NH4,F512,V256,b4,T128,fp32,saved00"; ",s4" after the precision for a kernel batch of 4
// sequences, ",g16" where gradients are 16 bits wide.
// Empty for tasks timed by rate (copies, I/O, optimizer).
std::string kernel_shape(const Problem& problem, const Task& task);
// Ends the key of a layer's pass that was timed on operands in the caches (caches.hpp); without it
// they were in none.
inline constexpr const char* in_caches_suffix = ",in-caches";

// Key of the gradient-norm kernel on the CPU backend, whose rate is measured on this many elements.
inline constexpr std::int64_t gradient_norm_sample = 1 << 20;
std::string gradient_norm_shape();
// Key of the gradient-norm kernel on a GPU machine, where the rate depends on the lane and on the
// bytes of the unit's gradient.
std::string gradient_norm_shape(Lane lane, std::uint64_t bytes);

}  // namespace spillway
