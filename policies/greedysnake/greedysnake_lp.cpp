#include "policies/greedysnake/greedysnake_lp.hpp"

#include <fmt/format.h>
#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/errors.hpp"

namespace spillway {

namespace {

// GLPK's memory belongs to the thread that first used it: given back when the thread ends.
struct GlpkThread {
  ~GlpkThread() { glp_free_env(); }
};

constexpr double infinite = std::numeric_limits<double>::infinity();

// Columns of the program. The other half of each pair (host for ssd, host for gpu) is 1 - x.
// `stash` is in GB.
enum Column { checkpoints = 1, gradients, parameters, optimizer, forward, backward, stash };
constexpr int columns = 7;
constexpr double gb = 1e9;

// sum of coefficient[c] * column c <= bound
struct Row {
  double coefficient[columns + 1] = {};
  double bound = 0;
};

class Glpk {
 public:
  Glpk() : problem_(glp_create_prob(), &glp_delete_prob) {
    static thread_local const GlpkThread thread;
    (void)thread;
    glp_set_obj_dir(problem_.get(), GLP_MIN);
    glp_add_cols(problem_.get(), columns);
  }
  void bounds(int column, double least, double most) {
    const int type = most == infinite ? GLP_LO : most > least ? GLP_DB : GLP_FX;
    glp_set_col_bnds(problem_.get(), column, type, least, most == infinite ? 0 : most);
  }
  void cost(int column, double value) { glp_set_obj_coef(problem_.get(), column, value); }
  void add(const Row& row) {
    double largest = std::abs(row.bound);
    for (const double value : row.coefficient) largest = std::max(largest, std::abs(value));
    if (largest == 0) return;
    // Rows are in bytes or seconds; brought to the same magnitude.
    int index[columns + 1] = {};
    double value[columns + 1] = {};
    int count = 0;
    for (int c = 1; c <= columns; ++c) {
      if (row.coefficient[c] == 0) continue;
      index[++count] = c;
      value[count] = row.coefficient[c] / largest;
    }
    const int at = glp_add_rows(problem_.get(), 1);
    glp_set_row_bnds(problem_.get(), at, GLP_UP, 0, row.bound / largest);
    glp_set_mat_row(problem_.get(), at, count, index, value);
  }
  // Whether there is an optimum that the simplex method finds: numbers far apart can defeat it.
  bool solve() {
    glp_smcp settings;
    glp_init_smcp(&settings);
    settings.msg_lev = GLP_MSG_OFF;
    settings.tol_bnd = settings.tol_dj = 1e-9;
    return glp_simplex(problem_.get(), &settings) == 0 && glp_get_status(problem_.get()) == GLP_OPT;
  }
  double value(int column) const { return glp_get_col_prim(problem_.get(), column); }

 private:
  std::unique_ptr<glp_prob, void (*)(glp_prob*)> problem_;
};

void require_inputs(const GreedySnakeInputs& in, int micro_batches, double alpha) {
  const auto need = [](const char* name, double value, bool may_be_zero = false) {
    if (std::isfinite(value) && (value > 0 || (may_be_zero && value == 0))) return;
    throw InputError(fmt::format("GreedySnake's model: {} is {}, not {} number", name, value,
                                 may_be_zero ? "a non-negative" : "a positive"));
  };
  need("the number of layers", in.units);
  need("the parameters of a layer", in.unit_parameters);
  need("the size of an activation", in.activation_elements);
  need("the forward time", in.forward_seconds, true);
  need("the backward time", in.backward_seconds, true);
  need("the time of embedding and head", in.other_seconds, true);
  need("GPU memory", in.gpu_memory, true);
  need("host memory", in.host_memory, true);
  need("the PCIe rate", in.pcie);
  need("the SSD read rate", in.drives.read);
  need("the SSD write rate", in.drives.write);
  need("the rate of the CPU optimizer", in.adam_rate);
  need("the number of GPUs", in.gpus);
  need("bytes per parameter", in.device_bytes);
  need("bytes per gradient", in.gradient_bytes);
  need("bytes per master weight", in.master_bytes);
  need("bytes per moment", in.moment_bytes);
  need("the number of moments", in.adam_states);
  for (const DriveLimit& limit : in.drives.limits) need("a limit of the SSDs", limit.capacity);
  need("the number of micro-batches", micro_batches);
  if (!(alpha >= 0 && alpha <= 1)) {
    throw InputError(fmt::format("GreedySnake's model: alpha = {} is outside 0 .. 1", alpha));
  }
}

// Bytes one unit moves to or from the SSD in one pass, as coefficients of x_c, x_p, x_o.
struct SsdBytes {
  double checkpoints = 0, parameters = 0, optimizer = 0;
};

// (7): reads and writes of one pass take no longer than the pass.
void add_ssd(Glpk& program, const GreedySnakeInputs& in, Column pass, const SsdBytes& read,
             const SsdBytes& write) {
  for (const DriveLimit& limit : in.drives.limits) {
    const double per_read = limit.per_read / limit.capacity;
    const double per_written = limit.per_written / limit.capacity;
    Row row;
    row.coefficient[checkpoints] = read.checkpoints * per_read + write.checkpoints * per_written;
    row.coefficient[parameters] = read.parameters * per_read + write.parameters * per_written;
    row.coefficient[optimizer] = read.optimizer * per_read + write.optimizer * per_written;
    row.coefficient[pass] = -1;
    program.add(row);
  }
}

// Seconds of a unit.
struct Passes {
  double forward = 0, backward = 0;
};

// Whatever is on the SSD: (2), (3), (6).
Passes least_passes(const GreedySnakeInputs& in, double M, double alpha) {
  const double P = in.unit_parameters, d = in.device_bytes, q = in.gradient_bytes;
  const double f = in.forward_seconds, b = in.backward_seconds;
  const double checkpoint = in.activation_elements * d;  // bytes of one micro-batch
  return {
      std::max({M * f, alpha * P / in.adam_rate, (2 * M * checkpoint + P * d) / in.pcie}),
      std::max({M * (f + b), (1 - alpha) * P / in.adam_rate,
                (3 * M * checkpoint + P * d + P * q) / in.pcie}),
  };
}

double step_seconds(const GreedySnakeInputs& in, double M, const Passes& passes) {
  return in.units * (passes.forward + passes.backward) + M * in.other_seconds;
}

double throughput(const GreedySnakePlan& plan) { return plan.micro_batches / plan.step_seconds; }

// Micro-batches per second that a larger alpha must bring, over a smaller one.
constexpr double worth_it = 1.01;
constexpr int largest_alpha_percent = 30;

}  // namespace

std::optional<GreedySnakePlan> solve_greedysnake(const GreedySnakeInputs& in, int micro_batches,
                                                 double alpha) {
  require_inputs(in, micro_batches, alpha);
  const double M = micro_batches, L = in.units, P = in.unit_parameters, W = in.gpus;
  const double d = in.device_bytes, q = in.gradient_bytes, m = in.master_bytes;
  const double state = m + in.adam_states * in.moment_bytes;  // bytes per element
  const double checkpoint = in.activation_elements * d;       // bytes of one micro-batch
  const double inner = std::max(M - 4, 0.0), edge = std::min(M, 4.0);
  const double most_of_update = std::max(alpha, 1 - alpha);

  Glpk program;
  // (1) memory of the GPU, (2) compute, (3) optimizer, (6) PCIe: bounds of one column each.
  const auto on_ssd = [&](Column column, const std::optional<double>& given) {
    program.bounds(column, given.value_or(0), given.value_or(1));
  };
  on_ssd(checkpoints, in.checkpoints_ssd);
  on_ssd(parameters, in.parameters_ssd);
  on_ssd(optimizer, in.optimizer_ssd);
  program.bounds(gradients, 0, std::min(1.0, in.gpu_memory / (M * checkpoint)));
  const Passes least = least_passes(in, M, alpha);
  program.bounds(forward, least.forward, infinite);
  program.bounds(backward, least.backward, infinite);
  // (4) host memory: what is there with nothing on the SSD, and what each fraction adds to it.
  Row memory;
  memory.coefficient[checkpoints] =
      W * checkpoint * (L * (edge - M) + 2 * inner);  // two units of the inner ones are staged
  memory.coefficient[gradients] = -W * M * checkpoint;
  memory.coefficient[parameters] = -P * L * d + P * d + (1 - alpha) * P * 2 * d;
  memory.coefficient[optimizer] = -P * L * state + most_of_update * P * 3 * state;
  memory.bound = in.host_memory - (W * M * checkpoint * (L + 1) + P * L * d + P * L * state +
                                   most_of_update * P * 2 * m);
  memory.coefficient[stash] = gb;
  program.add(memory);
  program.bounds(stash, 0, in.stash_may_grow ? infinite : 0);
  // (5) the delayed gradients lie where checkpoints and stale parameters are.
  Row late;
  late.coefficient[stash] = -gb;
  late.coefficient[parameters] = alpha * P * L * d;
  late.coefficient[checkpoints] = W * M * checkpoint * L;
  late.bound = alpha * P * L * d + W * M * checkpoint * L - alpha * P * L * q;
  program.add(late);
  // (7)
  const double inner_bytes = W * inner * checkpoint;
  const SsdBytes forward_read{0, (1 - alpha) * P * d, alpha * P * state};
  const SsdBytes forward_write{inner_bytes, alpha * P * d, alpha * P * state};
  const SsdBytes backward_read{inner_bytes, P * d, (1 - alpha) * P * state};
  const SsdBytes backward_write{0, (1 - alpha) * P * d, (1 - alpha) * P * state};
  add_ssd(program, in, forward, forward_read, forward_write);
  add_ssd(program, in, backward, backward_read, backward_write);

  program.cost(forward, 1);
  program.cost(backward, 1);
  program.cost(parameters, 0.01);
  program.cost(optimizer, 0.01);
  if (!program.solve()) return std::nullopt;
  const auto fraction = [&](Column c) { return std::clamp(program.value(c), 0.0, 1.0); };
  GreedySnakePlan plan;
  plan.micro_batches = micro_batches;
  plan.alpha = alpha;
  plan.unit_forward_seconds = program.value(forward);
  plan.unit_backward_seconds = program.value(backward);
  plan.step_seconds = step_seconds(in, M, {plan.unit_forward_seconds, plan.unit_backward_seconds});
  plan.checkpoints_ssd = fraction(checkpoints);
  plan.parameters_ssd = fraction(parameters);
  plan.optimizer_ssd = fraction(optimizer);
  plan.gradients_gpu = fraction(gradients);
  return plan;
}

std::optional<GreedySnakePlan> best_alpha(const GreedySnakeInputs& inputs, int micro_batches) {
  std::optional<GreedySnakePlan> best;
  for (int percent = 0; percent <= largest_alpha_percent; ++percent) {
    const double alpha = percent / 100.0;
    if (best) {
      constexpr double rounding = 1 + 1e-6;
      const double least =
          step_seconds(inputs, micro_batches, least_passes(inputs, micro_batches, alpha));
      if (rounding * micro_batches / least < worth_it * throughput(*best)) continue;
    }
    const auto plan = solve_greedysnake(inputs, micro_batches, alpha);
    if (plan && (!best || throughput(*plan) >= worth_it * throughput(*best))) best = plan;
  }
  return best;
}

}  // namespace spillway
