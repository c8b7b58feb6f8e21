// Activations on their way from forward to backward, and their gradients between layers.
//
// The input of every layer (a checkpoint) is used in forward and again in backward, what forward
// saves inside a layer in backward alone, the gradient of an activation by one layer after the
// other. What the next visit uses stays on the GPU. All else leaves it once, one visit after it was
// made, and comes back `ahead` of its use.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class Activations {
 public:
  Activations(Program& program, const Plan& plan, const OrderOfWork& work, const Timetable& times);

  // Whether all micro-batches of a layer run in a row, in every turn.
  bool has_whole_rows() const { return whole_rows_; }
  // Takes the host memory below; once the model states have theirs, whose place must not depend on
  // it.
  void take_resting_places();
  // Its bytes, known before.
  std::uint64_t resting_bytes(int layer) const;
  // Host memory in which the inputs of a layer rest, where all micro-batches of a layer run in a
  // row: dead from the layer's backward to the next forward of the layer below. Else invalid.
  Slice resting_place(int layer) const {
    return resting_places_.empty() ? Slice{} : resting_places_[static_cast<std::size_t>(layer)];
  }

  // Before visit v: what it and the visits after it need is fetched. Where the last layer keeps
  // more than the others, its last visit is where most GPU memory is in use: what comes after it is
  // fetched once it is done.
  void fetch(VisitId v);
  void fetch_after(VisitId v) {
    if (is_peak(v)) fetch_until(v, true);
  }
  // After visit v: what the visit before it made leaves. no_visit: everything that has to.
  void leave(VisitId v);

  // Operands of visit v in GPU memory; make_...: fresh memory for a result.
  Slice input(VisitId v) const { return checkpoint(v).gpu; }
  Slice make_input(VisitId v);   // of layer 0, from the embedding
  Slice make_output(VisitId v);  // the input of the next layer, or of the loss
  Slice make_saved(VisitId v);   // invalid where the layer saves nothing
  Slice saved(VisitId v) const;
  Slice gradient(VisitId v) const {
    return gradients_[micro_batch(v)].gpu;
  }  // of the output, in place

  std::uint8_t saves(int layer) const {
    return plan_.saved.saves.empty() ? saved_none
                                     : plan_.saved.saves[static_cast<std::size_t>(layer)];
  }

 private:
  struct Tensor {
    Slice gpu, host, ssd;
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
  void place_on_ssd();
  Slice make_checkpoint(VisitId v, int layer, int micro_batch);
  Slice saved_memory(int layer, int micro_batch, bool is_kept);
  bool gradient_stays(int micro_batch) const;
  // Whether what backward visit `use` needs would be read from the SSD by visit v.
  bool is_read_by(VisitId v, VisitId use) const {
    return use <= v + static_cast<VisitId>(plan_.checkpoints.gpu_ahead) +
                      static_cast<VisitId>(plan_.checkpoints.host_ahead);
  }
  bool is_peak(VisitId v) const;
  void fetch_until(VisitId v, bool ahead);
  bool has_resting_places() const;
  std::vector<int> resting(int layer) const;  // micro-batches whose input rests there
  int position(int layer, int micro_batch) const;
  bool is_inner(int layer, int micro_batch) const;
  void read_for(VisitId v);
  bool fetch_for(VisitId v, VisitId now);
  void send(std::size_t k);
  void send_if_leaving(What what, int layer, int micro_batch);
  Slice gpu_buffer(BufferKind kind, int layer, int micro_batch);
  Slice to_host(Slice from, BufferKind kind, int layer, int micro_batch);
  Slice to_ssd(Slice from, BufferKind kind, int layer, int micro_batch);
  void read(Tensor& tensor, BufferKind kind, int layer, int micro_batch);
  std::size_t items_on_ssd(int layer, int micro_batch) const {
    return items_on_ssd_.empty() ? 0 : items_on_ssd_[index(layer, micro_batch)];
  }

  Program& program_;
  const Plan& plan_;
  const OrderOfWork& work_;
  const Uses& uses_;
  const Retained& retained_;
  int layers_, micro_batches_;
  std::uint64_t checkpoint_bytes_;
  std::vector<Tensor> checkpoints_;  // by layer and micro-batch: inputs
  std::vector<Saved> saved_;         // by layer and micro-batch, where anything is saved
  std::vector<Tensor> gradients_;    // by micro-batch
  std::vector<std::vector<SavedLayout>> layouts_;  // by layer: what it saves
  std::vector<std::uint8_t> items_on_ssd_;  // by layer and micro-batch: of the checkpoint and then
                                            // what is saved, how many rest on the SSD
  bool whole_rows_ = false;
  std::vector<Slice> resting_places_;  // by layer
  std::vector<Slice> places_;          // by layer and micro-batch: its part of them, or invalid
  std::vector<Slice> slots_;           // GPU memory for what is saved, by turns
  std::vector<Leaving> leaving_;       // made by the last visits, oldest first
  std::vector<VisitId> late_;          // visits whose operands did not exist when they were due
  VisitId next_fetch_ = 0, next_read_ = 0;
};

}  // namespace spillway
