// A plan: what a policy decides for one problem, as a value. It says where tensors rest, how far
// ahead of a use they are fetched, what forward saves for backward, and what one update covers.
// Policy::step says what is computed in which order; every copy follows from both (residency.hpp).
//
// Distances are counted in visits and in turns. A visit is one layer on one micro-batch, forward or
// backward; the last layer's forward and backward of a micro-batch are one visit. A turn is a row
// of visits to the same layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/model/saved.hpp"
#include "policies/movement/by_layer.hpp"
#include "policies/movement/domains.hpp"
#include "policies/movement/retention.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Fractions of a tensor by memory, in this order from its first element; they add up to 1.
struct Share {
  double gpu = 0, host = 0, ssd = 0;
  // The rest in host memory, free of what a subtraction leaves behind: 0.45, not
  // 0.44999999999999996.
  static Share host_and_ssd(double on_ssd);
  bool operator==(const Share&) const = default;
};

// When layers are updated.
enum class UpdateOrder : std::uint8_t {
  within,     // each right after its gradient is complete
  ascending,  // all after backward, the lowest layer first
  descending  // all after backward, the highest layer first
};

// What one update of the optimizer covers.
enum class UpdateGroup : std::uint8_t {
  calls,    // what one call of Step::update names
  shares,   // as many shares of each call as there are micro-batches, one after each visit to the
            // layer two below: in forward for an update that waited for this step, else in backward
  at_most,  // calls in a row, up to `elements` elements; a call with more is cut into equal parts
  tensors   // whole tensors, until they have `elements` elements (DeepSpeed's sub-groups)
};

// Parameters that are fetched tensor by tensor (parameter_window.hpp). Numbers of elements.
struct ParameterAhead {
  std::uint64_t bucket = 50'000'000;  // copied to the GPU ahead of use; 0: nothing is fetched ahead
  std::uint64_t most_on_gpu = 1'000'000'000;     // with more on the GPU nothing is copied ahead
  std::uint64_t reuse_distance = 1'000'000'000;  // a tensor that is used again within it stays
  int most_in_host = 5;  // slots of host memory for tensors read from the SSD
};

struct Plan {
  // The order of work, where the policy does not override Policy::step.
  struct {
    int row = 1;         // micro-batches of a layer in a row; 0: all
    bool snake = false;  // micro-batches ascend in even layers and descend in odd ones
    UpdateOrder updates = UpdateOrder::descending;
    ByLayer<double> delayed{
        0};  // fraction of a layer's update that waits for the next step's forward
    // Updates after backward have the machine to themselves: a wait comes before and after them.
    bool waits = false;
  } order;

  // 16-bit parameters. Those of embedding and head are always on the GPU. Nothing is fetched for a
  // step before it begins.
  struct {
    ByLayer<Share> rest{Share{.host = 1}};  // gpu: 0 or 1
    int host_ahead = 2;  // turns between a read from the SSD and the copy to the GPU
    int gpu_ahead = 1;   // turns between the copy to the GPU and the use
    std::optional<int> backward_gpu_ahead;  // gpu_ahead of uses in backward; empty: as in forward
    bool by_tensor = false;  // `tensors` says what is fetched ahead, not the distances above
    ParameterAhead tensors;
    // Elements, from layer 0 on and by whole tensors, that rest in host memory whatever `rest`
    // says.
    std::uint64_t first_in_host = 0;
  } parameters;

  // Gradients of parameters, which are summed over micro-batches.
  struct {
    // A sum stays on the GPU between two micro-batches; else it rests in host memory meanwhile.
    bool on_gpu = true;
    int gpu_ahead = 1;  // visits between the copy of a sum to the GPU and its use
    // Complete gradients are collected on the GPU and leave together, before they would be more
    // than so many elements; 0: the gradient of each layer leaves by itself, under the next turn.
    std::uint64_t bucket = 0;
    // Complete gradients rest on the SSD until they are applied. On their way they pass through
    // host memory of optimizer_state.slots. Needs a bucket.
    bool on_ssd = false;
    // The memory (gpu or host) in which the head's gradient waits until backward ends. An untied
    // head is updated before that where its gradient is in the memory of the update.
    Tier head_waits = Tier::host;
  } gradients;

  // fp32 master weights and moments.
  struct {
    // gpu: 0, or 1 where the layer's parameters rest on the GPU, too; it is updated there then.
    ByLayer<Share> rest{Share{.host = 1}};
    std::optional<Share> embedding;  // that of embedding and head; empty: as the last layer's
    int ahead = 1;                   // updates between a read from the SSD and the use
    // Buffers in host memory that updates take in turns; 0: every update has a buffer of its own.
    int slots = 0;
    // The write of an update's result is emitted right after the update. Else only without slots;
    // with slots it is emitted right before the next update.
    bool writes_at_once = false;
    // The write of an update's result may overlap the next update. By itself: it is emitted after
    // the next update. With writes_at_once: no host thread of a framework waits for it.
    bool writes_behind = false;
    // Buffers on the GPU that updates on the GPU take in turns, for state that rests in host
    // memory. State arrives as soon as the GPU's previous update is done.
    int gpu_slots = 1;
  } optimizer_state;

  // The inputs of layers, between forward and backward.
  struct {
    ByLayer<Share> rest{Share{.host = 1}};  // gpu: 0 or 1
    int host_ahead = 2;  // visits between a read from the SSD and the copy to the GPU
    int gpu_ahead = 1;   // visits between the copy to the GPU and the use
    // Micro-batches at each end of a layer's turn whose inputs are never on the SSD.
    int margin = 2;
  } checkpoints;

  // Gradients of activations, between a layer's backward and the next one's.
  struct {
    double on_gpu = 0;  // fraction of the micro-batches whose gradient stays on the GPU
  } activation_gradients;

  // Tensors inside layers that forward saves.
  struct {
    // gpu: 0 or 1. Empty: they rest where checkpoints rest, of which and them the share is.
    std::optional<ByLayer<Share>> rest;
    ByLayer<SavedMask> saves;  // masks of saved_tensors()
    // GPU buffers that layers take in turns, for orders that take one micro-batch through all
    // layers before the next; 0: every layer and micro-batch has a buffer of its own.
    int slots = 0;
    bool recomputes_output = true;  // where nothing is saved, recomputation re-runs the whole layer
  } saved;

  // Several ranks. Meshes of ranks that have a shard each (shards.hpp); 0x0: left open. Each
  // divides the next one, and that of optimizer state all ranks.
  struct {
    // Of parameters that rest on the GPU, which are gathered for their use. Open: whole on every
    // rank. What rests elsewhere is in the shards of optimizer state.
    Mesh parameters{0, 0};
    // Of these, between a forward and the backward of its micro-batch: a second, larger shard,
    // gathered over the ranks of `parameters` that do not share it, and from which the whole is
    // gathered. Gradients are in the shards of parameters then. Open: there is none.
    Mesh second_parameters{0, 0};
    // Of sums of gradients, which are reduced after every micro-batch. Open: sums of whole layers,
    // which are reduced once they are complete.
    Mesh gradients{0, 0};
    Mesh optimizer_state{0, 0};  // open: all ranks
    // A complete sum is added up on all ranks, not only where its part is updated.
    bool all_reduce = false;
    // Updated parameters are spread by a broadcast of each rank's part, in place of one gather.
    bool broadcasts = false;
    // Parameters are gathered while layers before compute, sums are reduced while backward goes on,
    // and updated parameters spread while the next step's forward does; else the GPU waits for all
    // of them.
    bool gather_overlaps = true, reduce_overlaps = true, spread_overlaps = true;
  } shards;

  struct {
    // Of state that rests in host memory, one update in so many runs on the GPU: 0 none.
    int gpu_stride = 0;
    // The thread that launches the GPU's work also runs the optimizer, so each waits for the other.
    bool blocking = false;
    // An update whose gradient is in its memory early runs when its parameters would be read from
    // the SSD for their next use; else at its place in the order of work.
    bool early = true;
    // The updates of a step and the reads of their state come in a row, after the step's backward.
    bool own_phase = false;
    UpdateGroup group = UpdateGroup::calls;
    std::uint64_t elements = 100'000'000;  // of one update, in groups of elements
  } optimizer;

  RetentionByKind retention;
  // Memory for what retention keeps on the GPU, and for what was read from the SSD and is read
  // again soon; both 0: build_schedule finds what the plan of a registered policy leaves over.
  std::uint64_t spare_gpu_bytes = 0, spare_host_bytes = 0;
};

// The text of a plan names every field that is not as in Plan{}, in the order above:
// "parameters.rest=host:0.5+ssd:0.5 parameters.gpu_ahead=2 checkpoints.rest=gpu:1"; "" is Plan{}
// itself.
std::string to_text(const Plan& plan);
// Throws InputError for an unknown field (with near names) or a value outside of its domain.
Plan parse_plan(const std::string& text);
// Whether the optimizer state of a unit, of `layers` layers or after them, rests on the GPU and is
// updated there.
bool state_rests_on_gpu(const Plan& plan, int unit, int layers);
// Equal plans have equal hashes, on every machine.
std::uint64_t hash_of(const Plan& plan);
struct PlanField {
  std::string name;   // "parameters.gpu_ahead"
  std::string value;  // as in a plan's text
  std::string help;   // what it is
  TextDomain domain;
};
std::vector<PlanField> plan_fields(const Plan& plan = {});
// Whether `text` is a value of that field, which is set to it.
bool set_plan_field(Plan& plan, const std::string& name, const std::string& text);
// Throws InputError where a field is outside of its domain, or where the plan is for another number
// of layers.
void check_plan(const Problem& problem, const Plan& plan);

}  // namespace spillway
