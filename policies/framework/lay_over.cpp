#include "policies/framework/lay_over.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <vector>

#include "base/errors.hpp"
#include "policies/framework/rank_collectives.hpp"
#include "policies/framework/tensor_replay.hpp"
#include "policies/model/scratch.hpp"
#include "policies/model/tensors.hpp"
#include "policies/schedule/program.hpp"
#include "policies/schedule/rewriting.hpp"

namespace spillway {

namespace {

constexpr std::uint64_t fp32_bytes = 4;

// The norm ahead of a layer's feed-forward half, and what that computes up to its last product; of
// a llama layer the same bits.
constexpr SavedMask feed_forward = gpt_saved::ln2 | gpt_saved::fc | gpt_saved::gelu;
static_assert(feed_forward == (llama_saved::norm2 | llama_saved::gate_up | llama_saved::product));

class Layer {
 public:
  Layer(Program& program, const Framework& framework, Recording recording)
      : program_(program),
        framework_(framework),
        problem_(program.problem()),
        again_(program, recording),
        width_(problem_.gradient_bytes()),
        collectives_(again_, framework, problem_),
        wide_(std::max<std::uint64_t>(width_,
                                      static_cast<std::uint64_t>(framework.gradient_bytes))) {}

  void lay() {
    shrink_to_pieces();
    collectives_.shrink_gradients();
    take_gpu_memory();
    take_host_memory();
    if (framework_.pageable_checkpoints && framework_.last_checkpoint_leaves && checkpoints_leave())
      last_checkpoint_ =
          program_.persistent(Tier::host, checkpoint_bytes(problem_), BufferKind::checkpoint);
    if (framework_.pageable_gradients) find_gradient_copies();
    const auto count = static_cast<TaskId>(again_.tasks().size());
    for (TaskId id = 0; id < count; ++id) {
      again_.points(id, [&](HostPoint point) { pass(point); });
      if (!moved_.empty() && moved_[id]) continue;
      add(id);
      const auto copies = copies_after_.find(id);
      if (copies == copies_after_.end()) continue;
      for (const TaskId moved : copies->second) add(moved);
    }
    again_.points(count, [&](HostPoint point) { pass(point); });
    collectives_.flush();
  }

 private:
  // -- memory
  // ----------------------------------------------------------------------------------------
  void take(Tier tier, std::uint64_t bytes) {
    if (bytes > 0) program_.persistent(tier, bytes, BufferKind::scratch);
  }

  // Elements of gradients.
  std::uint64_t layer_elements() const {
    const ModelSpec& model = problem_.model;
    return static_cast<std::uint64_t>(model.layers - model.frozen_layers) *
           of_rank(static_cast<std::uint64_t>(trained_elements(model, model.layers - 1)));
  }
  // Of elements that all ranks share out, tensor by tensor.
  std::uint64_t of_rank(std::uint64_t elements) const {
    const auto ranks = static_cast<std::uint64_t>(problem_.workload.ranks);
    return (elements + ranks - 1) / ranks;
  }
  std::uint64_t pinned(std::uint64_t bytes) const {
    return framework_.pinned_rounding && bytes > 0 ? std::bit_ceil(bytes) : bytes;
  }

  // What autograd holds at once beyond the scratch of this program's kernels, which take a few
  // sequences, or a few rows of logits, at a time, for the whole micro-batch: one recomputed layer
  // with its gradients (of fc, of qkv, and three of width C, none of which takes the place of
  // another), or the larger half of it; or logits with their gradient. What was saved in place of
  // being recomputed has buffers of the schedule.
  std::uint64_t autograd_bytes() const {
    const ModelSpec& model = problem_.model;
    std::uint64_t part = 0;
    for (TaskId id = 0; id < again_.tasks().size(); ++id) {
      const Task& task = again_.tasks()[id];
      if (task.kind != TaskKind::backward) continue;
      part =
          std::max(part, framework_.checkpoints_per_layer > 1 ? feed_forward_bytes(task.available)
                                                              : layer_bytes(task.available));
    }
    const std::uint64_t logits = static_cast<std::uint64_t>(framework_.logit_bytes) * tokens() *
                                 static_cast<std::uint64_t>(model.vocabulary);
    const std::uint64_t live = std::max(part, logits);
    return live - std::min(backward_scratch_bytes(problem_, saved_none), live);
  }
  std::uint64_t tokens() const {
    return static_cast<std::uint64_t>(problem_.workload.micro_batch * problem_.workload.sequence);
  }
  std::uint64_t layer_bytes(SavedMask available) const {
    const ModelSpec& model = problem_.model;
    const auto sequences = static_cast<std::uint64_t>(problem_.workload.micro_batch);
    const auto gradients =
        static_cast<std::uint64_t>(model.ffn + model.qkv_width() + 3 * model.hidden);
    return sequences * saved_bytes(problem_, saved_others(model, available), 1) +
           tokens() * gradients * problem_.activation_bytes();
  }
  // Where the halves of a layer are recomputed by themselves, the feed-forward half is larger: the
  // norm's output, what is F wide (up; gate, too; their product or GELU), and the gradient of that
  // product, for the whole micro-batch. Its input and the gradient of its output are the
  // schedule's.
  std::uint64_t feed_forward_bytes(SavedMask available) const {
    std::int64_t width = problem_.model.ffn;
    for (const SavedTensor& tensor : saved_tensors(problem_.model)) {
      if ((tensor.bit & feed_forward & ~available) != 0) width += tensor.width;
    }
    return tokens() * static_cast<std::uint64_t>(width) * problem_.activation_bytes();
  }

  // GPU buffers of a layer's parameters and gradients that come and go: together they take what
  // the other program's pieces take, where that is less.
  void shrink_to_pieces() {
    if (framework_.layer_pieces == 0) return;
    const auto buffers = again_.buffers();
    std::vector<std::uint64_t> bytes(buffers.size());
    for (const auto& [kind, pieces] :
         {std::pair(BufferKind::parameters, framework_.parameter_pieces),
          std::pair(BufferKind::gradient, framework_.gradient_pieces)}) {
      std::vector<bool> chosen(buffers.size());
      std::uint64_t layer = 0;
      for (BufferId id = 0; id < buffers.size(); ++id) {
        const BufferInfo& one = buffers[id];
        chosen[id] = one.tier == Tier::gpu && one.kind == kind && !one.persistent &&
                     one.layer >= 0 && one.layer < problem_.model.layers && one.first_use != none;
        if (chosen[id]) layer = std::max(layer, one.bytes);
      }
      const auto held = static_cast<double>(live_peak(Tier::gpu, chosen));
      // Beyond the layer in use and the next one: kept on purpose, for a use to come.
      const double kept = std::max(0.0, held - 2 * static_cast<double>(layer));
      const double wanted = kept + static_cast<double>(layer) * static_cast<double>(pieces) /
                                       static_cast<double>(framework_.layer_pieces);
      if (pieces == 0 || wanted >= held) continue;
      for (BufferId id = 0; id < buffers.size(); ++id) {
        if (chosen[id])
          bytes[id] = std::max<std::uint64_t>(
              1,
              static_cast<std::uint64_t>(static_cast<double>(buffers[id].bytes) * wanted / held));
      }
    }
    again_.shrink(bytes);
  }

  void take_gpu_memory() {
    take(Tier::gpu, framework_.gpu_bytes);
    if (framework_.whole_micro_batch) take(Tier::gpu, autograd_bytes());
    if (framework_.caching_allocator) take(Tier::gpu, allocator_bytes());
    if (framework_.gpu_bucket == 0) return;
    const auto grid = static_cast<std::uint64_t>(element_alignment);
    const std::uint64_t bucket =
        std::max(static_cast<std::uint64_t>(framework_.gpu_bucket) / grid * grid, grid);
    bucket_ = program_.persistent(Tier::gpu, bucket * width_, BufferKind::gradient);
  }

  // What PyTorch's allocator needs beyond the tensors that it serves: rounding, and free blocks
  // between used ones that are too small for the next tensor.
  std::uint64_t allocator_bytes() const {
    const ReplayedMemory memory = replay(tensors_of(again_, problem_, framework_));
    return memory.needed - std::min(memory.live, memory.needed);
  }

  // Most bytes live at once of the buffers of a tier that are among `chosen`.
  std::uint64_t live_peak(Tier tier, const std::vector<bool>& chosen) const {
    std::vector<BufferInfo> buffers;
    for (BufferId id = 0; id < again_.buffers().size(); ++id) {
      if (chosen[id]) buffers.push_back(again_.buffers()[id]);
    }
    if (buffers.empty()) return 0;
    return live_peaks(again_.tasks().size(), buffers)[static_cast<std::size_t>(tier)];
  }

  bool is_gradient(BufferId id) const {
    const BufferKind kind = again_.buffers()[id].kind;
    return kind == BufferKind::gradient || kind == BufferKind::head_gradient;
  }

  void take_host_memory() {
    const auto buffers = again_.buffers();
    std::vector<bool> applied(buffers.size()), summed(buffers.size()), on_ssd(buffers.size());
    std::vector<bool> read(buffers.size()), staged(buffers.size());
    for (BufferId id = 0; id < buffers.size(); ++id) {
      const BufferInfo& buffer = buffers[id];
      summed[id] = buffer.tier == Tier::host && is_gradient(id);
      on_ssd[id] = is_drives(buffer.tier) && is_gradient(id);
      staged[id] = buffer.tier == Tier::host && buffer.kind == BufferKind::optimizer_state;
    }
    for (const HomePart& home : again_.homes()) staged[home.where.buffer.id] = false;
    for (TaskId id = 0; id < again_.tasks().size(); ++id) {
      const Task& task = again_.tasks()[id];
      for (const Access& access : again_.accesses(id)) {
        const BufferInfo& buffer = buffers[access.buffer];
        if (task.kind == TaskKind::optimizer && summed[access.buffer]) {
          summed[access.buffer] = false;
          applied[access.buffer] = true;
        }
        if (task.kind == TaskKind::read && access.role == Role::destination &&
            buffer.kind == BufferKind::parameters)
          read[access.buffer] = true;
      }
    }
    const std::uint64_t parameters =
        of_rank(static_cast<std::uint64_t>(problem_.model.trained_parameters()));
    take(Tier::host, framework_.host_bytes);
    const double per_parameter = framework_.host_bytes_per_parameter +
                                 (framework_.fp16 ? framework_.overflow_bytes_per_parameter : 0);
    take(Tier::host, static_cast<std::uint64_t>(per_parameter * static_cast<double>(parameters)));
    take(Tier::host, live_peak(Tier::host, applied) / width_ * (wide_ - width_));
    for (const Tier tier : memories_of(problem_.machine)) {
      if (is_drives(tier)) take(tier, live_peak(tier, on_ssd) / width_ * (wide_ - width_));
    }
    if (framework_.accumulators) {
      const std::uint64_t flat = parameters * width_, live = live_peak(Tier::host, summed);
      const std::uint64_t all = layer_elements() * width_ + pinned(flat) - flat;
      if (live < all) take_accumulators(all - live, live == 0);
    }
    take_parameter_slots(live_peak(Tier::host, read));
    take_optimizer_slots(staged);
    take_optimizer_buffers(staged, applied);
    take(Tier::host, pinned(framework_.activation_buffer));
    take_checkpoints();
  }

  // Beyond what the schedule has of them: states and complete gradients.
  void take_optimizer_buffers(std::vector<bool> live, const std::vector<bool>& applied) {
    if (framework_.optimizer_buffers == 0) return;
    for (BufferId id = 0; id < live.size(); ++id) live[id] = live[id] || applied[id];
    const std::uint64_t there = live_peak(Tier::host, live);
    if (there == 0) return;
    const std::uint64_t all = static_cast<std::uint64_t>(framework_.optimizer_buffers) *
                              pinned(largest_group() * fp32_bytes);
    take(Tier::host, all - std::min(all, there));
  }

  // In elements: tensors of the layers in a row, until they are as many as the framework's group.
  std::uint64_t largest_group() const {
    const ModelSpec& model = problem_.model;
    const auto least = static_cast<std::uint64_t>(framework_.optimizer_group);
    std::uint64_t most = 0, group = 0;
    for (int layer = 0; layer < model.layers; ++layer) {
      for (const TensorRange& tensor : unit_tensors(model, layer)) {
        group += of_rank(tensor.elements);
        most = std::max(most, group);
        if (group >= least) group = 0;
      }
    }
    return most;
  }

  // What rounding adds to checkpoints in host memory, and that there is one of each half.
  void take_checkpoints() {
    if (!framework_.pinned_checkpoints) return;
    const auto buffers = again_.buffers();
    std::vector<bool> chosen(buffers.size());
    for (BufferId id = 0; id < buffers.size(); ++id)
      chosen[id] = buffers[id].kind == BufferKind::checkpoint && buffers[id].tier == Tier::host;
    const std::uint64_t one = checkpoint_bytes(problem_), live = live_peak(Tier::host, chosen);
    const auto of_layer = static_cast<std::uint64_t>(framework_.checkpoints_per_layer);
    const std::uint64_t all = live / one * of_layer * pinned(one);
    take(Tier::host, all - std::min(all, live));
  }

  // `whole`: the schedule has none of them, for there is one micro-batch.
  void take_accumulators(std::uint64_t bytes, bool whole) {
    const Slice taken = program_.persistent(Tier::host, bytes, BufferKind::scratch);
    if (whole) accumulators_ = taken;
  }

  void take_parameter_slots(std::uint64_t live) {
    if (live == 0) return;
    const std::uint64_t slot = of_rank(largest_tensor(problem_.model)) * problem_.parameter_bytes();
    const std::uint64_t all =
        static_cast<std::uint64_t>(framework_.parameter_slots) * pinned(slot) +
        pinned(framework_.parameter_buffer);
    take(Tier::host, all - std::min(all, live));
  }

  void take_optimizer_slots(const std::vector<bool>& staged) {
    const std::uint64_t live = live_peak(Tier::host, staged);
    const std::uint64_t elements = largest_update();
    if (!framework_.optimizer_slots || live == 0 || elements == 0) return;
    const std::uint64_t set = problem_.state_bytes() / fp32_bytes + 1;  // of slots: state, gradient
    std::uint64_t sets = 0;  // persistent buffers, or as many as the live bytes are
    for (BufferId id = 0; id < staged.size(); ++id) {
      if (staged[id] && again_.buffers()[id].persistent) ++sets;
    }
    if (sets == 0) sets = std::max<std::uint64_t>(1, live / (elements * problem_.state_bytes()));
    const std::uint64_t slots =
        std::max(sets * set, static_cast<std::uint64_t>(framework_.least_optimizer_slots));
    const std::uint64_t all = slots * pinned(elements * fp32_bytes);
    take(Tier::host, all - std::min(all, live));
  }

  bool checkpoints_leave() const {
    const auto buffers = again_.buffers();
    return std::any_of(buffers.begin(), buffers.end(), [](const BufferInfo& buffer) {
      return buffer.kind == BufferKind::checkpoint && buffer.tier == Tier::host;
    });
  }

  // In elements; none where no update is announced.
  std::uint64_t largest_update() {
    std::uint64_t most = 0, now = 0;
    for (TaskId id = 0; id < again_.tasks().size(); ++id) {
      const Task& task = again_.tasks()[id];
      now = task.kind == TaskKind::optimizer ? now + task.params : 0;
      most = std::max(most, now);
    }
    return most;
  }

  // -- waits and copies
  // ------------------------------------------------------------------------------
  void pass(HostPoint point) {
    collectives_.pass(point);
    leaves_ =
        point == HostPoint::gradients_leave || (leaves_ && point != HostPoint::gradients_left);
    for (const WaitRule& wait : framework_.waits) {
      if (wait.at != point) continue;
      collectives_.flush();
      again_.barrier(wait.waits_for, wait.holds);
    }
  }

  void add(TaskId id) {
    Task task = again_.tasks()[id];
    const auto accesses = again_.accesses(id);
    if (!is_collective(task.kind)) collectives_.before(task);
    switch (task.kind) {
      case TaskKind::forward:
        if (last_checkpoint_.valid() && task.layer + 1 == problem_.model.layers)
          move_last_checkpoint(task, accesses, TaskKind::d2h);
        break;
      case TaskKind::backward:
        is_first_ = task.first_micro_batch;
        if (last_checkpoint_.valid() && task.layer + 1 == problem_.model.layers)
          move_last_checkpoint(task, accesses, TaskKind::h2d);
        break;
      case TaskKind::optimizer:
        if (task.lane == Lane::cpu_optimizer)
          task.pass_bytes = static_cast<std::uint8_t>(pass_bytes(framework_, problem_));
        break;
      case TaskKind::read:
      case TaskKind::write:
        if (is_gradient_copy(accesses)) task.bytes = task.bytes / width_ * wide_;
        break;
      case TaskKind::h2d:
      case TaskKind::d2h:
        copy(task, accesses);
        return;
      case TaskKind::broadcast:
      case TaskKind::all_gather:
      case TaskKind::reduce_scatter:
      case TaskKind::all_reduce:
      case TaskKind::norms_reduce:
        collectives_.add(task, accesses);
        return;
      default:
        break;
    }
    again_.emit(task, collectives_.holding(task, accesses));
  }

  // Copies of gradients that the host thread waits for are made as soon as the gradient is.
  void find_gradient_copies() {
    std::vector<TaskId> made(again_.buffers().size(), none);  // by buffer: the last task that did
    moved_.assign(again_.tasks().size(), false);
    for (TaskId id = 0; id < again_.tasks().size(); ++id) {
      const auto accesses = again_.accesses(id);
      if (again_.tasks()[id].kind == TaskKind::d2h && is_gradient_copy(accesses)) {
        moved_[id] = made[accesses[0].buffer] != none;
        if (moved_[id]) copies_after_[made[accesses[0].buffer]].push_back(id);
      }
      for (const Access& access : accesses) {
        if (access.mode != Mode::read && is_gradient(access.buffer)) made[access.buffer] = id;
      }
    }
  }

  bool is_gradient_copy(std::span<const Access> accesses) const {
    return std::any_of(accesses.begin(), accesses.end(),
                       [&](const Access& access) { return is_gradient(access.buffer); });
  }
  bool is_checkpoint_copy(std::span<const Access> accesses) const {
    return again_.buffers()[accesses[0].buffer].kind == BufferKind::checkpoint;
  }

  void copy(Task task, std::span<const Access> accesses) {
    const bool out = task.kind == TaskKind::d2h, gradient = is_gradient_copy(accesses);
    if (framework_.one_copy_lane) task.lane = Lane::pcie_h2d;
    task.pageable = (framework_.pageable_checkpoints && is_checkpoint_copy(accesses)) ||
                    (framework_.pageable_gradients && gradient && out);
    if (task.pageable) again_.barrier({Lane::gpu_compute}, {task.lane});
    const bool of_layer = gradient && out && task.layer < problem_.model.layers;
    const bool returns = of_layer && is_first_ && framework_.gradients_return;
    if (of_layer && leaves_ && framework_.accumulators) {
      std::vector<Access> first(accesses.begin(), accesses.end());
      if (accumulators_.valid()) first[1] = in_accumulators(first[1].bytes);
      again_.emit(task, first);
      if (returns) come_back(task, first[1]);
    } else if (returns) {
      again_.emit(task, accesses);
      come_back(task, accesses[1]);
      if (task.pageable) again_.barrier({task.lane}, LaneSet::all());
      return;
    }
    if (out && gradient && leaves_) task.bytes = task.bytes / width_ * wide_;
    again_.emit(task, accesses);
    if (task.pageable) again_.barrier({task.lane}, LaneSet::all());
  }

  // The input of the last layer leaves before its forward and comes back before its backward.
  void move_last_checkpoint(Task task, std::span<const Access> accesses, TaskKind kind) {
    const auto input = std::find_if(accesses.begin(), accesses.end(),
                                    [](const Access& one) { return one.role == Role::input; });
    SPILLWAY_ASSERT(input != accesses.end(), "a layer has an input");
    const bool out = kind == TaskKind::d2h;
    Task copy;
    copy.kind = kind;
    copy.lane = out && !framework_.one_copy_lane ? Lane::pcie_d2h : Lane::pcie_h2d;
    copy.phase = task.phase;
    copy.step = task.step;
    copy.layer = task.layer;
    copy.micro_batch = task.micro_batch;
    copy.pageable = true;
    copy.bytes = input->bytes;
    const Access gpu = {input->buffer, out ? Role::source : Role::destination,
                        out ? Mode::read : Mode::write, input->offset, input->bytes};
    const Access host = {last_checkpoint_.buffer.id, out ? Role::destination : Role::source,
                         out ? Mode::write : Mode::read, 0, input->bytes};
    const std::array<Access, 2> both = {out ? gpu : host, out ? host : gpu};
    again_.barrier({Lane::gpu_compute}, {copy.lane});
    again_.emit(copy, both);
    again_.barrier({copy.lane}, LaneSet::all());
  }
  // A place for a gradient of so many bytes: one after the other, round and round.
  Access in_accumulators(std::uint64_t bytes) {
    if (accumulators_used_ + bytes > accumulators_.bytes) accumulators_used_ = 0;
    const Access place = {accumulators_.buffer.id, Role::destination, Mode::write,
                          accumulators_used_, bytes};
    accumulators_used_ += bytes;
    return place;
  }
  // The gradient that was just sent comes back to the GPU, in pieces of the bucket.
  void come_back(Task task, const Access& host) {
    if (!bucket_.valid()) return;
    task.kind = TaskKind::h2d;
    task.lane = Lane::pcie_h2d;
    for (std::uint64_t at = 0; at < host.bytes; at += bucket_.bytes) {
      const std::uint64_t bytes = std::min(bucket_.bytes, host.bytes - at);
      task.bytes = bytes;
      const std::array<Access, 2> accesses = {
          Access{host.buffer, Role::source, Mode::read, host.offset + at, bytes},
          Access{bucket_.buffer.id, Role::destination, Mode::write, 0, bytes}};
      again_.emit(task, accesses);
    }
  }

  Program& program_;
  const Framework& framework_;
  const Problem& problem_;
  Rewriting again_;
  std::uint64_t width_;  // bytes of a gradient in the schedule
  RankCollectives collectives_;
  std::uint64_t wide_;  // bytes of a gradient that leaves the GPU
  Slice bucket_;
  Slice last_checkpoint_;  // in host memory
  Slice accumulators_;     // in host memory, where the schedule has none
  std::uint64_t accumulators_used_ = 0;
  std::vector<bool> moved_;                             // by task: emitted with another one
  std::map<TaskId, std::vector<TaskId>> copies_after_;  // by task: emitted after it
  bool leaves_ = false;                                 // gradients that are complete are leaving
  bool is_first_ = false;  // the last backward began the sum of its layer
};

}  // namespace

void lay_over(Program& program, const Framework& framework, Recording recording) {
  Layer(program, framework, recording).lay();
}

}  // namespace spillway
