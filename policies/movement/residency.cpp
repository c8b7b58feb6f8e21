#include "policies/movement/residency.hpp"

#include <memory>

#include "base/errors.hpp"
#include "policies/model/stages.hpp"
#include "policies/movement/activations.hpp"
#include "policies/movement/gradients.hpp"
#include "policies/movement/optimizer.hpp"
#include "policies/movement/parameters.hpp"
#include "policies/movement/pieces.hpp"
#include "policies/movement/places.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/state_slots.hpp"
#include "policies/movement/timetable.hpp"

namespace spillway {

namespace {

// Where a training's state rests, for a program that evaluates it.
struct TrainedState {
  TrainedState(Program& program, const Plan& plan, const Shards& shards, const OrderOfWork& work,
               const DriveShares& drives)
      : times(program.problem(), plan, work),
        activations(program, plan, work, times, drives),
        units(place_model_states(program, plan, shards, work, drives, activations)) {}

  Timetable times;
  Activations activations;
  Units units;
};

class Emission {
 public:
  Emission(Program& program, const Plan& plan, const OrderOfWork& work, const OrderOfWork* trained)
      : program_(program),
        plan_(plan),
        work_(work),
        shards_(program.problem(), plan),
        times_(program.problem(), plan, work),
        drives_(program.problem(), plan, shards_),
        trained_(trained ? std::make_unique<const TrainedState>(program, plan, shards_, *trained,
                                                                drives_)
                         : nullptr),
        activations_(program, plan, work, times_, drives_),
        units_(trained_ ? trained_->units
                        : place_model_states(program, plan, shards_, work, drives_, activations_)),
        slots_(take_state_slots(program, plan, work, times_, units_)),
        gradients_(program, plan, shards_, work, times_, slots_, units_),
        parameters_(program, plan, shards_, work, times_, gradients_, units_),
        optimizer_(program, plan, shards_, work, times_, slots_, units_, gradients_, parameters_) {
    if (trained_) activations_.rest_as(trained_->activations);
  }

  std::uint64_t kept_bytes() const { return times_.retained().kept_bytes(); }

  void emit() {
    for (VisitId v = 0; v < work_.visits.size(); ++v) {
      const Visit& visit = work_.visits[v];
      parameters_.begin(v);
      if (visit.step != step_) {
        end_step(visit.step - 1, v);
        if (visit.step == 1) program_.expect_steps(work_.steps);
        program_.point(HostPoint::step);
      }
      const bool computes_forward =
          visit.kind != VisitKind::backward && visit.kind != VisitKind::weights;
      at(visit.step, computes_forward ? Phase::forward : Phase::backward);
      if (times_.uses().turns()[times_.uses().turn_of(v)].begin == v)
        program_.point(HostPoint::turn);
      program_.point(HostPoint::visit);
      optimizer_.write_back();
      optimizer_.run(before(v), visit.step);
      optimizer_.write_back();  // visit v may use the parameters
      optimizer_.read_ahead(before(v));
      exchange(v, true);
      fetch(v);
      compute(v);
      exchange(v, false);
      if (visit.layer == 0 && is_backward(visit)) gradients_.share_embedding(v);
      activations_.fetch_after(v);
      activations_.leave(v);
      const bool ends_step = v + 1 == work_.visits.size() || work_.visits[v + 1].step != visit.step;
      if (ends_step && !plan_.optimizer.own_phase) at(visit.step, Phase::optimizer);
      gradients_.leave(v);
      optimizer_.run(after(v), visit.step);
      gradients_.own_leaves(v);
      optimizer_.run(after_own_gradient(v), visit.step);
      gradients_.embedding_leaves(v);
      optimizer_.run(after_embedding(v), visit.step);
    }
    const auto end = static_cast<VisitId>(work_.visits.size());
    parameters_.begin(end);
    end_step(work_.steps - 1, end);
    at(work_.steps, Phase::epilogue);
    optimizer_.run(before(end), work_.steps);
    optimizer_.write_back();
  }

 private:
  // The place of the tasks that follow.
  void at(int step, Phase phase) {
    if (step == step_ && phase == phase_) return;
    step_ = step;
    phase_ = phase;
    program_.at(step, phase);
  }
  // What a step leaves to be done before visit v, the first of the next one.
  void end_step(int step, VisitId v) {
    if (step < 0) return;
    activations_.leave(no_visit);
    at(step, Phase::optimizer);
    optimizer_.end_step(before(v), step);
    if (shards_.any() && !plan_.shards.spread_overlaps)
      program_.barrier({Lane::ranks_spread}, {Lane::gpu_compute});
  }

  void fetch(VisitId v) {
    parameters_.fetch(v);
    activations_.fetch(v);
    parameters_.fetch_tensors(v);
    gradients_.fetch(v);
    parameters_.fetch_pieces(v);
  }

  // Messages between stages that come before visit v, or after it.
  void exchange(VisitId v, bool first) {
    for (; next_meeting_ < work_.meetings.size(); ++next_meeting_) {
      const Meeting& next = work_.meetings[next_meeting_];
      if (next.at != v || next.first != first) return;
      activations_.exchange(next);
    }
  }

  void compute(VisitId v) {
    const Visit& visit = work_.visits[v];
    if (visit.kind == VisitKind::weights) return weights(v);
    if (visit.kind != VisitKind::backward) {
      const Slice output = forward(v);
      if (visit.kind == VisitKind::forward) return;
      loss(v, output);
      if (visit.kind == VisitKind::loss) return;
    }
    backward(v);
  }
  // Returns the layer's output.
  Slice forward(VisitId v) {
    const Visit& visit = work_.visits[v];
    const ModelSpec& model = program_.problem().model;
    const Slice input = receives_input(model, visit.layer) ? activations_.received_input(v)
                        : visit.layer == 0                 ? embed(v)
                                                           : activations_.input(v);
    const Slice output = activations_.make_output(v);
    const Slice saved = activations_.make_saved(v);
    program_.forward(visit.layer, visit.micro_batch, parameters_.of(visit.layer), input, output,
                     saved, activations_.saves(visit.layer));
    return output;
  }
  Slice embed(VisitId v) {
    const Slice input = activations_.make_input(v);
    program_.embed_forward(work_.visits[v].micro_batch, parameters_.of(embedding()), input);
    return input;
  }
  void loss(VisitId v, Slice output) {
    const Visit& visit = work_.visits[v];
    if (visit.kind == VisitKind::loss) {
      program_.evaluate_head(visit.micro_batch, parameters_.of(head()), output);
      return;
    }
    at(visit.step, Phase::backward);
    const Slice sum = gradients_.head_accumulator(v);
    program_.head(visit.micro_batch, parameters_.of(head()), output, sum,
                  gradients_.starts_outer(v));
    const Slice reduced = gradients_.reduce_head(v);
    if (visit.last_backward && head() != embedding() && sum.valid())
      program_.gradient_complete(head(), reduced);
  }
  void backward(VisitId v) {
    const Visit& visit = work_.visits[v];
    const int l = visit.layer, m = visit.micro_batch;
    const Slice parameters =
        visit.kind == VisitKind::last_layer ? parameters_.for_backward(v) : parameters_.of(l);
    const Slice sum = visit.weights_later ? Slice{} : gradients_.accumulator(v);
    const Slice saved = activations_.saved(v);
    const SavedMask mask = saved.valid() ? activations_.saves(l) : saved_none;
    const bool recomputes_output = !saved.valid() && plan_.saved.recomputes_output;
    if (visit.weights_later) {
      program_.input_gradient(l, m, parameters, activations_.input(v), saved, mask,
                              activations_.gradient(v), activations_.make_operands(v),
                              recomputes_output);
    } else {
      program_.backward(l, m, parameters, activations_.input(v), saved, mask,
                        activations_.gradient(v), sum, gradients_.starts(v), recomputes_output,
                        gradients_.held());
    }
    exchange(v, false);  // before norms are added up over all stages
    if (!visit.weights_later) reduce(v);
    if (l > 0 || trained_in(units_[unit_index(embedding())]) == 0) return;
    if (!has_embedding(program_.problem().model)) return;
    const Slice embedding_sum = gradients_.embedding_accumulator(v);
    program_.embed_backward(m, activations_.gradient(v), embedding_sum, gradients_.starts_outer(v));
    gradients_.reduce_embedding(v);
  }
  void weights(VisitId v) {
    const Visit& visit = work_.visits[v];
    const Slice sum = gradients_.accumulator(v);
    const Slice saved = activations_.saved(v);
    program_.weight_gradient(visit.layer, visit.micro_batch, activations_.input(v), saved,
                             saved.valid() ? activations_.saves(visit.layer) : saved_none,
                             activations_.operands(v), sum, gradients_.starts(v));
    exchange(v, false);
    reduce(v);
  }
  void reduce(VisitId v) {
    const Slice reduced = gradients_.reduce(v);
    if (work_.visits[v].completes_sum) program_.gradient_complete(work_.visits[v].layer, reduced);
  }
  int embedding() const { return static_cast<int>(program_.problem().model.layers); }
  int head() const { return static_cast<int>(units_.size()) - 1; }

  Program& program_;
  const Plan& plan_;
  const OrderOfWork& work_;
  Shards shards_;
  Timetable times_;
  DriveShares drives_;
  std::unique_ptr<const TrainedState> trained_;  // null: of this program
  Activations activations_;
  Units units_;
  StateSlots slots_;
  Gradients gradients_;
  Parameters parameters_;
  Optimizer optimizer_;
  std::size_t next_meeting_ = 0;  // in OrderOfWork::meetings
  int step_ = -1;
  Phase phase_ = Phase::forward;
};

}  // namespace

std::uint64_t emit_work(Program& program, const Plan& plan, const OrderOfWork& work,
                        const OrderOfWork* trained) {
  SPILLWAY_ASSERT((trained != nullptr) == work.evaluates);
  Emission emission(program, plan, work, trained);
  emission.emit();
  return emission.kept_bytes();
}

}  // namespace spillway
