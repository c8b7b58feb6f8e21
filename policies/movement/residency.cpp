#include "policies/movement/residency.hpp"

#include <algorithm>
#include <deque>

#include "base/errors.hpp"
#include "policies/movement/activations.hpp"
#include "policies/movement/parameter_window.hpp"
#include "policies/movement/places.hpp"
#include "policies/movement/timetable.hpp"

namespace spillway {

namespace {

constexpr std::size_t index(int unit) { return static_cast<std::size_t>(unit); }

class Emission {
 public:
  Emission(Program& program, const Plan& plan, const OrderOfWork& work)
      : program_(program),
        plan_(plan),
        work_(work),
        layers_(static_cast<int>(program.problem().model.layers)),
        times_(program.problem(), plan, work),
        activations_(program, plan, work, times_),
        units_(place_model_states(program, plan, work, activations_)),
        parameters_(index(layers_)),
        gradients_(index(layers_) + 1) {
    for (const OptimizerEvent& event : times_.events()) {
      if (!event.is_wait) updates_.push_back(event);
    }
    find_state_reads();
    state_ahead_ = static_cast<std::size_t>(plan.optimizer_state.ahead);
    // One slot holds what is being updated.
    if (plan.optimizer_state.slots > 0)
      state_ahead_ =
          std::min(state_ahead_, static_cast<std::size_t>(plan.optimizer_state.slots) - 1);
    take_state_slots();
    if (plan.optimizer.gpu_stride > 1) take_gpu_state_slots();
    if (plan.parameters.by_tensor)
      window_.emplace(program, plan.parameters.tensors, times_.uses(), units_);
  }

  std::uint64_t kept_bytes() const { return times_.retained().kept_bytes(); }

  void emit() {
    for (VisitId v = 0; v < work_.visits.size(); ++v) {
      const Visit& visit = work_.visits[v];
      now_ = v;
      if (visit.step != step_) {
        end_step(visit.step - 1, v);
        if (visit.step == 1) program_.expect_steps(work_.steps);
        program_.point(HostPoint::step);
      }
      at(visit.step, visit.kind == VisitKind::backward ? Phase::backward : Phase::forward);
      if (times_.uses().turns()[times_.uses().turn_of(v)].begin == v)
        program_.point(HostPoint::turn);
      program_.point(HostPoint::visit);
      write_back();
      run_events(before(v), visit.step);
      write_back();  // visit v may use the parameters
      read_state(before(v), updated_);
      fetch(v);
      compute(v);
      activations_.fetch_after(v);
      activations_.leave(v);
      const bool ends_step = v + 1 == work_.visits.size() || work_.visits[v + 1].step != visit.step;
      if (ends_step && !plan_.optimizer.own_phase) at(visit.step, Phase::optimizer);
      gradients_leave(v);
      run_events(after(v), visit.step);
      own_gradient_leaves(v);
      run_events(after_own_gradient(v), visit.step);
      if (visit.layer == 0 && visit.completes_sum && plan_.gradients.bucket == 0) leave_embedding();
      run_events(after_embedding(v), visit.step);
    }
    const auto end = static_cast<VisitId>(work_.visits.size());
    now_ = end;
    end_step(work_.steps - 1, end);
    at(work_.steps, Phase::epilogue);
    run_events(before(end), work_.steps);
    write_back();
  }

 private:
  // -- places in the program
  void at(int step, Phase phase) {
    if (step == step_ && phase == phase_) return;
    step_ = step;
    phase_ = phase;
    program_.at(step, phase);
  }
  std::uint64_t elements(int unit) const { return units_[index(unit)].back().end(); }
  std::uint64_t gradient_bytes() const { return program_.problem().gradient_bytes(); }
  std::uint64_t parameter_bytes() const { return program_.problem().parameter_bytes(); }
  int embedding() const { return layers_; }
  // A buffer for a unit's gradient, of exactly its size.
  Slice gradient_buffer(Tier tier, int unit, std::uint64_t count, BufferKind kind) {
    const std::uint64_t bytes = count * gradient_bytes();
    return program_.buffer(tier, bytes, kind, unit).part(0, bytes);
  }

  // -- parameters
  // ---------------------------------------------------------------------------------- Parameters
  // on their way to the GPU for one use: whole, of which the first elements arrived.
  struct Arriving {
    Slice whole;
    std::uint64_t arrived = 0;
  };
  static bool rests_on_gpu(const Pieces& pieces) {
    return pieces.front().parameters_at == Tier::gpu;
  }
  // All of a unit where it rests on the GPU: its pieces are in one buffer, in order.
  Slice resting(int unit) const {
    const Slice first = units_[index(unit)].front().parameters;
    return {first.buffer, 0, elements(unit) * parameter_bytes()};
  }

  void fetch(VisitId v) {
    if (window_) return fetch_by_tensor(v);
    const auto& fetches = times_.fetches();
    for (; next_read_ < fetches.size() && fetches[next_read_].read_at <= v; ++next_read_)
      read_parameters(fetches[next_read_]);
    if (next_use_ < fetches.size() && fetches[next_use_].use == v) use_parameters();
    copy_ahead(v, true);
    activations_.fetch(v);
    fetch_gradient(v);
    copy_ahead(v, false);
  }
  // Parameters for later turns: a whole layer before the activations that the same visit needs, a
  // piece of one after them.
  void copy_ahead(VisitId v, bool whole) {
    const auto& fetches = times_.fetches();
    for (std::size_t f = next_use_; f < fetches.size() && fetches[f].copy_begin <= v; ++f) {
      if (v >= fetches[f].copy_end || is_stale(fetches[f])) continue;
      if ((fetches[f].copy_end - fetches[f].copy_begin == 1) != whole) continue;
      const auto share = static_cast<double>(v + 1 - fetches[f].copy_begin) /
                         static_cast<double>(fetches[f].copy_end - fetches[f].copy_begin);
      copy_parameters(f, on_grid(elements(fetches[f].unit), share));
    }
  }

  void fetch_by_tensor(VisitId v) {
    activations_.fetch(v);
    const auto layer = index(work_.visits[v].layer);
    if (!rests_on_gpu(units_[layer])) parameters_[layer] = window_->use(v);
    fetch_gradient(v);
  }

  // Whether an update that comes before the use has not been emitted yet: its result is what is
  // fetched, and the copy waits for it.
  bool is_stale(const ParameterFetch& fetch) const {
    const int step = work_.visits[fetch.use].step;
    const Gradient& gradient = gradients_[index(fetch.unit)];
    return gradient.waiting > 0 && gradient.step < step;
  }

  // What rests on the SSD and is not in host memory: neighbours there in one read.
  void read_parameters(const ParameterFetch& fetch) {
    Pieces& pieces = units_[index(fetch.unit)];
    if (rests_on_gpu(pieces)) return;
    read(fetch.unit, pieces.begin(), pieces.end(), &Piece::parameters, &Piece::fresh_parameters,
         BufferKind::parameters, [&](const Piece& piece) {
           return piece.parameters_at == Tier::ssd && !is_waiting(fetch, piece);
         });
  }
  bool is_waiting(const ParameterFetch& fetch, const Piece& piece) const {
    return is_stale(fetch) && !gradients_[index(fetch.unit)].is_applied(piece.first);
  }

  template <class Needed>
  void read(int unit, Pieces::iterator from, Pieces::iterator to, Slice Piece::*home,
            Slice Piece::*fresh, BufferKind kind, const Needed& needed) {
    while (from != to) {
      if (!needed(*from) || ((*from).*fresh).valid()) {
        ++from;
        continue;
      }
      Slice source = (*from).*home;
      auto last = from;
      while (last + 1 != to && needed(*(last + 1)) && !((*(last + 1)).*fresh).valid() &&
             ((*(last + 1)).*home).offset == source.offset + source.bytes &&
             ((*(last + 1)).*home).buffer.id == source.buffer.id) {
        ++last;
        source.bytes += ((*last).*home).bytes;
      }
      Slice host = program_.buffer(Tier::host, source.bytes, kind, unit).part(0, source.bytes);
      program_.copy(source, host, unit);
      for (auto piece = from; piece <= last; ++piece) {
        (*piece).*fresh = host.part(0, ((*piece).*home).bytes);
        host.offset += ((*piece).*home).bytes;
      }
      from = last + 1;
    }
  }

  // Elements up to `to` of what use `f` needs cross to the GPU.
  void copy_parameters(std::size_t f, std::uint64_t to) {
    const ParameterFetch& fetch = times_.fetches()[f];
    if (rests_on_gpu(units_[index(fetch.unit)])) return;
    if (arriving_.size() <= f - next_use_) arriving_.resize(f - next_use_ + 1);
    Arriving& arriving = arriving_[f - next_use_];
    if (to <= arriving.arrived) return;
    if (arriving.arrived == 0) {
      read_parameters(fetch);
      const std::uint64_t bytes = elements(fetch.unit) * parameter_bytes();
      arriving.whole =
          program_.buffer(Tier::gpu, bytes, BufferKind::parameters, fetch.unit).part(0, bytes);
    }
    upload(fetch.unit, arriving.arrived, to, arriving.whole);
    arriving.arrived = to;
    if (to < elements(fetch.unit)) return;
    if (plan_.retention == Retention::nearest && is_read_by_now(fetch.unit, f + 1)) return;
    for (Piece& piece : units_[index(fetch.unit)]) piece.fresh_parameters = {};
  }
  void use_parameters() {
    const int unit = times_.fetches()[next_use_].unit;
    SPILLWAY_ASSERT(!is_stale(times_.fetches()[next_use_]), "parameters are current when used");
    copy_parameters(next_use_, elements(unit));
    if (!rests_on_gpu(units_[index(unit)])) parameters_[index(unit)] = arriving_.front().whole;
    if (!arriving_.empty()) arriving_.pop_front();
    ++next_use_;
  }
  // Whether one of the uses from `f` on would have its parameters read from the SSD by now.
  bool is_read_by_now(int unit, std::size_t f) const {
    const auto& fetches = times_.fetches();
    for (; f < fetches.size() && fetches[f].read_at <= now_; ++f) {
      if (fetches[f].unit == unit) return true;
    }
    return false;
  }

  // Neighbours in one buffer go in one copy.
  void upload(int unit, std::uint64_t from, std::uint64_t to, Slice gpu) {
    const std::uint64_t width = parameter_bytes();
    Slice source;
    std::uint64_t begin = from;
    const auto flush = [&] {
      if (source.valid()) program_.copy(source, gpu.part(begin * width, source.bytes), unit);
    };
    const Pieces& pieces = units_[index(unit)];
    auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                      [&](const Piece& one) { return one.end() <= from; });
    for (; piece != pieces.end() && piece->first < to; ++piece) {
      const std::uint64_t low = std::max(from, piece->first), high = std::min(to, piece->end());
      const Slice host =
          piece->parameters_at == Tier::host ? piece->parameters : piece->fresh_parameters;
      SPILLWAY_ASSERT(host.valid(), "parameters are in host memory before they cross to the GPU");
      const Slice part = host.part((low - piece->first) * width, (high - low) * width);
      if (source.valid() && source.buffer.id == part.buffer.id &&
          source.offset + source.bytes == part.offset) {
        source.bytes += part.bytes;
        continue;
      }
      flush();
      source = part;
      begin = low;
    }
    flush();
  }

  Slice parameters_of(int unit) const {
    if (rests_on_gpu(units_[index(unit)])) return resting(unit);
    return parameters_[index(unit)];
  }

  // -- compute
  // -------------------------------------------------------------------------------------
  void compute(VisitId v) {
    const Visit& visit = work_.visits[v];
    const int l = visit.layer, m = visit.micro_batch;
    Slice weights = parameters_of(l);
    if (visit.kind != VisitKind::backward) {
      const Slice input = l == 0 ? embed(v) : activations_.input(v);
      const Slice output = activations_.make_output(v);
      const Slice saved = activations_.make_saved(v);
      program_.forward(l, m, weights, input, output, saved, activations_.saves(l));
      if (visit.kind == VisitKind::forward) return;
      at(visit.step, Phase::backward);
      Gradient& whole = gradients_[index(embedding())];
      if (visit.starts_sum) begin_gradient(embedding(), visit.step);
      if (!whole.head.valid())
        whole.head = gradient_buffer(Tier::gpu, embedding(), elements(embedding()),
                                     BufferKind::head_gradient);
      program_.head(m, resting(embedding()), output, whole.head, visit.starts_sum);
      if (window_ && !rests_on_gpu(units_[index(l)])) weights = window_->use_again(v);
    }
    const Slice gradient = accumulator(visit);
    const Slice saved = activations_.saved(v);
    program_.backward(l, m, weights, activations_.input(v), saved,
                      saved.valid() ? activations_.saves(l) : saved_none, activations_.gradient(v),
                      gradient, visit.starts_sum, !saved.valid() && plan_.saved.recomputes_output);
    if (visit.completes_sum) program_.gradient_complete(l, gradient);
    if (l > 0) return;
    Gradient& whole = gradients_[index(embedding())];
    if (visit.starts_sum)
      whole.gpu =
          gradient_buffer(Tier::gpu, embedding(), elements(embedding()), BufferKind::gradient);
    program_.embed_backward(m, activations_.gradient(v), whole.gpu, visit.starts_sum);
  }
  Slice embed(VisitId v) {
    const Slice input = activations_.make_input(v);
    program_.embed_forward(work_.visits[v].micro_batch, resting(embedding()), input);
    return input;
  }

  // -- gradients of parameters
  // --------------------------------------------------------------------- In host memory, for one
  // update or several: what waits for the next step is apart from the rest.
  struct HostGradient {
    std::uint64_t first = 0, elements = 0;
    Slice own, head;
  };
  struct Gradient {
    int step = -1;
    Slice gpu, head;  // accumulators on the GPU; invalid: in host memory, or not begun
    std::vector<HostGradient> host;
    std::uint64_t waiting = 0;  // elements that were not applied yet
    std::vector<std::pair<std::uint64_t, std::uint64_t>> applied;  // from, to
    bool is_applied(std::uint64_t element) const {
      for (const auto& [from, to] : applied) {
        if (element >= from && element < to) return true;
      }
      return false;
    }
  };
  struct Leaving {
    int unit = 0;
    Slice gpu;
    VisitId begin = 0, end = 0;  // in a piece after each of these visits
    std::uint64_t done = 0;      // elements
  };

  void begin_gradient(int unit, int step) {
    gradients_[index(unit)] = {};
    gradients_[index(unit)].step = step;
    gradients_[index(unit)].waiting = elements(unit);
  }

  // The layer's accumulator on the GPU.
  Slice accumulator(const Visit& visit) {
    Gradient& gradient = gradients_[index(visit.layer)];
    if (visit.starts_sum) begin_gradient(visit.layer, visit.step);
    if (!gradient.gpu.valid())
      gradient.gpu =
          gradient_buffer(Tier::gpu, visit.layer, elements(visit.layer), BufferKind::gradient);
    return gradient.gpu;
  }

  bool sums_on_gpu() const { return plan_.gradients.on_gpu; }
  // The sum of the micro-batches before, one visit ahead.
  void fetch_gradient(VisitId v) {
    const auto ahead = static_cast<VisitId>(plan_.gradients.gpu_ahead);
    for (VisitId use = v; use <= v + ahead; ++use) {
      if (use >= work_.visits.size()) continue;
      const Visit& visit = work_.visits[use];
      if (visit.kind == VisitKind::forward || visit.starts_sum) continue;
      Gradient& gradient = gradients_[index(visit.layer)];
      if (gradient.gpu.valid() || gradient.host.empty()) continue;
      leave_now(visit.layer);
      if (is_in_bucket(visit.layer)) leave_together();
      gradient.gpu =
          gradient_buffer(Tier::gpu, visit.layer, elements(visit.layer), BufferKind::gradient);
      for (const HostGradient& part : gradient.host) {
        program_.copy(part.own, gradient.gpu.part(part.first * gradient_bytes(), part.own.bytes),
                      visit.layer);
      }
    }
  }

  void take_host_gradients(int unit) {
    Gradient& gradient = gradients_[index(unit)];
    if (!gradient.host.empty()) return;
    const Pieces& pieces = units_[index(unit)];
    for (std::size_t p = 0; p < pieces.size();) {
      if (pieces[p].updates_on_gpu) {
        ++p;
        continue;
      }
      HostGradient part;
      part.first = pieces[p].first;
      part.own = pieces[p].waiting;
      const auto continues = [&](const Piece& piece) {
        if (piece.updates_on_gpu) return false;
        if (!part.own.valid() || !piece.waiting.valid())
          return part.own.valid() == piece.waiting.valid();
        return piece.waiting.buffer.id == part.own.buffer.id &&
               piece.waiting.offset == part.own.offset + part.elements * gradient_bytes();
      };
      do {
        part.elements += pieces[p++].elements;
      } while (p < pieces.size() && continues(pieces[p]));
      if (part.own.valid()) {
        part.own.bytes = part.elements * gradient_bytes();
      } else {
        part.own = gradient_buffer(Tier::host, unit, part.elements, BufferKind::gradient);
      }
      if (unit == embedding())
        part.head = gradient_buffer(Tier::host, unit, part.elements, BufferKind::head_gradient);
      gradient.host.push_back(part);
    }
  }

  // Elements [from, to) of a unit's sum leave the GPU.
  void copy_out(int unit, std::uint64_t from, std::uint64_t to, Slice gpu,
                Slice HostGradient::*where) {
    take_host_gradients(unit);
    const std::uint64_t width = gradient_bytes();
    for (const HostGradient& part : gradients_[index(unit)].host) {
      const std::uint64_t low = std::max(from, part.first);
      const std::uint64_t high = std::min(to, part.first + part.elements);
      if (low >= high) continue;
      program_.copy(gpu.part(low * width, (high - low) * width),
                    (part.*where).part((low - part.first) * width, (high - low) * width), unit);
    }
  }

  // What is leaving under visit v.
  void gradients_leave(VisitId v) {
    if (plan_.gradients.bucket > 0) return gradients_leave_in_buckets(work_.visits[v]);
    for (std::size_t k = 0; k < leaving_.size();) {
      Leaving& one = leaving_[k];
      if (v >= one.begin) advance(one, v + 1 - one.begin, one.end - one.begin);
      if (v + 1 >= one.end) {
        leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(k));
      } else {
        ++k;
      }
    }
  }
  // What starts to leave because of visit v: at once where no visit follows under which it could.
  void own_gradient_leaves(VisitId v) {
    const Visit& visit = work_.visits[v];
    if (visit.kind == VisitKind::forward || plan_.optimizer.gpu_stride == 1) return;
    if (plan_.gradients.bucket > 0) return;
    const bool leaves = visit.completes_sum || !sums_on_gpu();
    if (leaves && (visit.completes_sum || !times_.retained().gradient(v))) {
      Gradient& gradient = gradients_[index(visit.layer)];
      const Timetable::Window window = times_.leaving_window(v);
      Leaving one{visit.layer, gradient.gpu, window.begin, window.end, 0};
      if (window.begin == window.end) {
        advance(one, 1, 1);
      } else {
        take_host_gradients(visit.layer);
        leaving_.push_back(one);
      }
      if (!visit.completes_sum) gradient.gpu = {};
    }
    if (visit.kind == VisitKind::last_layer && visit.completes_sum &&
        plan_.gradients.head_waits == Tier::host)
      leave_head();
  }
  void advance(Leaving& one, std::uint64_t part, std::uint64_t of) {
    const std::uint64_t to =
        on_grid(elements(one.unit), static_cast<double>(part) / static_cast<double>(of));
    if (to > one.done) copy_out(one.unit, one.done, to, one.gpu, &HostGradient::own);
    one.done = std::max(one.done, to);
  }
  void leave_now(int unit) {
    for (std::size_t k = 0; k < leaving_.size(); ++k) {
      if (leaving_[k].unit != unit) continue;
      advance(leaving_[k], 1, 1);
      leaving_.erase(leaving_.begin() + static_cast<std::ptrdiff_t>(k));
      return;
    }
  }
  void leave_head() {
    copy_out(embedding(), 0, elements(embedding()), gradients_[index(embedding())].head,
             &HostGradient::head);
  }
  void leave_embedding() {
    Gradient& gradient = gradients_[index(embedding())];
    const bool updates_on_gpu = plan_.optimizer.gpu_stride == 1;
    const bool on_gpu = updates_on_gpu || plan_.gradients.head_waits == Tier::gpu;
    if (on_gpu) program_.gradient_complete(embedding(), gradient.gpu, gradient.head);
    if (updates_on_gpu) return;
    if (on_gpu) leave_head();
    copy_out(embedding(), 0, elements(embedding()), gradient.gpu, &HostGradient::own);
    // Both sums are in one buffer each: the embedding has no delayed part apart.
    if (!on_gpu)
      program_.gradient_complete(embedding(), gradient.host.front().own,
                                 gradient.host.front().head);
  }

  // Gradients that leave the GPU when there are enough of them.
  bool is_in_bucket(int unit) const {
    return std::any_of(bucket_.begin(), bucket_.end(),
                       [&](const Leaving& one) { return one.unit == unit; });
  }
  void gradients_leave_in_buckets(const Visit& visit) {
    if (visit.kind == VisitKind::forward) return;
    const std::uint64_t size = elements(visit.layer);
    if (!bucket_.empty() && bucket_elements_ + size > plan_.gradients.bucket) leave_together();
    Gradient& gradient = gradients_[index(visit.layer)];
    bucket_.push_back({visit.layer, gradient.gpu, 0, 0, 0});
    bucket_elements_ += size;
    bucket_is_complete_ = visit.completes_sum;
    if (!visit.completes_sum) gradient.gpu = {};
    if (visit.layer > 0) return;
    const Gradient& whole = gradients_[index(embedding())];
    if (visit.completes_sum) program_.gradient_complete(embedding(), whole.gpu, whole.head);
    leave_together();
    if (!visit.completes_sum) return;
    program_.point(HostPoint::gradients_leave);
    leave_complete(embedding(), whole.gpu, whole.head);
    write_staged();
  }
  void leave_together() {
    if (bucket_is_complete_) program_.point(HostPoint::gradients_leave);
    for (const Leaving& one : bucket_) {
      if (bucket_is_complete_)
        leave_complete(one.unit, one.gpu, {});
      else
        copy_out(one.unit, 0, elements(one.unit), one.gpu, &HostGradient::own);
    }
    if (bucket_is_complete_) write_staged();
    bucket_.clear();
    bucket_elements_ = 0;
  }
  void leave_complete(int unit, Slice gpu, Slice head) {
    if (!plan_.gradients.on_ssd) {
      copy_out(unit, 0, elements(unit), gpu, &HostGradient::own);
      if (head.valid()) copy_out(unit, 0, elements(unit), head, &HostGradient::head);
      return;
    }
    stage(unit, gpu, BufferKind::gradient, &Piece::gradient_on_ssd);
    if (head.valid()) stage(unit, head, BufferKind::head_gradient, &Piece::head_on_ssd);
  }
  // To the SSD by way of the slots of optimizer state, which are free in backward: piece after
  // piece in one slot after the other.
  void stage(int unit, Slice gpu, BufferKind kind, Slice Piece::*home) {
    Slice ssd = program_.buffer(Tier::ssd, gpu.bytes, kind, unit).part(0, gpu.bytes);
    for (Piece& piece : units_[index(unit)]) {
      const std::uint64_t bytes = piece.elements * gradient_bytes();
      const Slice host = staging(bytes);
      program_.copy(gpu.part(piece.first * gradient_bytes(), bytes), host, unit);
      piece.*home = ssd.part(0, bytes);
      ssd.offset += bytes;
      staged_.push_back({host, piece.*home, unit});
    }
  }
  // A slot is some stages, each with room for the elements of an update in fp32. When all were
  // filled, they are written first.
  Slice staging(std::uint64_t bytes) {
    const std::uint64_t room = bytes / gradient_bytes() * 4;
    const std::size_t stages_of_slot = state_slots_.front().bytes / stage_bytes_;
    if (stage_used_ + room > stage_bytes_) {
      stage_ = (stage_ + 1) % (stages_of_slot * state_slots_.size());
      stage_used_ = 0;
      if (++stages_filled_ == stages_of_slot * state_slots_.size()) {
        write_staged();
        program_.point(HostPoint::gradients_leave);
      }
    }
    const std::size_t slot = stage_ / stages_of_slot, at = stage_ % stages_of_slot;
    const Slice host = state_slots_[slot].part(at * stage_bytes_ + stage_used_, bytes);
    stage_used_ += room;
    return host;
  }
  void write_staged() {
    program_.point(HostPoint::gradients_left);
    for (const Staged& one : staged_) program_.copy(one.host, one.ssd, one.unit);
    staged_.clear();
    stages_filled_ = 0;
  }

  // -- the optimizer
  // -------------------------------------------------------------------------------
  void take_state_slots() {
    if (plan_.optimizer_state.slots == 0) return;
    const auto count = static_cast<std::size_t>(plan_.optimizer_state.slots);
    std::vector<std::uint64_t> most(count, 0);
    const bool with_gradients = plan_.gradients.on_ssd;
    for (const OptimizerEvent& event : updates_) {
      std::uint64_t bytes = 0;
      for_pieces(event, [&](int, Piece& piece) {
        if (piece.state_at == Tier::ssd) bytes += piece.state.bytes;
        if (with_gradients) bytes += piece.elements * gradient_bytes();
      });
      std::uint64_t& slot = most[event.in_step % count];
      slot = std::max(slot, bytes);
    }
    if (with_gradients) {
      const std::uint64_t state_bytes = program_.problem().state_bytes();
      stage_bytes_ =
          *std::max_element(most.begin(), most.end()) / (state_bytes + gradient_bytes()) * 4;
      const std::uint64_t bytes = elements(embedding()) * gradient_bytes();
      head_slot_ = program_.persistent(Tier::host, bytes, BufferKind::head_gradient, embedding());
    }
    // Any gradient passes through any of them.
    if (with_gradients) most.assign(count, *std::max_element(most.begin(), most.end()));
    for (const std::uint64_t bytes : most) {
      state_slots_.push_back(
          bytes == 0 ? Slice{}
                     : program_.persistent(Tier::host, bytes, BufferKind::optimizer_state));
    }
  }

  template <class Do>
  void for_pieces(const OptimizerEvent& event, const Do& act) {
    const Update& update = work_.updates[event.update];
    for (std::uint32_t r = 0; r < update.range_count; ++r) {
      const UpdateRange& range = work_.ranges[update.first_range + r];
      Pieces& pieces = units_[index(range.unit)];
      auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                        [&](const Piece& one) { return one.end() <= range.first; });
      for (; piece != pieces.end() && piece->first < range.first + range.elements; ++piece)
        act(range.unit, *piece);
    }
  }

  // Reads ahead of update `current`, and not into slots that the step before still uses.
  // By update, how many updates come before the one that its optimizer state was last changed by,
  // that one included.
  void find_state_reads() {
    std::vector<std::vector<std::size_t>> last;
    for (const Pieces& pieces : units_) last.emplace_back(pieces.size(), 0);
    for (std::size_t u = 0; u < updates_.size(); ++u) {
      std::size_t after = 0;
      for_pieces(updates_[u], [&](int unit, Piece& piece) {
        std::size_t& changed =
            last[index(unit)][static_cast<std::size_t>(&piece - units_[index(unit)].data())];
        after = std::max(after, changed);
        changed = u + 1;
      });
      state_after_.push_back(after);
    }
  }
  // Whether what the step before made of an update's optimizer state has been written.
  bool is_state_home(std::size_t u) const { return state_after_[u] <= written_back_; }
  void read_state(Moment now, std::size_t current) {
    const auto step_of = [&](std::size_t u) {
      return work_.updates[updates_[u].update].gradient_step;
    };
    for (; next_state_ < updates_.size() && next_state_ < updated_ + state_ahead_;
         read_next_state()) {
      if (updates_[next_state_].earliest_read > now || !is_state_home(next_state_)) return;
      if (!state_slots_.empty() && step_of(next_state_) != step_of(current)) return;
    }
  }
  void read_next_state() {
    const OptimizerEvent& event = updates_[next_state_++];
    if (!state_slots_.empty()) {
      Slice slot = state_slots_[event.in_step % state_slots_.size()];
      for_pieces(event, [&](int unit, Piece& piece) {
        if (piece.state_at != Tier::ssd) return;
        piece.fresh_state = slot.part(0, piece.state.bytes);
        slot.offset += piece.state.bytes;
        program_.copy(piece.state, piece.fresh_state, unit);
      });
      if (plan_.gradients.on_ssd) read_gradients_of(event, slot);
      return;
    }
    const Update& update = work_.updates[event.update];
    for (std::uint32_t r = 0; r < update.range_count; ++r) {
      const UpdateRange& range = work_.ranges[update.first_range + r];
      Pieces& pieces = units_[index(range.unit)];
      const auto bound = [&](std::uint64_t element) {
        return std::partition_point(pieces.begin(), pieces.end(),
                                    [&](const Piece& one) { return one.end() <= element; });
      };
      read(range.unit, bound(range.first), bound(range.first + range.elements), &Piece::state,
           &Piece::fresh_state, BufferKind::optimizer_state,
           [](const Piece& piece) { return piece.state_at == Tier::ssd; });
    }
  }

  void read_gradients_of(const OptimizerEvent& event, Slice slot) {
    for_pieces(event, [&](int unit, Piece& piece) {
      piece.fresh_gradient = slot.part(0, piece.gradient_on_ssd.bytes);
      slot.offset += piece.gradient_on_ssd.bytes;
      program_.copy(piece.gradient_on_ssd, piece.fresh_gradient, unit);
      if (!piece.head_on_ssd.valid()) return;
      piece.fresh_head = head_slot_.part(piece.first * gradient_bytes(), piece.head_on_ssd.bytes);
      program_.copy(piece.head_on_ssd, piece.fresh_head, unit);
    });
  }

  void run_events(Moment now, int step) {
    const auto& events = times_.events();
    for (; next_event_ < events.size(); ++next_event_) {
      const OptimizerEvent& event = events[next_event_];
      if (event.moment > now || event.step > step) return;
      if (event.is_wait) {
        write_back();
        program_.barrier();
      } else {
        update(event);
      }
    }
  }
  // What a step leaves to be done before visit v, the first of the next one.
  void end_step(int step, VisitId v) {
    if (step < 0) return;
    activations_.leave(no_visit);
    at(step, Phase::optimizer);
    if (plan_.optimizer.own_phase) program_.point(HostPoint::optimizer_begins);
    run_events(before(v), step);
    write_back();
    if (!plan_.optimizer.own_phase) return;
    state_leaves_gpu();
    program_.point(HostPoint::optimizer_ends);
  }

  void update(const OptimizerEvent& event) {
    const bool blocks = plan_.optimizer.blocking;
    // What the update before changed leaves under this one.
    const bool behind =
        plan_.optimizer_state.writes_behind && !plan_.optimizer_state.writes_at_once;
    if (blocks) program_.barrier();
    if (!behind) write_back();
    while (next_state_ <= updated_) read_next_state();
    program_.point(HostPoint::update_due);
    exchange_gpu_state(event);
    ++updated_;
    read_state(event.moment, updated_ - 1);
    const Update& one = work_.updates[event.update];
    for_pieces(event, [&](int unit, Piece& piece) { update(unit, piece, event.on_gpu, one); });
    if (blocks) program_.barrier();
    program_.point(HostPoint::updated);
    if (event.on_gpu && !gpu_state_slots_.empty()) {
      updated_on_gpu_ = event;
      return;
    }
    if (behind) write_back();
    written_ = event;
    has_written_ = true;
    const bool at_once = plan_.optimizer_state.slots == 0 || plan_.optimizer_state.writes_at_once;
    if (!blocks && at_once && !behind) write_back();
  }

  void update(int unit, Piece& piece, bool on_gpu, const Update& one) {
    Gradient& gradient = gradients_[index(unit)];
    SPILLWAY_ASSERT(gradient.step == one.gradient_step, "an update has its gradient");
    const std::uint64_t width = gradient_bytes();
    gradient.waiting -= piece.elements;
    gradient.applied.emplace_back(piece.first, piece.end());
    if (on_gpu) {
      const auto part = [&](Slice whole) {
        return whole.valid() ? whole.part(piece.first * width, piece.elements * width) : whole;
      };
      program_.optimizer(unit, piece.first, piece.elements, part(gradient.gpu),
                         part(unit == embedding() ? gradient.head : Slice{}),
                         piece.state_at == Tier::gpu ? piece.state : piece.fresh_state,
                         piece.parameters, one.gradient_step);
      return;
    }
    const HostGradient operands = in_host(gradient, piece);
    const Slice state = piece.state_at == Tier::ssd ? piece.fresh_state : piece.state;
    SPILLWAY_ASSERT(state.valid(), "optimizer state is in host memory before it is updated");
    Slice result = piece.parameters;
    if (piece.parameters_at != Tier::host) {
      const std::uint64_t bytes = piece.parameters.bytes;
      piece.fresh_parameters =
          program_.buffer(Tier::host, bytes, BufferKind::parameters, unit).part(0, bytes);
      result = piece.fresh_parameters;
    }
    program_.optimizer(unit, piece.first, piece.elements, operands.own, operands.head, state,
                       result, one.gradient_step);
  }
  // The gradient of a piece.
  HostGradient in_host(const Gradient& gradient, const Piece& piece) const {
    if (piece.fresh_gradient.valid())
      return {piece.first, piece.elements, piece.fresh_gradient, piece.fresh_head};
    const HostGradient& whole =
        *std::find_if(gradient.host.begin(), gradient.host.end(), [&](const HostGradient& part) {
          return piece.first >= part.first && piece.first < part.first + part.elements;
        });
    const std::uint64_t width = gradient_bytes();
    const auto part = [&](Slice slice) {
      return slice.valid() ? slice.part((piece.first - whole.first) * width, piece.elements * width)
                           : slice;
    };
    return {piece.first, piece.elements, part(whole.own), part(whole.head)};
  }

  // Optimizer state of updates on the GPU that rests in host memory.
  void take_gpu_state_slots() {
    std::uint64_t most = 0;
    for (const OptimizerEvent& event : updates_) {
      if (!event.on_gpu) continue;
      std::uint64_t bytes = 0;
      for_pieces(event, [&](int, Piece& piece) {
        piece.updates_on_gpu = true;
        if (piece.state_at == Tier::host) bytes += piece.state.bytes;
      });
      most = std::max(most, bytes);
    }
    for (int slot = 0; most > 0 && slot < plan_.optimizer_state.gpu_slots; ++slot)
      gpu_state_slots_.push_back(program_.persistent(Tier::gpu, most, BufferKind::optimizer_state));
  }
  // When the updates between two on the GPU begin, the state of the first leaves and that of the
  // second arrives; in this order where there is memory for one.
  void exchange_gpu_state(const OptimizerEvent& event) {
    const auto stride = static_cast<std::size_t>(plan_.optimizer.gpu_stride);
    if (gpu_state_slots_.empty() || event.in_step % stride != 0) return;
    if (gpu_state_slots_.size() == 1) state_leaves_gpu();
    const std::size_t next = updated_ + stride - 1;
    const auto step_of = [&](std::size_t u) {
      return work_.updates[updates_[u].update].gradient_step;
    };
    if (next < updates_.size() && step_of(next) == step_of(updated_)) {
      Slice slot = gpu_state_slots_[arrivals_++ % gpu_state_slots_.size()];
      for_pieces(updates_[next], [&](int unit, Piece& piece) {
        piece.fresh_state = slot.part(0, piece.state.bytes);
        slot.offset += piece.state.bytes;
        program_.copy(piece.state, piece.fresh_state, unit);
      });
    }
    if (gpu_state_slots_.size() > 1) state_leaves_gpu();
  }
  void state_leaves_gpu() {
    if (!updated_on_gpu_) return;
    for_pieces(*updated_on_gpu_, [&](int unit, Piece& piece) {
      program_.copy(piece.fresh_state, piece.state, unit);
      piece.fresh_state = {};
    });
    updated_on_gpu_.reset();
  }

  // What the last update changed goes home.
  void write_back() {
    if (!has_written_) return;
    has_written_ = false;
    for_pieces(written_, [&](int unit, Piece& piece) {
      if (!written_.on_gpu && piece.parameters_at != Tier::host)
        program_.copy(piece.fresh_parameters, piece.parameters, unit);
    });
    program_.point(HostPoint::parameters_sent);
    for_pieces(written_, [&](int unit, Piece& piece) {
      if (piece.fresh_state.valid()) program_.copy(piece.fresh_state, piece.state, unit);
      piece.fresh_state = {};
      if (window_ || piece.parameters_at == Tier::gpu || !is_read_by_now(unit, next_use_))
        piece.fresh_parameters = {};
    });
    written_back_ = updated_;
    if (!plan_.optimizer_state.writes_behind) program_.point(HostPoint::state_sent);
  }

  Program& program_;
  const Plan& plan_;
  const OrderOfWork& work_;
  int layers_;
  Timetable times_;
  Activations activations_;
  std::optional<ParameterWindow> window_;
  std::vector<Pieces> units_;
  std::vector<Slice> parameters_;    // by layer, on the GPU
  std::deque<Arriving> arriving_;    // for the uses from next_use_ on
  std::vector<Gradient> gradients_;  // by unit
  std::vector<Leaving> leaving_;     // oldest first
  std::vector<Leaving> bucket_;      // gradients that leave together
  std::uint64_t bucket_elements_ = 0;
  bool bucket_is_complete_ = false;
  struct Staged {
    Slice host, ssd;
    int unit = 0;
  };
  std::vector<Staged> staged_;                 // gradients on their way to the SSD
  std::size_t stage_ = 0, stages_filled_ = 0;  // in state_slots_
  std::uint64_t stage_bytes_ = 0, stage_used_ = 0;
  std::size_t next_read_ = 0, next_use_ = 0;  // in Timetable::fetches
  std::vector<OptimizerEvent> updates_;
  std::size_t next_event_ = 0, next_state_ = 0, updated_ = 0, written_back_ = 0;
  std::size_t state_ahead_ = 0;           // updates
  std::vector<std::size_t> state_after_;  // by update
  std::vector<Slice> state_slots_;
  std::vector<Slice> gpu_state_slots_;
  std::size_t arrivals_ = 0;                      // in gpu_state_slots_
  std::optional<OptimizerEvent> updated_on_gpu_;  // whose state is still there
  Slice head_slot_;  // what the loss adds to the embedding's gradient, from the SSD
  OptimizerEvent written_;
  bool has_written_ = false;
  int step_ = -1;
  Phase phase_ = Phase::forward;
  VisitId now_ = 0;
};

}  // namespace

std::uint64_t emit_work(Program& program, const Plan& plan, const OrderOfWork& work) {
  Emission emission(program, plan, work);
  emission.emit();
  return emission.kept_bytes();
}

}  // namespace spillway
