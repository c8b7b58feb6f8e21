// Where things are at the instants of a step, and what must cross which link between two of them.
#include <algorithm>

#include "experiments/tune/lower_bound_program.hpp"

namespace spillway {

BoundProgram::Instant BoundProgram::begin_instant() const {
  Instant instant;
  instant.gpu.add_constant(amounts_.parameter_bytes * amounts_.embedding_elements +
                           amounts_.checkpoint + amounts_.forward_working);
  return instant;
}

BoundProgram::Instant BoundProgram::turn_instant(bool sums) const {
  const StepAmounts& a = amounts_;
  Instant instant;
  instant.gpu.add_constant(a.parameter_bytes * (a.embedding_elements + a.layer_elements) +
                           a.gradient_bytes * (a.layer_elements + a.embedding_elements) +
                           a.backward_working);
  if (sums) instant.gpu.add_constant(a.gradient_bytes * a.embedding_elements);
  return instant;
}

// A step begins.
void BoundProgram::add_begin() {
  const StepAmounts& a = amounts_;
  const double bytes = a.parameter_bytes * a.all_layer_elements();
  parameters_begin_ = rest();
  const Resting& at = parameters_begin_;
  const Expression off = Expression().add(at.host).add(at.ssd);
  Expression all = Expression(-1).add(at.gpu).add(off);
  all.add(updated(Who::cpu, When::after)).add(updated(Who::gpu, When::after));
  program_.equals_zero(all);
  at_most(Expression(1 / a.layers), Expression().add(at.gpu));
  // What the CPU updated is on the GPU because it was sent there, and the other way around.
  const Parts ends = a.updates_wait ? only(update) : only(backward) | only(update);
  const int fetched = program_.column(1);
  must(Flow::h2d, ends, Expression().add(fetched, bytes));
  at_most(Expression().add(at.gpu),
          updated(Who::gpu, When::before).add(fetched).add(first_on_cpu_));
  sent_before_ = program_.column(1);
  sent_after_ = program_.column(1);
  must(Flow::d2h, ends, Expression().add(sent_before_, bytes));
  must(Flow::d2h, only(forward) | only(middle), Expression().add(sent_after_, bytes));
  at_most(off, updated(Who::cpu, When::before).add(sent_before_));
  must(Flow::h2d, only(forward),
       Expression().add(off, bytes).add(updated(Who::cpu, When::after), bytes));
  must(Flow::read, only(forward), Expression().add(at.ssd, bytes));
}

// Complete gradients that wait for the next step.
void BoundProgram::add_delayed_gradients() {
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
  Instant instant = begin_instant();
  const double parameters = a.parameter_bytes * a.all_layer_elements();
  instant.gpu.add(parameters_begin_.gpu, parameters).add(at.gpu, bytes);
  instant.host.add(parameters_begin_.host, parameters).add(at.host, bytes);
  instant.ssd.add(at.ssd, bytes);
  finish_instant(instant, waiting({state_writes_[0][in_first], state_writes_[0][in_middle],
                                   state_reads_[1][at_updates], state_reads_[1][in_middle]}));
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
  const StepAmounts& a = amounts_;
  const double bytes = a.parameter_bytes * a.all_layer_elements();
  Instant instant = turn_instant(turn.sums);
  const Resting at = rest();
  const Expression off = Expression().add(at.host).add(at.ssd);
  program_.equals_zero(Expression(1 / a.layers - 1).add(at.gpu).add(off));
  at_most(off, updated(Who::cpu, {}).add(sent_before_).add(sent_after_));
  must(Flow::h2d, turn.after, Expression().add(off, turn.times * bytes));
  must(Flow::read, turn.after, Expression().add(at.ssd, turn.times * bytes));
  instant.gpu.add(at.gpu, bytes);
  instant.host.add(at.host, bytes);
  if (turn.sums) {
    const Expression sum = sums(instant, 1 - 1 / a.layers);
    must(Flow::d2h, only(middle), Expression().add(sum, turn.times));
    must(Flow::h2d, turn.after, Expression().add(sum, turn.times));
  }
  activations_turn_ = activations(instant, turn);
  parameters_turn_ = at;
  hand_over(turn);
  finish_instant(instant, turn.state_waiting);
  Expression written = Expression().add(written_before_).add(written_first_);
  if (turn.sums) written.add(written_later_);
  at_most(Expression().add(at.ssd), written);
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
  must(Flow::d2h, turn.before, Expression().add(off, turn.times));
  must(Flow::h2d, turn.after, Expression().add(off, turn.times));
  must(Flow::write, turn.before, Expression().add(at.ssd, turn.times * unit));
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
  const double operands = a.parameter_bytes * (a.embedding_elements + a.layer_elements);
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
  const StepAmounts& a = amounts_;
  const double bytes = a.parameter_bytes * a.all_layer_elements();
  const double times = groups_.groups - 1;
  Instant instant = begin_instant();
  instant.gpu.add_constant(2 * a.gradient_bytes * a.embedding_elements);
  const Resting at = rest();
  const Expression off = Expression().add(at.host).add(at.ssd);
  program_.equals_zero(Expression(-1).add(at.gpu).add(off));
  at_most(Expression(1 / a.layers), Expression().add(at.gpu));
  at_most(off, updated(Who::cpu, {}).add(sent_before_).add(sent_after_));
  must(Flow::h2d, only(middle), Expression().add(off, times * bytes));
  must(Flow::read, only(middle), Expression().add(at.ssd, times * bytes));
  instant.gpu.add(at.gpu, bytes);
  instant.host.add(at.host, bytes);
  sums(instant, 1);
  finish_instant(instant, waiting({state_writes_[1][at_updates], state_reads_[0][in_first]}));
  at_most(Expression().add(at.ssd),
          Expression().add(written_before_).add(written_first_).add(written_later_));
}

// Parameters that rest on the SSD were written there after their update.
void BoundProgram::add_writes() {
  const double bytes = amounts_.parameter_bytes * amounts_.all_layer_elements();
  const Parts ends = amounts_.updates_wait ? only(update) : only(backward) | only(update);
  must(Flow::write, ends, Expression().add(written_before_, bytes));
  must(Flow::write, only(forward), Expression().add(written_first_, bytes));
  must(Flow::write, only(middle), Expression().add(written_later_, bytes));
  at_most(Expression().add(parameters_begin_.ssd), Expression().add(written_before_));
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
  const double unit = all_state();
  // On the way between its update on one side and its home on the other.
  const Expression either =
      state_of(Who::gpu, host_memory).add(state_of(Who::cpu, gpu_memory)).add(state_waiting);
  const int on_gpu = program_.column(1);
  at_most(Expression().add(on_gpu, unit), either);
  instant.gpu.add(state_of(Who::gpu, gpu_memory)).add(on_gpu, unit);
  instant.host.add(state_of(Who::cpu, host_memory)).add(either).add(on_gpu, -unit);
  instant.ssd.add(state_of(Who::cpu, ssd_memory)).add(state_of(Who::gpu, ssd_memory));
  const auto hold = [&](const Expression& bytes, double memory, const char* name) {
    const double size = std::max(memory, 1.0);
    limit(Expression(-1).add(bytes, 1 / size), name, 0);
  };
  hold(instant.gpu, a.gpu_memory, "gpu memory");
  hold(instant.host, a.host_memory, "host memory");
  if (a.ssd_memory > 0) hold(instant.ssd, a.ssd_memory, "ssd memory");
}

}  // namespace spillway
