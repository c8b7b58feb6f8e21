// Tasks, buffers, lanes: the vocabulary of a schedule.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "policies/machine/drive_sets.hpp"

namespace spillway {

// A memory, by its place in the machine's list: that of the GPU, that of the host, then each of its
// sets of drives, of which ssd is the first.
enum class Tier : std::uint8_t { gpu, host, ssd };
inline constexpr int tier_count = 2 + most_drive_sets;  // at most
constexpr Tier drives_tier(int set) { return static_cast<Tier>(static_cast<int>(Tier::ssd) + set); }
constexpr bool is_drives(Tier tier) { return tier >= Tier::ssd; }
// Of a tier of drives.
constexpr int drive_set(Tier tier) { return static_cast<int>(tier) - static_cast<int>(Tier::ssd); }
// Of a machine with so many sets: its tiers are the first ones.
constexpr int tier_count_of(int drive_sets) { return 2 + (drive_sets > 1 ? drive_sets : 1); }

// A queue that runs its tasks one after another, in program order.
enum class Lane : std::uint8_t {
  gpu_compute,
  pcie_h2d,
  pcie_d2h,
  ssd_read,
  ssd_write,
  cpu_optimizer,
  host_sync,
  // Collectives of ranks, a communicator each, so that those of one purpose do not wait for
  // others'.
  ranks_gather,  // parameters that rest in shards
  ranks_reduce,  // gradients
  ranks_spread,  // updated parameters, and complete gradients that are summed in shards
  // Of a stage of a pipeline, whose messages of one kind and way keep their order: outputs of the
  // stage before it and its own, gradients of its own outputs and of its inputs.
  stage_in,
  stage_out,
  stage_gradient_in,
  stage_gradient_out
  // Then, of each set of drives but the first, reads and writes: read_lane(), write_lane().
};
// Lanes that come first, which one rank has by itself; those that ranks have, and stages.
inline constexpr int lane_count_of_one_rank = 7, lane_count_of_ranks = 10,
                     lane_count_of_stages = 14;
inline constexpr int lane_count = lane_count_of_stages + 2 * (most_drive_sets - 1);  // at most
constexpr int lane_count_of(std::int64_t ranks, std::int64_t pipeline, int drive_sets) {
  return drive_sets > 1 ? lane_count_of_stages + 2 * (drive_sets - 1)
         : pipeline > 1 ? lane_count_of_stages
         : ranks > 1    ? lane_count_of_ranks
                        : lane_count_of_one_rank;
}
// The engines of a set of drives.
constexpr Lane read_lane(int set) {
  return set == 0 ? Lane::ssd_read : static_cast<Lane>(lane_count_of_stages + 2 * (set - 1));
}
constexpr Lane write_lane(int set) {
  return set == 0 ? Lane::ssd_write : static_cast<Lane>(lane_count_of_stages + 2 * (set - 1) + 1);
}
constexpr bool is_drive_lane(Lane lane) {
  return lane == Lane::ssd_read || lane == Lane::ssd_write ||
         static_cast<int>(lane) >= lane_count_of_stages;
}
// Of a lane of drives.
constexpr int drive_set(Lane lane) {
  const int index = static_cast<int>(lane);
  return index < lane_count_of_stages ? 0 : 1 + (index - lane_count_of_stages) / 2;
}
constexpr bool is_read_lane(Lane lane) {
  return is_drive_lane(lane) && lane == read_lane(drive_set(lane));
}

class LaneSet {
 public:
  constexpr LaneSet() = default;
  constexpr LaneSet(std::initializer_list<Lane> lanes) {
    for (const Lane lane : lanes) bits_ |= bit(lane);
  }
  static constexpr LaneSet all() {
    LaneSet set;
    set.bits_ = (1u << lane_count) - 1;
    return set;
  }
  static constexpr LaneSet of_bits(std::uint32_t bits) {
    LaneSet set;
    set.bits_ = bits;
    return set;
  }
  constexpr LaneSet with(Lane lane) const {
    LaneSet set;
    set.bits_ = bits_ | bit(lane);
    return set;
  }
  constexpr LaneSet without(LaneSet others) const {
    LaneSet set;
    set.bits_ = bits_ & ~others.bits_;
    return set;
  }
  constexpr bool contains(Lane lane) const { return (bits_ & bit(lane)) != 0; }
  constexpr std::uint32_t bits() const { return bits_; }
  bool operator==(const LaneSet&) const = default;

 private:
  static constexpr std::uint32_t bit(Lane lane) { return 1u << static_cast<unsigned>(lane); }
  std::uint32_t bits_ = 0;
};
static_assert(lane_count <= 32, "a LaneSet has a bit for each");

// The lanes that only several ranks have; and those that only stages of a pipeline have.
inline constexpr LaneSet lanes_of_ranks{Lane::ranks_gather, Lane::ranks_reduce, Lane::ranks_spread};
inline constexpr LaneSet lanes_of_stages{Lane::stage_in, Lane::stage_out, Lane::stage_gradient_in,
                                         Lane::stage_gradient_out};

// Those of sets of drives that a machine with so many sets does not have.
constexpr LaneSet lanes_of_no_drives(int drive_sets) {
  LaneSet lanes;
  for (int set = drive_sets > 1 ? drive_sets : 1; set < most_drive_sets; ++set)
    lanes = lanes.with(read_lane(set)).with(write_lane(set));
  return lanes;
}

enum class TaskKind : std::uint8_t {
  embed_forward,  // parameters -> output (b, T, C)
  forward,        // parameters, input -> output [, saved]
  head,      // parameters, activation_gradient in place: hidden (b, T, C) -> its gradient; loss;
             // gradient
  backward,  // parameters, input [, saved], activation_gradient in place, gradient; recomputes what
             // is not saved
  embed_backward,  // activation_gradient -> gradient
  optimizer,       // gradient [, head gradient] [, norms], optimizer_state in place -> parameters
  h2d,
  d2h,  // source -> destination over PCIe
  read,
  write,    // source -> destination between ssd and host
  barrier,  // no work: what came before it on some lanes ends before what comes after it on some
            // lanes starts
  gradient_norm,  // gradient [, head gradient] -> norms: the sum of squares of a unit's complete
                  // gradient, on the lane of the tier where it lies
  // Collectives: every rank of a group (Task::group) runs the task, and they run together.
  all_gather,      // source: this rank's part -> destination: the parts of all ranks of the group
  reduce_scatter,  // source: a whole -> destination: this rank's part of the sum over the group;
                   // added to what is there, unless first_micro_batch
  all_reduce,      // destination in place: the sum over the group
  norms_reduce,    // norms in place: sums over the group of what each rank has of a unit
  gradient_add,    // source: the sum of a group of micro-batches -> added to destination, the sum
                   // of the groups before it
  // Between two stages of a pipeline (Task::group): a message is a `send` of the one and a
  // `receive` of the other, which run together; the n-th of a lane goes to the n-th of its other.
  send,     // source -> another stage
  receive,  // destination, from another stage
  // A backward in two passes (policies/model/weight_operands.hpp), of a stage.
  input_gradient,   // parameters, input [, saved], activation_gradient in place -> weight_operands
  weight_gradient,  // input [, saved], weight_operands, gradient
  broadcast         // a collective: destination in place, from one rank of the group (Task::saves)
};
inline constexpr int task_kind_count = 22;
// Which come first, and are all there are of one rank that sums a gradient in one group; and in
// several.
inline constexpr int task_kind_count_of_one_rank = 12, task_kind_count_of_groups = 17;
constexpr int task_kind_count_of(std::int64_t ranks, std::int64_t gradient_groups,
                                 std::int64_t pipeline) {
  return pipeline > 1 || ranks > 1 ? task_kind_count
         : gradient_groups > 1     ? task_kind_count_of_groups
                                   : task_kind_count_of_one_rank;
}
// Of the gradient of a layer's input and of its weights, or of one of them.
inline constexpr bool is_backward(TaskKind kind) {
  return kind == TaskKind::backward || kind == TaskKind::input_gradient ||
         kind == TaskKind::weight_gradient;
}
// A pass of a layer.
inline constexpr bool is_layer_pass(TaskKind kind) {
  return kind == TaskKind::forward || is_backward(kind);
}
inline constexpr bool is_message(TaskKind kind) {
  return kind == TaskKind::send || kind == TaskKind::receive;
}
inline constexpr bool is_collective(TaskKind kind) {
  return kind == TaskKind::all_gather || kind == TaskKind::reduce_scatter ||
         kind == TaskKind::all_reduce || kind == TaskKind::norms_reduce ||
         kind == TaskKind::broadcast;
}

enum class Phase : std::uint8_t { forward, backward, optimizer, epilogue };
inline constexpr int phase_count = 4;

enum class BufferKind : std::uint8_t {
  parameters,           // of a unit, parameter_bytes per element
  gradient,             // accumulator of a unit
  head_gradient,        // the embedding unit's second accumulator: what a tied head contributes
  optimizer_state,      // [master | m | v] of a range of elements; moments fp32 or bf16
  checkpoint,           // (b, T, C) between layers
  saved,                // tensors inside one layer, of one micro-batch (saved_layout, or
                        // weight_operands.hpp)
  activation_gradient,  // (b, T, C)
  scratch,              // inside one task
  norms,                // of one step: a norm_slot_bytes each for the units' sums of squares
};
inline constexpr int buffer_kind_count = 9;
inline constexpr std::uint64_t norm_slot_bytes = 8;  // a double

const char* to_string(Tier tier);        // "gpu"
const char* to_string(Lane lane);        // "gpu.compute"
const char* to_string(TaskKind kind);    // "embed_forward"
const char* to_string(Phase phase);      // "forward"
const char* to_string(BufferKind kind);  // "parameters"

// One hop of a copy: a task of that kind on that engine moves bytes from the one memory to the
// other.
struct Route {
  Tier from = Tier::gpu, to = Tier::host;
  TaskKind kind = TaskKind::h2d;
  Lane engine = Lane::pcie_h2d;
};
// Null where no single hop leads from one to the other.
const Route* find_route(Tier from, Tier to);

using TaskId = std::uint32_t;
using BufferId = std::uint32_t;
inline constexpr std::uint32_t none = 0xffffffffu;

struct Buffer {
  BufferId id = none;
  bool valid() const { return id != none; }
};

// A range of bytes inside a buffer.
struct Slice {
  Buffer buffer;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  bool valid() const { return buffer.valid(); }
  Slice part(std::uint64_t from, std::uint64_t count) const {
    return {buffer, offset + from, count};
  }
};

struct BufferInfo {
  BufferKind kind = BufferKind::scratch;
  Tier tier = Tier::gpu;
  bool persistent = false;  // lives through the whole schedule
  std::int32_t layer = -1;  // unit
  std::int32_t micro_batch = -1;
  std::uint64_t bytes = 0;   // multiple of buffer_alignment
  std::uint64_t offset = 0;  // in the tier's arena, set by the planner
  TaskId first_use = none, last_use = none;
};

enum class Mode : std::uint8_t { read, write, read_write };

// What an access is to its task; the executor finds its operands by role.
enum class Role : std::uint8_t {
  parameters,
  gradient,
  head_gradient,
  optimizer_state,
  input,
  output,
  saved,
  activation_gradient,
  scratch,
  source,
  destination,
  norms,
  weight_operands
};

struct Access {
  BufferId buffer = none;
  Role role = Role::source;
  Mode mode = Mode::read;
  std::uint64_t offset = 0;  // in the buffer
  std::uint64_t bytes = 0;
};

struct Task {
  TaskKind kind = TaskKind::barrier;
  Lane lane = Lane::host_sync;
  Phase phase = Phase::forward;
  bool first_micro_batch : 1 =
      false;  // this task starts the gradient sum (overwrites the accumulator)
  bool recomputes_output : 1 = false;  // backward, input_gradient: recomputation runs the whole
                                       // layer, as the papers' frameworks do
  bool loss_only : 1 = false;          // head: the losses and no gradient
  bool pageable : 1 = false;       // h2d, d2h: the host's side is not pinned; slower, same bytes
  std::uint8_t in_caches : 3 = 0;  // compute on a CPU: sevenths of what it works on (caches.hpp)
  // backward and its two passes: SavedMask of what `saved` holds, the rest is recomputed; barrier:
  // waits_for();
  // collectives: calls that move it one after the other, in equal parts, as frameworks make them;
  // 0: one
  std::uint16_t available = 0;
  // forward: SavedMask of what it writes to `saved`; barrier: holds(); broadcast: the place in its
  // group of the rank that has it
  std::uint16_t saves = 0;
  // Collectives: in Schedule::groups(). Messages: the other stage.
  std::uint8_t group = 0;
  std::uint8_t access_count = 0;
  std::uint8_t pass_bytes =
      0;  // optimizer on the CPU: DRAM bytes per element that passes over the
          // gradient and the result cost beside AdamW, as frameworks make them
  std::uint32_t first_access = 0;
  std::int32_t step = 0;    // step in which it was emitted
  std::int32_t layer = -1;  // unit: layer 0..L-1, embedding L, untied head L+1; -1 none
  std::int32_t micro_batch = -1;
  std::int32_t update = -1;         // optimizer, gradient_norm: the step whose gradient it is
  std::uint64_t bytes = 0;          // moved, for copies and I/O; read, for gradient_norm; of the
                                    // whole, for collectives
  double flops = 0;                 // compute
  std::uint64_t params = 0;         // optimizer: elements updated; barrier: what a framework's
                                    // host thread does meanwhile, in ns
  std::uint64_t first_element = 0;  // optimizer: first element in the unit; barrier: lanes beyond
                                    // those that available and saves have bits for

  // Of a barrier: the lanes whose earlier tasks it waits for, and whose later tasks wait for it.
  LaneSet waits_for() const {
    return LaneSet::of_bits(available | (static_cast<std::uint32_t>(first_element) & 0xffffu)
                                            << 16);
  }
  LaneSet holds() const {
    return LaneSet::of_bits(saves | static_cast<std::uint32_t>(first_element >> 16) << 16);
  }
  void set_lanes(LaneSet waits_for, LaneSet holds) {
    available = static_cast<std::uint16_t>(waits_for.bits());
    saves = static_cast<std::uint16_t>(holds.bits());
    first_element = waits_for.bits() >> 16 | (holds.bits() >> 16) << 16;
  }
};
static_assert(sizeof(Task) == 64, "a schedule has millions");

}  // namespace spillway
