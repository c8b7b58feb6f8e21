// Activations on their way from forward to backward, and their gradients between layers.
//
// The input of a layer (a checkpoint) is used in forward and again in backward. A tensor that
// forward saves inside a layer is used in backward alone. The gradient of an activation is used by
// the layer below. A tensor that the next visit uses stays on the GPU; any other is offloaded once,
// one visit after it was made, and comes back as many visits before its use as the plan says. Where
// the gradient of the weights comes later, what it is made of stays on the GPU until then.
// Between stages of a pipeline activations and their gradients are sent and received when the
// order of work of all stages says (meetings.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policies/model/stages.hpp"
#include "policies/movement/drive_shares.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class Activations {
 public:
  // The arguments outlive the activations.
  Activations(Program& program, const Plan& plan, const OrderOfWork& work, const Timetable& times,
              const DriveShares& drives);

  // Whether all micro-batches of a layer run in a row, in every turn.
  bool has_whole_rows() const { return whole_rows_; }
  // Takes the host memory of resting_place(). To be called after the model states have theirs, so
  // that their offsets do not depend on the activations.
  void take_resting_places();
  // The same memory as another program of this plan has it, of an evaluation.
  void rest_as(const Activations& training) {
    resting_places_ = training.resting_places_;
    places_ = training.places_;
  }
  // Bytes of resting_place(layer), known before the memory is taken.
  std::uint64_t resting_bytes(int layer) const;
  // Host memory in which the inputs of a layer rest, where all micro-batches of a layer run in a
  // row; else invalid. Its contents are dead from the layer's backward to the next forward of the
  // layer below.
  Slice resting_place(int layer) const {
    return resting_places_.empty() ? Slice{} : resting_places_[static_cast<std::size_t>(layer)];
  }

  // Called before visit v: fetches the operands of v and of visits after it. Where the last layer
  // saves more than the others, most GPU memory is in use in its last visit, so operands of later
  // visits are fetched by fetch_after() when that visit is done.
  void fetch(VisitId v);
  void fetch_after(VisitId v) {
    if (is_peak(v)) fetch_until(v, true);
  }
  // Called after visit v: offloads results of the visit before v. With no_visit: all results that
  // are to be offloaded.
  void leave(VisitId v);

  // Operands of visit v in GPU memory; make_...() takes fresh memory for a result.
  Slice input(VisitId v) const { return checkpoint(v).gpu; }
  Slice make_input(VisitId v);  // of layer 0, from the embedding
  // Of a layer whose input another stage sends; it is received already.
  Slice received_input(VisitId v);
  // Sends what a visit made to another stage, or receives what a visit needs from one.
  void exchange(const Meeting& meeting);
  Slice make_output(VisitId v);  // the input of the next layer, or of the loss
  Slice make_saved(VisitId v);   // invalid where the layer saves nothing
  Slice saved(VisitId v) const;
  // What the gradient of the weights is made of, where that comes later (weight_operands.hpp).
  Slice make_operands(VisitId v);
  Slice operands(VisitId v) const {
    return operands_[index(work_.visits[v].layer, work_.visits[v].micro_batch)];
  }
  Slice gradient(VisitId v) const {
    return gradients_[micro_batch(v)].gpu;
  }  // of the output, in place

  SavedMask saves(int layer) const { return saves_[static_cast<std::size_t>(layer)]; }

 private:
  // A part on each set of drives, in their order; some may be empty.
  struct OnDrives {
    std::array<Slice, most_drive_sets> parts;
    bool valid() const { return bytes() > 0; }
    std::uint64_t bytes() const {
      std::uint64_t all = 0;
      for (const Slice& part : parts) all += part.bytes;
      return all;
    }
  };
  struct Tensor {
    Slice gpu, host;
    OnDrives ssd;
  };
  struct Saved {
    Slice gpu;
    std::vector<Tensor> parts;  // one for each tensor saved; their gpu is not used
  };
  enum class What : std::uint8_t { checkpoint, saved, gradient };
  struct Leaving {
    What what = What::checkpoint;
    std::int32_t layer = 0, micro_batch = 0;
    VisitId made = 0;
    Slice gpu;
  };

  std::size_t micro_batch(VisitId v) const {
    return static_cast<std::size_t>(work_.visits[v].micro_batch);
  }
  std::size_t index(int layer, int micro_batch) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }
  const Tensor& checkpoint(VisitId v) const {
    return checkpoints_[index(work_.visits[v].layer, work_.visits[v].micro_batch)];
  }
  const Share& rest_of_inputs(int layer) const { return plan_.checkpoints.rest.at(layer, layers_); }
  const Share& rest_of_saved(int layer) const {
    return plan_.saved.rest ? plan_.saved.rest->at(layer, layers_) : rest_of_inputs(layer);
  }
  void place_on_ssd();
  void place_first_layers(const ByLayer<Share>& rest, bool inputs, bool saved);
  Slice make_checkpoint(VisitId v, int layer, int micro_batch);
  void note_leaving(VisitId v, int layer, int micro_batch);
  void receive_for(VisitId v);
  void send_from(VisitId v);
  bool takes_input(int layer) const { return receives_input(program_.problem().model, layer); }
  bool hands_on(int layer) const { return sends_output(program_.problem().model, layer); }
  // Layers whose forward and backward are visits of their own come first.
  int ordinary_layers() const { return has_head(program_.problem().model) ? layers_ - 1 : layers_; }
  // The visit in which the input of a layer is made, or for which it is received.
  VisitId made_in(int step, int layer, int micro_batch) const {
    return uses_.forward(step, layer == 0 || takes_input(layer) ? layer : layer - 1, micro_batch);
  }
  Slice saved_memory(int layer, int micro_batch, bool is_kept);
  bool gradient_stays(int micro_batch) const;
  // Whether visit v comes late enough for operands of backward visit `use` to be read from the SSD.
  bool is_read_by(VisitId v, VisitId use) const {
    return use <= v + static_cast<VisitId>(plan_.checkpoints.gpu_ahead) +
                      static_cast<VisitId>(plan_.checkpoints.host_ahead);
  }
  bool is_peak(VisitId v) const;
  void fetch_until(VisitId v, bool ahead);
  bool has_resting_places() const;
  std::vector<int> resting(int layer) const;  // micro-batches whose input rests there
  int position(int layer, int micro_batch) const;
  bool is_inner(const Share& rest, int layer, int micro_batch) const;
  void read_for(VisitId v);
  bool fetch_for(VisitId v, VisitId now);
  void forget(VisitId v);
  void send(std::size_t k);
  void send_if_leaving(What what, int layer, int micro_batch);
  Slice gpu_buffer(BufferKind kind, int layer, int micro_batch);
  Slice to_host(Slice from, BufferKind kind, int layer, int micro_batch);
  OnDrives to_ssd(Slice from, BufferKind kind, int layer, int micro_batch);
  void read(Tensor& tensor, BufferKind kind, int layer, int micro_batch);

  Program& program_;
  const Plan& plan_;
  const OrderOfWork& work_;
  const Uses& uses_;
  const Retained& retained_;
  const DriveShares& drives_;
  int layers_, micro_batches_;
  int first_backward_;  // the first layer that has a backward
  std::uint64_t checkpoint_bytes_;
  std::vector<Tensor> checkpoints_;  // by layer and micro-batch: inputs
  std::vector<Saved> saved_;         // by layer and micro-batch, where anything is saved
  std::vector<Tensor> gradients_;    // by micro-batch
  std::vector<SavedMask> saves_;     // by layer, masks of saved_tensors()
  std::vector<std::vector<SavedLayout>> layouts_;  // by layer: what it saves
  // By layer and micro-batch, how many rest on the SSD: of the input, 0 or 1, and of the tensors
  // that are saved, from the first on.
  std::vector<std::uint8_t> inputs_on_ssd_, saved_on_ssd_;
  bool whole_rows_ = false;
  std::vector<Slice> resting_places_;  // by layer
  std::vector<Slice> places_;          // by layer and micro-batch: its part of them, or invalid
  std::vector<Slice> slots_;           // GPU memory for what is saved, by turns
  std::vector<Leaving> leaving_;       // made by the last visits, oldest first
  std::vector<VisitId> late_;          // visits whose operands did not exist when they were due
  VisitId next_fetch_ = 0, next_read_ = 0;
  std::vector<Slice> outputs_;   // by micro-batch: of a stage, until it is sent
  std::vector<Slice> operands_;  // by layer and micro-batch, where any backward is in two passes
};

}  // namespace spillway
