// Parameters on their way to the GPU.
//
// What rests on the SSD is read into host memory, and crosses to the GPU in pieces, as far ahead of
// its use as the timetable says; then both copies are dropped. Where the update that a use depends
// on is not emitted yet, the read and the copy wait for the update and take its result. Plans that
// fetch by tensor leave all this to a ParameterWindow. Parameters that rest on the GPU never move.
// Of several ranks, each fetches its shard; the whole is gathered where the shard is there by the
// timetable, which is not before another rank's is whose shard is larger. Where the plan has second
// shards, the whole is gathered from these, which stay until backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "policies/movement/gradients.hpp"
#include "policies/movement/parameter_window.hpp"
#include "policies/movement/pieces.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/shards.hpp"
#include "policies/movement/step.hpp"
#include "policies/movement/timetable.hpp"
#include "policies/schedule/program.hpp"

namespace spillway {

class Parameters {
 public:
  // The arguments outlive the object. Parameters that were read are noted in `units`, as
  // Piece::fresh_parameters.
  Parameters(Program& program, const Plan& plan, const Shards& shards, const OrderOfWork& work,
             const Timetable& times, const Gradients& gradients, Units& units);

  // Says that visit `v` comes next. To be called in order of visits, and once after the last visit.
  void begin(VisitId v) { now_ = v; }

  // Called before visit v, in this order. fetch(): the parameters that v needs, and those of later
  // turns that cross as a whole under one visit. fetch_tensors(), after the activations of v: the
  // parameters that are fetched by tensor. fetch_pieces(), after the gradient of v: parameters of
  // later turns that cross in pieces.
  void fetch(VisitId v);
  void fetch_tensors(VisitId v);
  void fetch_pieces(VisitId v) { copy_ahead(v, false); }

  // A unit's parameters on the GPU: its home if that is there, else the result of the last fetch.
  Slice of(int unit) const;
  // The parameters for the backward of the last layer's visit `v`. To be called after its forward.
  Slice for_backward(VisitId v);

  // Whether an updated unit's parameters stay in host memory after they were written to the SSD,
  // because their next use would have them read by now.
  bool stays_in_host(int unit) const { return !window_ && is_read_by_now(unit, next_use_); }

 private:
  // GPU memory for the parameters of one use: what is copied there, the first `arrived` elements so
  // far; and the whole, where that is gathered from it.
  struct Arriving {
    Slice copied;
    std::uint64_t arrived = 0;
    Slice whole;
  };

  // Parameters of a unit in one buffer: so many elements that are trained, the frozen ones after
  // them.
  struct OfUnit {
    Slice all;
    std::uint64_t trained = 0;
  };

  // What is fetched of a unit.
  std::uint64_t elements(int unit) const { return elements_in(units_[unit_index(unit)]); }
  bool rests_on_gpu(int unit) const { return parameters_rest_on_gpu(units_[unit_index(unit)]); }
  // Whether nothing has to be done for its use.
  bool is_there(int unit) const { return rests_on_gpu(unit) && !shards_.gathers(unit); }
  Slice kept(int unit) const;
  Slice gpu_buffer(int unit, std::uint64_t count);
  void gather(const ParameterFetch& fetch, Arriving& arriving);
  OfUnit gathered(int unit, const RankGroup& group, const OfUnit& part, std::uint64_t trained,
                  std::uint64_t frozen);
  std::uint64_t width() const { return program_.problem().parameter_bytes(); }
  bool is_stale(const ParameterFetch& fetch) const;
  bool is_waiting(const ParameterFetch& fetch, const Piece& piece) const;
  bool is_read_by_now(int unit, std::size_t f) const;
  bool stays_in_host(int unit, std::size_t f) const {
    return plan_.retention.parameters.most > 0 && plan_.spare_host_bytes > 0 &&
           is_read_by_now(unit, f);
  }
  void read(const ParameterFetch& fetch);
  void copy_ahead(VisitId v, bool whole);
  void copy(std::size_t f, double share);
  void upload(int unit, std::uint64_t from, std::uint64_t to, Slice gpu);
  void use();

  Program& program_;
  const Plan& plan_;
  const Shards& shards_;
  const OrderOfWork& work_;
  const Timetable& times_;
  const Gradients& gradients_;
  Units& units_;
  std::optional<ParameterWindow> window_;
  VisitId now_ = 0;
  std::size_t next_read_ = 0, next_use_ = 0;  // in Timetable::fetches
  std::deque<Arriving> arriving_;             // for the uses from next_use_ on
  std::vector<Slice> on_gpu_;                 // by unit
  std::vector<OfUnit> second_;                // by unit: its second shard, from forward to backward
};

}  // namespace spillway
