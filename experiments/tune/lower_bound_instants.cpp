// Where things are at the instants of a step, and what must cross which link between two of them.
#include <algorithm>

#include "experiments/tune/lower_bound_program.hpp"

namespace spillway {

BoundProgram::Instant BoundProgram::begin_instant() const {
  Instant instant;
  instant.gpu.add_constant(amounts_.parameter_bytes * amounts_.outer_elements() +
                           amounts_.checkpoint + amounts_.forward_working);
  return instant;
}

BoundProgram::Instant BoundProgram::turn_instant(bool sums) const {
  const StepAmounts& a = amounts_;
  Instant instant;
  instant.gpu.add_constant(a.parameter_bytes * a.outer_elements() +
                           a.gradient_bytes * (a.layer_elements + a.head_sum()) +
                           a.backward_working);
  if (sums) instant.gpu.add_constant(a.gradient_bytes * a.embedding_elements);
  return instant;
}

// What there is of parameters at an instant at which a layer runs.
BoundProgram::Copies BoundProgram::add_copies(Instant& instant) {
  const double bytes = all_parameters();
  const Copies copies{program_.column(1), program_.column(1), program_.column(1)};
  at_most(Expression().add(copies.of_host), Expression().add(homes_.host));
  at_most(Expression().add(copies.of_ssd).add(copies.in_host), Expression().add(homes_.ssd));
  const Expression on_gpu = Expression().add(homes_.gpu).add(copies.of_host).add(copies.of_ssd);
  at_most(Expression(1 / amounts_.layers), on_gpu);
  instant.gpu.add(on_gpu, bytes);
  instant.host.add(homes_.host, bytes).add(copies.in_host, bytes);
  return copies;
}

Expression BoundProgram::not_on_gpu(const Copies& copies) const {
  return Expression()
      .add(homes_.host)
      .add(homes_.ssd)
      .add(copies.of_host, -1)
      .add(copies.of_ssd, -1);
}

Expression BoundProgram::not_in_memory(const Copies& copies) const {
  return Expression().add(homes_.ssd).add(copies.of_ssd, -1).add(copies.in_host, -1);
}

// Parameters have homes; what the GPU updates is at home there.
void BoundProgram::add_homes() {
  homes_ = rest();
  program_.equals_zero(Expression(-1).add(homes_.gpu).add(homes_.host).add(homes_.ssd));
  if (gpu_updates_ == GpuUpdates::of_state_in_host)
    program_.equals_zero(Expression(-1).add(homes_.gpu));
  for (int* const column : {&to_gpu_before_, &to_gpu_after_, &stale_in_host_, &stale_on_ssd_})
    *column = program_.column(1);
  program_.equals_zero(
      updated(Who::gpu, {}).add(to_gpu_before_).add(to_gpu_after_).add(homes_.gpu, -1));
  program_.equals_zero(updated(Who::cpu, When::after)
                           .add(to_gpu_after_, -1)
                           .add(stale_in_host_, -1)
                           .add(stale_on_ssd_, -1));
  at_most(Expression().add(stale_in_host_), Expression().add(homes_.host));
  at_most(Expression().add(stale_on_ssd_), Expression().add(homes_.ssd));
  for (int& column : written_) column = program_.column(1);
  const double bytes = all_parameters();
  const Parts parts[] = {amounts_.updates_wait ? only(update) : only(backward) | only(update),
                         only(forward), only(middle), only(last_layer) | only(backward)};
  Expression all = Expression().add(homes_.ssd, -1);
  for (std::size_t k = 0; k < written_.size(); ++k) {
    if (k == 2 && groups_.groups == 1) continue;
    must(Flow::write, parts[k], Expression().add(written_[k], bytes));
    all.add(written_[k]);
  }
  program_.equals_zero(all);
}

// A step begins.
void BoundProgram::add_begin() {
  const double bytes = all_parameters();
  Instant instant = begin_instant();
  const Copies copies = add_copies(instant);
  // Copies are of what was updated; the memory of what was not is free.
  at_most(Expression().add(copies.of_host).add(stale_in_host_), Expression().add(homes_.host));
  at_most(Expression().add(copies.of_ssd).add(copies.in_host).add(stale_on_ssd_),
          Expression().add(homes_.ssd));
  instant.host.add(stale_in_host_, -bytes);
  const Expression arrived =
      Expression().add(copies.of_host).add(copies.of_ssd).add(to_gpu_before_);
  at_most(Expression().add(first_on_cpu_), arrived);
  const Parts ends = amounts_.updates_wait ? only(update) : only(backward) | only(update);
  must(Flow::h2d, ends, Expression().add(arrived, bytes).add(first_on_cpu_, -bytes));
  must(Flow::h2d, only(forward),
       Expression().add(not_on_gpu(copies), bytes).add(to_gpu_after_, bytes));
  const Expression read = not_in_memory(copies).add(stale_on_ssd_, -1);
  must(Flow::read, only(forward), Expression().add(read, bytes));
  at_most(read, Expression().add(written_[0]));
  add_delayed_gradients(instant);
  finish_instant(instant, waiting({state_writes_[0][in_first], state_writes_[0][in_middle],
                                   state_reads_[1][at_updates], state_reads_[1][in_middle]}));
}

// Complete gradients that wait for the next step.
void BoundProgram::add_delayed_gradients(Instant& instant) {
  const StepAmounts& a = amounts_;
  const double bytes = a.gradient_bytes * a.all_layer_elements();
  const Resting at = rest();
  const Parts ends = only(backward) | only(update);
  const Expression off = Expression().add(at.host).add(at.ssd);
  program_.equals_zero(Expression(off)
                           .add(at.gpu)
                           .add(updated(Who::cpu, When::after), -1)
                           .add(updated(Who::gpu, When::after), -1));
  must(Flow::d2h, ends, Expression().add(off, bytes));
  must(Flow::write, ends, Expression().add(at.ssd, bytes));
  must(Flow::read, only(forward), Expression().add(at.ssd, bytes));
  const int later = program_.column(1);
  at_most(updated(Who::cpu, When::after), Expression(off).add(later));
  must(Flow::d2h, only(forward), Expression().add(later, bytes));
  instant.gpu.add(at.gpu, bytes);
  instant.host.add(at.host, bytes);
  instant.ssd.add(at.ssd, bytes);
}

// Sums of gradients between two groups: a fraction of the layers'. Returns what is not on the GPU.
Expression BoundProgram::sums(Instant& instant, double fraction) {
  const double bytes = amounts_.gradient_bytes * amounts_.all_layer_elements();
  const int on_gpu = program_.column(1), in_host = program_.column(1);
  program_.equals_zero(Expression(-fraction).add(on_gpu).add(in_host));
  instant.gpu.add(on_gpu, bytes);
  instant.host.add(in_host, bytes);
  return Expression().add(in_host, bytes);
}

// Every group turns from forward to backward.
void BoundProgram::add_turns() {
  const Parts in_last = only(last_layer) | only(backward), in_middle_only = only(middle);
  const int late = state_writes_[1][at_updates], early = state_reads_[0][in_first];
  if (groups_.groups == 1) {
    add_turn({groups_.last, 1, only(forward), in_last, false, waiting({late, early})});
    return;
  }
  add_turn({groups_.first, 1, only(forward), in_middle_only, false,
            waiting({late, early, state_writes_[0][in_middle], state_writes_[1][in_middle]})});
  add_later_begins();
  if (groups_.groups > 2) {
    add_turn({groups_.middle, groups_.groups - 2.0, in_middle_only, in_middle_only, true,
              waiting({late, early})});
  }
  add_turn({groups_.last, 1, in_middle_only, in_last, true,
            waiting({late, early, state_reads_[0][in_middle], state_reads_[1][in_middle]})});
}

void BoundProgram::add_turn(const Turn& turn) {
  const double bytes = turn.times * all_parameters();
  Instant instant = turn_instant(turn.sums);
  const Copies copies = add_copies(instant);
  const Expression read = not_in_memory(copies);
  must(Flow::h2d, turn.after, Expression().add(not_on_gpu(copies), bytes));
  must(Flow::read, turn.after, Expression().add(read, bytes));
  if (turn.sums) {
    const Expression sum = sums(instant, 1 - 1 / amounts_.layers);
    must(Flow::d2h, only(middle), Expression().add(sum, turn.times));
    must(Flow::h2d, turn.after, Expression().add(sum, turn.times));
  }
  activations_turn_ = activations(instant, turn);
  hand_over(turn);
  finish_instant(instant, turn.state_waiting);
  Expression written = Expression().add(written_[0]).add(written_[1]);
  if (turn.sums) written.add(written_[2]);
  at_most(read, written);
}

// Inputs of layers and what forward saved, from forward to backward.
BoundProgram::Resting BoundProgram::activations(Instant& instant, const Turn& turn) {
  const StepAmounts& a = amounts_;
  const double inputs = turn.micro_batches * a.layers * a.checkpoint;
  const double pairs = turn.micro_batches * (a.layers - 1);
  const double unit = inputs + pairs * a.saves.back().bytes;
  const Resting at = rest();
  const Expression off = Expression().add(at.host, unit).add(at.ssd, unit);
  Expression all = Expression(-inputs).add(at.gpu, unit).add(off);
  for (std::size_t k = 0; k < saves_.size(); ++k) all.add(saves_[k], -pairs * a.saves[k].bytes);
  program_.equals_zero(all);
  at_most(Expression(a.checkpoint), Expression().add(at.gpu, unit));  // of the layer that runs
  // The first input of layer 0 is made before a step begins, and may leave then.
  const double first = turn.before == only(forward) ? a.checkpoint / unit : 0;
  const Parts early = turn.before | only(update);
  const auto leave = [&](Flow flow, const Expression& amount) {
    const int sooner = program_.column(first), later = program_.column(1);
    at_most(amount, Expression().add(sooner, unit).add(later, unit));
    must(flow, early, Expression().add(sooner, turn.times * unit));
    must(flow, turn.before, Expression().add(later, turn.times * unit));
  };
  leave(Flow::d2h, off);
  leave(Flow::write, Expression().add(at.ssd, unit));
  must(Flow::h2d, turn.after, Expression().add(off, turn.times));
  must(Flow::read, turn.after, Expression().add(at.ssd, turn.times * unit));
  instant.gpu.add(at.gpu, unit);
  instant.host.add(at.host, unit);
  instant.ssd.add(at.ssd, unit);
  return at;
}

// Activations and their gradients from one layer to the next: those of a row that the GPU does not
// hold at once cross PCIe.
void BoundProgram::hand_over(const Turn& turn) {
  const StepAmounts& a = amounts_;
  const double all = turn.micro_batches * a.checkpoint;
  const double operands = a.parameter_bytes * (a.outer_elements() + a.layer_elements);
  const double up = all - (a.gpu_memory - operands - a.forward_working);
  const double down = all - (a.gpu_memory - operands - a.gradient_bytes * a.layer_elements -
                             (a.backward_working - a.checkpoint) - a.checkpoint);
  const auto crossing = [&](double layers, double bytes) {
    return Expression(turn.times * std::max(0.0, layers) * std::max(0.0, bytes));
  };
  must(Flow::h2d, turn.before, crossing(a.layers - 2, up));
  must(Flow::d2h, turn.after, crossing(a.layers - 1, down));
  must(Flow::h2d, turn.after, crossing(a.layers - 1, down));
}

// The groups after the first begin.
void BoundProgram::add_later_begins() {
  const double bytes = (groups_.groups - 1) * all_parameters();
  Instant instant = begin_instant();
  instant.gpu.add_constant(amounts_.gradient_bytes *
                           (amounts_.embedding_elements + amounts_.head_sum()));
  const Copies copies = add_copies(instant);
  const Expression read = not_in_memory(copies);
  must(Flow::h2d, only(middle), Expression().add(not_on_gpu(copies), bytes));
  must(Flow::read, only(middle), Expression().add(read, bytes));
  at_most(read, Expression().add(written_[0]).add(written_[1]).add(written_[2]));
  sums(instant, 1);
  finish_instant(instant, waiting({state_writes_[1][at_updates], state_reads_[0][in_first]}));
}

// Optimizer state that waits in memory on its way from or to the SSD.
Expression BoundProgram::waiting(std::initializer_list<int> columns) const {
  Expression bytes;
  for (const int column : columns) bytes.add(column, all_state());
  return bytes;
}

// Adds optimizer state to what memories hold, and holds all of it to their sizes.
void BoundProgram::finish_instant(Instant& instant, const Expression& state_waiting) {
  const StepAmounts& a = amounts_;
  instant.gpu.add(state_of(Who::gpu, gpu_memory));
  instant.host.add(state_of(Who::cpu, host_memory))
      .add(state_of(Who::gpu, host_memory))
      .add(state_waiting);
  instant.ssd.add(state_of(Who::cpu, ssd_memory)).add(homes_.ssd, all_parameters());
  const auto hold = [&](const Expression& bytes, double memory, const char* name) {
    const double size = std::max(memory, 1.0);
    limit(Expression(-1).add(bytes, 1 / size), name, 0);
  };
  hold(instant.gpu, a.gpu_memory, "gpu memory");
  hold(instant.host, a.host_memory, "host memory");
  if (a.ssd_memory > 0) hold(instant.ssd, a.ssd_memory, "ssd memory");
}

}  // namespace spillway
