#include "experiments/tune/lower_bound_program.hpp"

#include <algorithm>
#include <limits>

namespace spillway {

namespace {

constexpr double unlimited = std::numeric_limits<double>::infinity();

}  // namespace

BoundProgram::BoundProgram(const StepAmounts& amounts, const MicroBatchGroups& groups,
                           GpuUpdates gpu_updates)
    : amounts_(amounts),
      groups_(groups),
      gpu_updates_(gpu_updates),
      unit_seconds_(amounts.about_a_step()) {
  for (int part = 0; part < part_count; ++part) {
    const bool is_there = part != middle || groups.groups > 1;
    seconds_[static_cast<std::size_t>(part)] = program_.column(is_there ? unlimited : 0, 1);
  }
  for (std::size_t k = 0; k < amounts.saves.size(); ++k) saves_.push_back(program_.column(1));
  Expression all(-1);
  for (const int column : saves_) all.add(column);
  program_.equals_zero(all);
  add_updates();
  add_compute();
  add_first_layer();
  add_embedding();
  add_head();
  add_state();
  add_state_on_ssd();
  add_homes();
  add_begin();
  add_turns();
  finish_windows();
  finish_parts();
}

// -- the language of the program ------------------------------------------------------------------

BoundProgram::Resting BoundProgram::rest() {
  Resting resting{program_.column(unlimited), program_.column(unlimited), 0};
  resting.ssd = program_.column(amounts_.ssd_memory > 0 ? unlimited : 0);
  return resting;
}

// Fraction of the layers' elements.
Expression BoundProgram::updated(Who who, std::optional<When> when) const {
  Expression sum;
  for (const auto& by_when : layer_updates_[static_cast<int>(who)]) {
    for (const When one : {When::before, When::after}) {
      if (!when || *when == one) sum.add(by_when[static_cast<int>(one)]);
    }
  }
  return sum;
}

// Bytes of optimizer state that rests in a memory and is updated by `who`.
Expression BoundProgram::state_of(Who who, int memory) const {
  const double of_layers = amounts_.state_bytes * amounts_.all_layer_elements();
  Expression bytes;
  for (const int column : layer_updates_[static_cast<int>(who)][memory])
    bytes.add(column, of_layers);
  bytes.add(embedding_updates_[static_cast<int>(who)][memory],
            amounts_.state_bytes * amounts_.embedding_elements);
  if (!amounts_.is_tied())
    bytes.add(head_updates_[static_cast<int>(who)][memory],
              amounts_.state_bytes * amounts_.head_elements);
  return bytes;
}

// Bytes of optimizer state that rests on the SSD, but for an untied head's. The embedding is
// updated before a step begins.
Expression BoundProgram::state_on_ssd(When when) const {
  constexpr int cpu = static_cast<int>(Who::cpu);
  Expression bytes;
  bytes.add(layer_updates_[cpu][ssd_memory][static_cast<int>(when)],
            amounts_.state_bytes * amounts_.all_layer_elements());
  if (when == When::before)
    bytes.add(embedding_updates_[cpu][ssd_memory],
              amounts_.state_bytes * amounts_.embedding_elements);
  return bytes;
}

double BoundProgram::all_parameters() const {
  return amounts_.parameter_bytes * amounts_.all_layer_elements();
}

double BoundProgram::all_state() const {
  return amounts_.state_bytes * (amounts_.all_layer_elements() + amounts_.outer_elements());
}

// That much work must be done in these parts of the step together.
void BoundProgram::must(Flow flow, Parts parts, const Expression& amount) {
  if (!amount.is_zero()) windows_[{flow, parts}].add(amount);
}

void BoundProgram::at_most(const Expression& less, const Expression& more) {
  program_.at_most_zero(Expression(less).add(more, -1));
}

// `expression` <= 0, as `name` limits it. `worth_of`: the column that a larger rate would relax, 0
// for a memory, whose row is in fractions of it.
void BoundProgram::limit(const Expression& expression, const std::string& name, int worth_of) {
  limits_.push_back({program_.at_most_zero(expression), worth_of, name});
}

// -- work -----------------------------------------------------------------------------------------

void BoundProgram::add_compute() {
  const StepAmounts& a = amounts_;
  const double n1 = groups_.first, nm = groups_.middle * std::max(0, groups_.groups - 2),
               nk = groups_.last;
  const double inner = a.layers - 1, ends = a.forward + a.head;
  const bool is_one = groups_.groups == 1;
  const double first = is_one ? nk : n1;
  compute_[forward].add_constant(first * inner * a.forward + (first - 1) * a.embed_forward + ends);
  compute_[last_layer].add_constant(nk * a.last_backward + (nk - 1) * ends);
  compute_[backward].add_constant((nk - 1) * a.embed_backward);
  compute_[update].add_constant(a.embed_backward + a.embed_forward);
  // Backward of all groups but the last one, and forward of all but the first one.
  const double down = is_one ? 0 : n1 + nm, up = is_one ? 0 : nm + nk;
  compute_[middle].add_constant(down * (a.last_backward + a.embed_backward + ends) +
                                up * (a.embed_forward + inner * a.forward));
  const Part clears = a.micro_batches == 1 ? update : is_one ? backward : middle;
  compute_[clears].add_constant(a.embed_clear);
  for (std::size_t k = 0; k < saves_.size(); ++k) {
    const double seconds = a.saves[k].backward_seconds;
    compute_[middle].add(saves_[k], down * inner * seconds);
    compute_[backward].add(saves_[k], nk * inner * seconds);
  }
  norms_[backward] = inner * a.norm;
  norms_[update] = a.norm;
}

// Whether optimizer state that `who` updates may rest in a memory.
bool BoundProgram::may_rest(Who who, int memory) const {
  const bool all_in_host = gpu_updates_ == GpuUpdates::of_state_in_host;
  if (memory == host_memory) return who == Who::cpu || all_in_host;
  if (all_in_host) return false;
  return who == Who::gpu ? memory == gpu_memory : memory == ssd_memory && amounts_.ssd_memory > 0;
}

void BoundProgram::add_updates() {
  Expression layers(-1), embedding(-1), head(-1);
  for (int who = 0; who < 2; ++who) {
    for (int memory = 0; memory < 3; ++memory) {
      const bool is_there = may_rest(static_cast<Who>(who), memory);
      for (const When when : {When::before, When::after}) {
        const bool may_be = when == When::before || gpu_updates_ == GpuUpdates::of_state_there;
        int& column = layer_updates_[who][memory][static_cast<int>(when)];
        column = program_.column(is_there && may_be ? 1 : 0);
        layers.add(column);
      }
      embedding_updates_[who][memory] = program_.column(is_there ? 1 : 0);
      embedding.add(embedding_updates_[who][memory]);
      if (amounts_.is_tied()) continue;
      head_updates_[who][memory] = program_.column(is_there ? 1 : 0);
      head.add(head_updates_[who][memory]);
    }
  }
  program_.equals_zero(layers);
  program_.equals_zero(embedding);
  if (!amounts_.is_tied()) program_.equals_zero(head);
  const double elements = amounts_.all_layer_elements();
  const Parts ends = amounts_.updates_wait ? only(update) : only(backward) | only(update);
  const double first = 1 / amounts_.layers;
  first_on_cpu_ = program_.column(first);
  const Expression on_cpu = updated(Who::cpu, When::before),
                   on_gpu = updated(Who::gpu, When::before);
  at_most(Expression().add(first_on_cpu_), on_cpu);
  at_most(Expression(first).add(first_on_cpu_, -1), on_gpu);
  const auto add = [&](Flow flow, Parts parts, const Expression& fraction) {
    must(flow, parts, Expression().add(fraction, elements));
  };
  add(Flow::cpu_update, only(forward), updated(Who::cpu, When::after));
  add(Flow::gpu_update, only(forward), updated(Who::gpu, When::after));
  // The gradient of layer 0 is complete when the last backward ends, and the step begins with it.
  add(Flow::cpu_update, only(update), Expression().add(first_on_cpu_));
  add(Flow::gpu_update, only(update), Expression(first).add(first_on_cpu_, -1));
  add(Flow::cpu_update, ends, Expression(on_cpu).add(first_on_cpu_, -1));
  add(Flow::gpu_update, ends, Expression(on_gpu).add(first_on_cpu_).add_constant(-first));
}

// Gradients of layers whose updates do not wait for the next step, and the parameters of layer 0.
void BoundProgram::add_first_layer() {
  const double gradients = amounts_.gradient_bytes * amounts_.all_layer_elements();
  const double parameters = all_parameters();
  must(Flow::d2h, only(update), Expression().add(first_on_cpu_, gradients));
  must(Flow::h2d, only(update), Expression().add(first_on_cpu_, parameters));
  must(Flow::d2h, only(backward) | only(update),
       Expression().add(updated(Who::cpu, When::before), gradients).add(first_on_cpu_, -gradients));
}

// The embedding is updated between its last backward and its first forward.
void BoundProgram::add_embedding() {
  const StepAmounts& a = amounts_;
  Expression on_cpu, on_gpu;
  for (int memory = 0; memory < 3; ++memory) {
    on_cpu.add(embedding_updates_[static_cast<int>(Who::cpu)][memory], a.embedding_elements);
    on_gpu.add(embedding_updates_[static_cast<int>(Who::gpu)][memory], a.embedding_elements);
  }
  must(Flow::cpu_update, only(update), on_cpu);
  must(Flow::gpu_update, only(update), on_gpu);
  const Expression gradient = Expression().add(on_cpu, a.gradient_bytes),
                   parameters = Expression().add(on_cpu, a.parameter_bytes);
  must(Flow::d2h, only(update), gradient);
  must(Flow::h2d, only(update), parameters);
  if (a.is_tied())  // the head's part
    must(Flow::d2h, only(last_layer) | only(backward) | only(update), gradient);
  // Meanwhile the GPU computes nothing of the embedding.
  const auto alone = [&](Flow flow, const Expression& amount, const char* name) {
    const double seconds = a.lane_seconds[index_of(flow)];
    Expression row(a.embed_forward + a.embed_backward);
    row.add(amount, seconds).add(seconds_[update], -unit_seconds_);
    limit(row, name, seconds_[update]);
  };
  alone(Flow::cpu_update, on_cpu, "cpu.optimizer");
  alone(Flow::d2h, gradient, "pcie.d2h");
  alone(Flow::h2d, parameters, "pcie.h2d");
}

// An untied head is updated between its last task in a step and its first in the next one. Its
// optimizer state on the SSD may cross at any time.
void BoundProgram::add_head() {
  const StepAmounts& a = amounts_;
  if (a.is_tied()) return;
  constexpr Parts all = (1u << part_count) - 1;
  const Parts between = only(last_layer) | only(backward) | only(update) | only(forward);
  const Parts updates = a.updates_wait ? only(update) | only(forward) : between;
  Expression on_cpu, on_gpu;
  for (int memory = 0; memory < 3; ++memory) {
    on_cpu.add(head_updates_[static_cast<int>(Who::cpu)][memory], a.head_elements);
    on_gpu.add(head_updates_[static_cast<int>(Who::gpu)][memory], a.head_elements);
  }
  must(Flow::cpu_update, updates, on_cpu);
  must(Flow::gpu_update, updates, on_gpu);
  must(Flow::d2h, between, Expression().add(on_cpu, a.gradient_bytes));
  must(Flow::h2d, updates, Expression().add(on_cpu, a.parameter_bytes));
  Expression on_ssd;
  on_ssd.add(head_updates_[static_cast<int>(Who::cpu)][ssd_memory],
             a.state_bytes * a.head_elements);
  must(Flow::read, all, on_ssd);
  must(Flow::write, all, on_ssd);
}

// Optimizer state in host memory crosses PCIe and comes back where the GPU updates it.
void BoundProgram::add_state() {
  constexpr Parts all = (1u << part_count) - 1;
  const Expression over_pcie = state_of(Who::gpu, host_memory);
  must(Flow::h2d, all, over_pcie);
  must(Flow::d2h, all, over_pcie);
}

// Optimizer state that rests on the SSD is read before its update and written after it. What
// crosses far from its update waits in memory at the instants between.
void BoundProgram::add_state_on_ssd() {
  const Parts ends = only(last_layer) | only(backward) | only(update);
  const Parts after_update = amounts_.updates_wait ? only(update) : only(backward) | only(update);
  for (const When when : {When::before, When::after}) {
    Expression read = Expression().add(state_on_ssd(when), -1), written = read;
    for (int crossing = 0; crossing < crossing_count; ++crossing) {
      const double most = crossing == in_middle && groups_.groups == 1 ? 0 : unlimited;
      const int reads = program_.column(most), writes = program_.column(most);
      state_reads_[static_cast<int>(when)][crossing] = reads;
      state_writes_[static_cast<int>(when)][crossing] = writes;
      const Parts at = crossing == in_first    ? only(forward)
                       : crossing == in_middle ? only(middle)
                                               : ends;
      const bool follows = crossing == at_updates && when == When::before;
      must(Flow::read, at, Expression().add(reads, all_state()));
      must(Flow::write, follows ? after_update : at, Expression().add(writes, all_state()));
      read.add(reads, all_state());
      written.add(writes, all_state());
    }
    program_.equals_zero(read);
    program_.equals_zero(written);
  }
}

// -- parts of the step ----------------------------------------------------------------------------

void BoundProgram::finish_windows() {
  const double unit = all_state();
  for (const auto& [key, amount] : windows_) {
    const auto& [flow, parts] = key;
    Expression rest = amount;
    for (int part = 0; part < part_count; ++part) {
      if ((parts & only(static_cast<Part>(part))) == 0) continue;
      if (part == middle && groups_.groups == 1) continue;
      Expression& done = flows_[index_of(flow)][static_cast<std::size_t>(part)];
      if (parts == only(static_cast<Part>(part))) {
        done.add(amount);
        rest = {};
        break;
      }
      const int column = program_.column(unlimited);
      done.add(column, unit);
      rest.add(column, -unit);
    }
    if (!rest.is_zero()) program_.at_most_zero(rest);
  }
}

void BoundProgram::finish_parts() {
  constexpr const char* names[flow_count] = {"gpu.compute", "cpu.optimizer", "pcie.h2d",
                                             "pcie.d2h",    "ssd.read",      "ssd.write"};
  const StepAmounts& a = amounts_;
  for (std::size_t part = 0; part < part_count; ++part) {
    if (part == middle && groups_.groups == 1) continue;
    const auto within = [&](Expression seconds, const std::string& name) {
      seconds.add(seconds_[part], -unit_seconds_);
      limit(seconds, name, seconds_[part]);
    };
    Expression gpu = compute_[part];
    gpu.add_constant(norms_[part]);
    gpu.add(flows_[0][part], a.lane_seconds[0]);
    within(gpu, names[0]);
    for (std::size_t flow = 1; flow < flow_count; ++flow) {
      if (flows_[flow][part].is_zero() || a.lane_seconds[flow] == 0) continue;
      Expression lane = Expression().add(flows_[flow][part], a.lane_seconds[flow]);
      // The last layer's forward and the head of one micro-batch come after all updates of layers,
      // the head after its own.
      if (flow == index_of(Flow::cpu_update) && part == forward) {
        if (!a.is_tied()) {
          Expression layers(a.forward + a.head);
          layers.add(updated(Who::cpu, When::after), a.all_layer_elements() * a.lane_seconds[flow]);
          within(layers, names[flow]);
        }
        lane.add_constant(a.is_tied() ? a.forward + a.head : a.head);
      }
      within(lane, names[flow]);
    }
    for (const SharedResource& resource : a.shared) {
      Expression seconds = Expression().add(compute_[part], resource.seconds_of_compute);
      for (std::size_t flow = 0; flow < flow_count; ++flow)
        seconds.add(flows_[flow][part], resource.seconds_of[flow]);
      if (!seconds.is_zero()) within(seconds, resource.name);
    }
  }
  // Groups of several sizes at once leave out some compute of each part.
  Expression all(a.least_compute());
  for (const int column : seconds_) all.add(column, -unit_seconds_);
  limit(all, names[0], seconds_[forward]);
}

// -- the optimum ----------------------------------------------------------------------------------

std::optional<BoundCase> BoundProgram::solve() {
  switch (program_.solve()) {
    case Feasibility::infeasible:
      return std::nullopt;
    case Feasibility::optimal:
      return result();
    case Feasibility::unknown:
      break;
  }
  BoundCase least;
  least.seconds = amounts_.least_compute();
  least.limit = "gpu.compute";
  return least;
}

// The limit whose growth by a hundredth would gain most.
std::string BoundProgram::limiting() const {
  std::map<std::string, double> gains;
  for (const Limit& one : limits_) {
    const double size = one.worth_of == 0 ? 1 : program_.value(one.worth_of) * unit_seconds_;
    gains[one.name] += program_.worth(one.row) * size;
  }
  const auto most = std::max_element(
      gains.begin(), gains.end(), [](const auto& x, const auto& y) { return x.second < y.second; });
  return most->first;
}

BoundCase BoundProgram::result() const {
  // The simplex method stops at a relative error of some 1e-9 in each row.
  constexpr double rounding = 1e-6;
  BoundCase found;
  found.seconds = program_.cost() * unit_seconds_ * (1 - rounding);
  found.limit = limiting();
  PlanShares& shares = found.shares;
  const auto at = [&](int column) { return std::clamp(program_.value(column), 0.0, 1.0); };
  const auto share = [&](double gpu, double ssd) {
    const double on_gpu = std::clamp(gpu, 0.0, 1.0), on_ssd = std::clamp(ssd, 0.0, 1 - on_gpu);
    return Share{on_gpu, 1 - on_gpu - on_ssd, on_ssd};
  };
  shares.parameters = share(at(homes_.gpu), at(homes_.ssd));
  const auto of_state = [&](Who who, int memory) {
    return program_.value(state_of(who, memory)) / all_state();
  };
  shares.optimizer_state = share(of_state(Who::gpu, gpu_memory) + of_state(Who::cpu, gpu_memory),
                                 of_state(Who::gpu, ssd_memory) + of_state(Who::cpu, ssd_memory));
  const Resting& turn = activations_turn_;
  const double all = at(turn.gpu) + at(turn.host) + at(turn.ssd);
  shares.checkpoints = share(at(turn.gpu) / all, at(turn.ssd) / all);
  shares.saved = shares.checkpoints;
  for (int memory = 0; memory < 3; ++memory) shares.gpu_updates += of_state(Who::gpu, memory);
  shares.delayed = std::clamp(program_.value(updated(Who::cpu, When::after)) +
                                  program_.value(updated(Who::gpu, When::after)),
                              0.0, 1.0);
  for (std::size_t k = 0; k < saves_.size(); ++k) {
    if (at(saves_[k]) > 1e-9) shares.saves.emplace_back(amounts_.saves[k].mask, at(saves_[k]));
  }
  return found;
}

}  // namespace spillway
