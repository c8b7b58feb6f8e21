// Step: the order of work of one training step, as a policy says it. No copy, no buffer, no edge.
//
// Every step cuts units alike and, where part of an update is delayed, has the same order. The
// order is a sequential program: what a call needs has been computed by the calls before it. The
// embedding runs with layer 0 and the head and the loss with the last layer, whose forward waits
// for its backward. A stage of a pipeline (policies/model/stages.hpp) has layers of its own alone:
// what it receives is there when a layer needs it, and what it sends goes when it is made; where it
// has no head its last layer is as any other.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "policies/movement/element_set.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/shards.hpp"
#include "policies/schedule/task.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// Part of a unit's elements, by fraction.
struct Portion {
  double from = 0, to = 1;
};

// Integers from `first` on, `count` of them, up or down; or from 0 on in rows of `row`: the first
// of each of `columns` rows, then the second of each, and on with the next so many rows.
class Sequence {
 public:
  Sequence(int first, int count, bool down) : first_(first), count_(count), by_(down ? -1 : 1) {}
  Sequence(int count, int row, int columns) : count_(count), row_(row), columns_(columns) {}
  class Iterator;
  Iterator begin() const;
  Iterator end() const;
  int operator[](int i) const {
    if (columns_ == 1) return first_ + by_ * i;
    return (i / (row_ * columns_) * columns_ + i % columns_) * row_ + i / columns_ % row_;
  }

 private:
  int first_ = 0, count_, by_ = 1, row_ = 1, columns_ = 1;
};
class Sequence::Iterator {
 public:
  Iterator(const Sequence& of, int at) : of_(of), at_(at) {}
  int operator*() const { return of_[at_]; }
  Iterator& operator++() {
    ++at_;
    return *this;
  }
  bool operator!=(const Iterator& other) const { return at_ != other.at_; }

 private:
  Sequence of_;
  int at_;
};
inline Sequence::Iterator Sequence::begin() const { return {*this, 0}; }
inline Sequence::Iterator Sequence::end() const { return {*this, count_}; }

// One layer on one micro-batch.
enum class VisitKind : std::uint8_t {
  forward,
  backward,
  last_layer,  // forward, loss and backward of the last layer
  loss,        // forward and loss of the last layer, in an evaluation
  weights      // the gradient of the weights, where a visit's backward has left it for later
};
struct Visit {
  VisitKind kind = VisitKind::forward;
  bool weights_later = false;  // backward, last_layer: but for the gradient of the layer's weights
  bool starts_sum = false;     // the first that adds to the gradient of the weights in this step
  bool completes_sum = false;  // the last one
  // The same of the gradients of inputs, and so of the sums of the embedding and of the head that
  // backward visits add to.
  bool first_backward = false, last_backward = false;
  std::int32_t step = 0;
  std::int32_t layer = 0;
  std::int32_t micro_batch = 0;
};
// Whether a visit makes the gradient of its layer's input.
constexpr bool is_backward(const Visit& visit) {
  return visit.kind == VisitKind::backward || visit.kind == VisitKind::last_layer;
}
// Whether a visit adds to the gradient of its layer's weights.
constexpr bool adds_gradient(const Visit& visit) {
  return visit.kind == VisitKind::weights || (is_backward(visit) && !visit.weights_later);
}
// Whether a visit needs its layer's parameters.
constexpr bool needs_parameters(const Visit& visit) { return visit.kind != VisitKind::weights; }
using VisitId = std::uint32_t;

// A contiguous range of the elements of a unit that a rank updates, counted from the first of them,
// that is part of an update: those of the first rank (Shards::most_updated), of which another may
// not have the last cell.
struct UpdateRange {
  int unit = 0;
  std::uint64_t first = 0, elements = 0;
  bool operator==(const UpdateRange&) const = default;
};

// One update of the optimizer, whose place in the order of work is before visit `at`.
struct Update {
  int step = 0;           // in which the policy called it
  int gradient_step = 0;  // the step whose gradient it applies
  VisitId at = 0;
  std::uint32_t first_range = 0, range_count = 0;
};

struct HostWait {
  int step = 0;
  VisitId at = 0;
  std::uint32_t updates_before = 0;
};

// A message between this stage of a pipeline and another, and its place in the order of work.
struct Meeting {
  VisitId visit = 0;  // that makes what is sent, or needs what is received
  bool sends = false;
  VisitId at = 0;      // it comes after this visit, or
  bool first = false;  // before it, which is the first of a step
};

// The order of work of the whole program: all steps, then the updates that are still delayed.
struct OrderOfWork {
  std::vector<Visit> visits;
  std::vector<Update> updates;  // in order
  std::vector<UpdateRange> ranges;
  std::vector<HostWait> waits;
  std::vector<Meeting> meetings;  // in order; of a stage of a pipeline (meetings.hpp)
  // Parts whose updates apply the gradient of the step before, in the order in which each step
  // names them; the first step names them, too, though there is no gradient yet.
  struct Delayed {
    int step = 0;
    UpdateRange part;
  };
  std::vector<Delayed> delayed;
  int steps = 0;
  bool evaluates = false;  // nothing is trained: no backward, no update
  bool splits = false;     // some visit leaves the gradient of the weights for later
};

class Step {
 public:
  // `evaluates`: of what the policy says only the forward passes are done, and the losses in place
  // of the last layer's backward; a step is then a batch that is evaluated.
  Step(const Problem& problem, const Plan& plan, bool evaluates = false);

  const Problem& problem() const { return problem_; }
  const Plan& plan() const { return plan_; }
  int layers() const { return layers_; }
  int micro_batches() const { return micro_batches_; }
  int embedding() const { return layers_; }  // the unit after the layers
  int head() const { return head_; }  // the embedding where it is tied, else a unit of its own

  Sequence upward() const { return {0, layers_, false}; }
  Sequence downward() const { return {layers_ - 1, layers_, true}; }
  // The units after the layers: the embedding and, where it is untied, the head.
  Sequence outer() const { return {layers_, head_ - layers_ + 1, false}; }
  // One rank with the bits of several (Workload::group_meshes): in the order in which these sum.
  Sequence ascending() const {
    const Workload& w = problem_.workload;
    if (w.ranks > 1 || w.group_meshes.gradients == 1) return {0, micro_batches_, false};
    return {micro_batches_, micro_batches_ / static_cast<int>(w.gradient_groups),
            w.group_meshes.gradients};
  }
  // Micro-batches of a layer: ascending in even layers, descending in odd ones.
  Sequence snake(int layer) const {
    const bool down = layer % 2 == 1;
    return {down ? micro_batches_ - 1 : 0, micro_batches_, down};
  }

  void forward(int layer, int micro_batch);
  // Nothing is done in the first layers of a model that freezes these.
  void backward(int layer, int micro_batch);
  // backward() in two parts: the gradient of the layer's input, which the layer below waits for;
  // and that of its weights, at any time after it. Of one stage nobody waits in between, and plans
  // with slots for what is saved or with buckets of gradients have nowhere to keep what is between
  // the two: the first is then all of backward(), and the second nothing.
  void input_gradient(int layer, int micro_batch);
  void weight_gradient(int layer, int micro_batch);
  // Applies the gradient of a part of a unit: that of this step if it is complete, else that of the
  // step before; does nothing if there is neither. The update may be emitted before its place in
  // this order, as soon as its gradient is there.
  void update(int unit, Portion portion = {});
  // The host thread waits until all work said before is done, and only then starts what follows.
  void wait();

  // All of a step in the order that Plan::order says.
  void in_order_of_plan();

  // Called around each step; `finish` applies the gradients that are still delayed.
  void begin(int step);
  void end();
  OrderOfWork finish();

 private:
  // The last complete gradient of a unit.
  struct Gradient {
    int step = -1;       // none yet
    ElementSet applied;  // updated with it
  };
  // With UpdateGroup::shares: an update of which `done` shares are applied.
  struct Shared {
    int unit = 0;
    Portion portion;
    int done = 0;
  };
  void add(VisitKind kind, int layer, int micro_batch, bool weights_later);
  void update_portion(int unit, Portion portion);
  void apply_share(Shared& update, VisitId at);
  void finish_shares();
  void note_cut(int unit, std::uint64_t element);
  void backward(const char* call, int layer, int micro_batch, bool weights_later);
  void note_sum(Visit& visit);
  void require_applied(const Visit& visit) const;
  void apply(int unit, std::uint64_t first, std::uint64_t count);
  std::uint64_t in_shard(int unit, std::uint64_t element) const;
  void add_range(const UpdateRange& range, int gradient_step);
  void close_group();
  void close_group_of(int layer);
  std::uint64_t elements(int unit) const;  // that are updated, on the first rank
  // Whether the loss comes after that layer.
  bool has_loss(int layer) const { return has_head_ && layer + 1 == layers_; }
  [[noreturn]] void fail(const char* call, int layer, int micro_batch,
                         const std::string& why) const;

  const Problem& problem_;
  const Plan& plan_;
  int layers_, micro_batches_, head_;
  bool has_head_, may_split_;
  Shards shards_;
  OrderOfWork work_;
  int step_ = 0;
  std::vector<int> up_, down_;  // by micro-batch: the next layer of forward, of backward
  // By layer, in this step: backwards, and gradients of weights.
  std::vector<int> done_, summed_;
  std::vector<bool> owed_;           // by layer and micro-batch: weights that are left for later
  std::vector<bool> begun_;          // by layer: whether its forward was called in this step
  std::vector<Gradient> gradients_;  // by unit
  std::vector<std::vector<std::uint64_t>> cuts_;  // by unit: where its updates begin, ascending
  std::vector<Shared> shared_;                    // whose shares follow visits to come
  // Where shares may go back to: the begin of the step, or the last wait in it.
  struct {
    VisitId visit = 0;
    std::size_t update = 0;
  } begin_;
  int first_backward_;
  std::uint64_t layer_elements_ = 0;  // of elements(), in a layer that is not frozen
  std::array<std::uint64_t, 2> outer_elements_{};
  // The update that is being put together, from range group_begin_ on; none while it has no
  // elements.
  std::size_t group_begin_ = 0;
  std::uint64_t group_elements_ = 0;
  int group_gradient_step_ = 0;
  VisitId group_at_ = 0;
};

// The layer whose visits use a unit's parameters: the embedding's are those of layer 0, an untied
// head's those of the last layer.
inline int layer_with(int unit, int layers) {
  return unit < layers ? unit : unit == layers ? 0 : layers - 1;
}

// `fraction` of `elements`, on the element grid.
std::uint64_t on_grid(std::uint64_t elements, double fraction);

}  // namespace spillway
