// Gradients of parameters: their sums, and when they leave the GPU.
//
// A unit's gradient is summed over micro-batches in an accumulator on the GPU. Complete, or in
// between where the plan does not sum on the GPU, it leaves for host memory: in pieces under the
// next turn, or together with others once they fill a bucket. A sum that left comes back before the
// next visit that adds to it. Complete gradients go on to the SSD where the plan says so. Updates
// take their operands from here and report what they applied. What the loss adds is the gradient of
// the head; where the head is tied, the gradient of the embedding is two sums: its own and the
// head's.
//
// Of several ranks, each sums what it computes, and the ranks' sums are added up once they are
// complete, so that each has the part that it updates; or, where the plan keeps sums in shards,
// after every micro-batch. What leaves the GPU complete is this rank's part.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/movement/element_set.hpp"
#include "policies/movement/gradient_stages.hpp"
#include "policies/movement/group_sums.hpp"
#include "policies/movement/pieces.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/state_slots.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class Gradients {
 public:
  // All arguments outlive it.
  Gradients(Program& program, const Plan& plan, const Shards& shards, const OrderOfWork& work,
            const Timetable& times, const StateSlots& slots, Units& units);

  // Accumulators on the GPU that visit v adds to: of its layer; of the head in the last layer's
  // visit; of the embedding in that of layer 0.
  Slice accumulator(VisitId v);
  Slice head_accumulator(VisitId v);
  Slice embedding_accumulator(VisitId v);
  // Whether visit v begins the sum in its layer's accumulator.
  bool starts(VisitId v) const {
    const Visit& visit = work_.visits[v];
    return visit.starts_sum || groups_.starts(visit, true) || shards_.reduces_each(visit.layer);
  }
  // The same of the accumulators of head and embedding.
  bool starts_outer(VisitId v) const {
    const Visit& visit = work_.visits[v];
    return visit.first_backward || groups_.starts(visit, false);
  }
  // Called once visit v has added to them: what is due is added up, over groups of micro-batches
  // and over the ranks. Return what this rank then has of a complete gradient; of an incomplete one
  // nothing that matters.
  Slice reduce(VisitId v);
  Slice reduce_head(VisitId v);
  Slice reduce_embedding(VisitId v);
  // Called at the end of layer 0's last backward: where a tied embedding is a unit of the first and
  // the last stage of a pipeline, each sends its complete sum of the two to the other.
  void share_embedding(VisitId v);

  // What the last reduction read, which may still go on when the next backward begins.
  Slice held() const { return held_; }

  // Called before visit v: copies sums of earlier micro-batches to the GPU, for v and visits after
  // it.
  void fetch(VisitId v);
  // Called after visit v, in this order. leave(): copies to host memory the parts of earlier
  // gradients that are due under v. own_leaves(): marks the sum that v added to as leaving if it is
  // to leave, and copies it at once where no visit follows under which it could leave; copies the
  // head's once it is complete. embedding_leaves(): the embedding's gradient, once it is complete,
  // and the head's where that waited on the GPU.
  void leave(VisitId v);
  void own_leaves(VisitId v);
  void embedding_leaves(VisitId v);

  // Whether updates are still to come that apply a gradient of a step before `step`.
  bool is_unapplied(int unit, int step) const {
    const Gradient& gradient = gradients_[unit_index(unit)];
    return gradient.step >= 0 && gradient.step < step && gradient.applied.size() < updated(unit);
  }
  // Whether the unit's last gradient was applied to an element.
  bool is_applied(int unit, std::uint64_t element) const;

  // What an update applies to a piece; `head` is invalid where the unit has none.
  struct Operands {
    Slice own, head;
  };
  Operands on_gpu(int unit, const Piece& piece) const;
  Operands in_host(int unit, const Piece& piece) const;
  // An update applies the gradient of `step` to a range, whose gradient that has to be.
  void apply(const UpdateRange& range, int step);

 private:
  // A part of a gradient in host memory, for one update or several. The part that waits for the
  // next step has a buffer of its own.
  struct HostGradient {
    std::uint64_t first = 0, elements = 0;
    Slice own, head;
  };
  struct Gradient {
    int step = -1;
    Slice gpu, head;  // accumulators on the GPU; invalid: in host memory, or not begun
    std::vector<HostGradient> host;
    ElementSet applied;
  };
  struct Leaving {
    int unit = 0;
    Slice gpu;
    VisitId begin = 0, end = 0;  // in a piece after each of these visits
    std::uint64_t elements = 0, done = 0;
  };

  int layers() const { return static_cast<int>(program_.problem().model.layers); }
  int embedding() const { return layers(); }
  int head() const {
    return static_cast<int>(units_.size()) - 1;
  }  // the embedding where it is tied
  // That are trained: on this rank; in the ranges of its updates; in a sum that is not complete.
  std::uint64_t elements(int unit) const { return trained_in(units_[unit_index(unit)]); }
  std::uint64_t updated(int unit) const {
    return shards_.any() ? shards_.most_updated(unit) : elements(unit);
  }
  std::uint64_t in_sum(int unit) const {
    return shards_.any() ? shards_.summed(unit).elements : elements(unit);
  }
  std::uint64_t in_accumulator(int unit) const {
    return shards_.any() ? shards_.whole(unit) : elements(unit);
  }
  bool is_trained(int unit) const { return elements(unit) > 0; }
  bool is_tied() const { return head() == embedding(); }
  // What the loss adds to.
  BufferKind of_head() const {
    return is_tied() ? BufferKind::head_gradient : BufferKind::gradient;
  }
  // A unit's gradient, which is applied there.
  bool stays_on_gpu(int unit) const { return state_rests_on_gpu(plan_, unit, layers()); }
  std::uint64_t width() const { return program_.problem().gradient_bytes(); }
  Slice buffer(Tier tier, int unit, std::uint64_t count, BufferKind kind);
  void begin(int unit, int step);
  Slice sum_buffer(int unit, BufferKind kind) {
    return buffer(Tier::gpu, unit, in_sum(unit), kind);
  }
  Slice group_accumulator(VisitId v, int unit, BufferKind kind);
  void add_group(VisitId v, int unit, BufferKind kind, Slice& sum);
  Slice add_up(int unit, Slice sum, BufferKind kind);
  void reduce_each(const Visit& visit, Slice sum);
  void take_host_memory(int unit, std::uint64_t leaving);
  void copy_out(int unit, std::uint64_t from, std::uint64_t to, Slice gpu,
                Slice HostGradient::*where);
  void layer_leaves(VisitId v);
  void head_leaves();
  void advance(Leaving& one, std::uint64_t part, std::uint64_t of);
  void leave_now(int unit);
  bool is_in_bucket(int unit) const;
  void leave_in_buckets(VisitId v);
  void leave_together();
  void leave_complete(int unit, Slice gpu, Slice head);

  Program& program_;
  const Plan& plan_;
  const Shards& shards_;
  const OrderOfWork& work_;
  const Timetable& times_;
  Units& units_;
  GradientStages stages_;
  Slice fresh_;  // of one micro-batch, where sums are kept in shards
  Slice held_;
  int first_backward_;
  GroupSums groups_;
  std::vector<Gradient> gradients_;  // by unit
  std::vector<Leaving> leaving_;     // oldest first
  std::vector<Leaving> bucket_;      // gradients that leave together
  std::uint64_t bucket_elements_ = 0;
  bool bucket_is_complete_ = false;
};

}  // namespace spillway
