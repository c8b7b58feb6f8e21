// A plan: what a policy decides for one problem, as a value. Where tensors rest, how far ahead they
// are fetched, what is kept for backward, how the optimizer takes the model. What is computed in
// which order is said by Policy::step; every copy follows from both (residency.hpp).
//
// Distances are counted in visits and in turns. A visit is one layer on one micro-batch, forward or
// backward; the last layer's forward and backward of a micro-batch are one visit. A turn is a row
// of visits to the same layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policies/model/gpt_layout.hpp"
#include "policies/movement/retention.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Fractions of a tensor by memory, in this order from its first element; they add up to 1.
struct Share {
  double gpu = 0, host = 0, ssd = 0;
  bool operator==(const Share&) const = default;
};

// What the optimizer takes at a time.
enum class UpdateGroup : std::uint8_t {
  calls,    // what each Step::update names
  at_most,  // as many calls in a row as have `elements`; a larger one is cut into equal parts
  tensors   // whole tensors, until there are `elements` (DeepSpeed's sub-groups)
};

// Parameters that are fetched tensor by tensor (parameter_window.hpp). Numbers of elements.
struct ParameterAhead {
  std::uint64_t bucket = 50'000'000;  // copied to the GPU ahead of use; 0: nothing is fetched ahead
  std::uint64_t most_on_gpu = 1'000'000'000;     // beyond it nothing is copied ahead
  std::uint64_t reuse_distance = 1'000'000'000;  // what is used again within it stays
  int most_in_host = 5;  // tensors that were read from the SSD, in as many slots
};

struct Plan {
  // The order of work of a policy that does not say one itself.
  struct {
    int row = 1;         // micro-batches of a layer in a row; 0: all
    bool snake = false;  // their order turns at every layer
    // Each update right after its layer's gradient is complete; else all of them after backward.
    bool updates_within = false;
    double delayed = 0;  // fraction of each layer's update that waits for the next step's forward
  } order;

  // 16-bit parameters. Those of the embedding are always on the GPU. Nothing is fetched for a step
  // before it begins.
  struct {
    Share rest{.host = 1};
    int host_ahead = 2;  // turns between a read from the SSD and the copy to the GPU
    int gpu_ahead = 1;   // turns between the copy to the GPU and the use
    std::optional<int> backward_gpu_ahead;  // of uses in backward; empty: gpu_ahead
    bool by_tensor = false;  // fetched as `tensors` says, instead of the distances above
    ParameterAhead tensors;
    std::uint64_t first_in_host = 0;  // the first so many elements of the layers rest in host
                                      // memory, by whole tensors, wherever the others rest
  } parameters;

  // Accumulators. Where a micro-batch leaves the sum for the next one.
  struct {
    bool on_gpu = true;
    int gpu_ahead = 1;  // visits between the copy of a sum to the GPU and its use
    // So many elements leave together, when the next layer's would be more; 0: each layer's on its
    // own, under the next turn.
    std::uint64_t bucket = 0;
    // Complete gradients rest on the SSD until they are applied; they pass through the host memory
    // of the optimizer's slots, and need a bucket.
    bool on_ssd = false;
    // Where what the loss adds to the embedding's gradient waits for backward's end: gpu or host.
    Tier head_waits = Tier::host;
  } gradients;

  // fp32 master weights and moments.
  struct {
    Share rest{.host = 1};
    std::optional<Share> embedding;  // empty: as rest
    int ahead = 1;                   // updates between a read from the SSD and the use
    int slots = 0;  // so many buffers in host memory take turns; 0: a buffer for each occasion
    // Results leave right after their update, whatever the slots; else with slots before the next
    // one.
    bool writes_at_once = false;
    // Results leave while the next update runs: after it was started or, at once, with nothing that
    // waits for them.
    bool writes_behind = false;
    // Where some updates run on the GPU and state rests in host memory: so many buffers on the GPU,
    // each for one update, take turns. State arrives as soon as the update before on the GPU is
    // done.
    int gpu_slots = 1;
  } optimizer_state;

  // The inputs of layers, between forward and backward.
  struct {
    Share rest{.host = 1};  // gpu: 0 or 1
    int host_ahead = 2;     // visits between a read from the SSD and the copy to the GPU
    int gpu_ahead = 1;      // visits between the copy to the GPU and the use
    // Micro-batches at each end of a layer's turn whose inputs are never on the SSD.
    int margin = 2;
  } checkpoints;

  // Gradients of activations, between a layer's backward and the next one's.
  struct {
    double on_gpu = 0;  // fraction of the micro-batches whose gradient stays there
  } activation_gradients;

  // What forward saves inside layers: by layer, a mask of SavedTensor. It rests where checkpoints
  // do.
  struct {
    std::vector<std::uint8_t> saves;
    // GPU buffers that layers take in turns, for orders that take one micro-batch through all
    // layers before the next; 0: a buffer for each occasion.
    int slots = 0;
    bool recomputes_output = true;  // where nothing is saved, recomputation re-runs the whole layer
  } saved;

  struct {
    int gpu_stride = 0;  // every so many updates one runs on the GPU: 0 none, 1 all
    // The thread that starts the GPU's work runs the optimizer: both wait for each other.
    bool blocking = false;
    // Updates whose gradient is there long before run as early as their parameters would be read
    // from the SSD; else where the order of work has them.
    bool early = true;
    // All updates of a step come in a row, after its backward, and nothing of them before.
    bool own_phase = false;
    UpdateGroup group = UpdateGroup::calls;
    std::uint64_t elements = 0;
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
// Equal plans have equal hashes, on every machine.
std::uint64_t hash_of(const Plan& plan);
// Fields and their domains, for people: "parameters.gpu_ahead", "a number from 0 to 64".
std::vector<std::pair<std::string, std::string>> plan_fields();
// Throws InputError where a field is outside of its domain, or where the plan is for another number
// of layers.
void check_plan(const Problem& problem, const Plan& plan);

}  // namespace spillway
