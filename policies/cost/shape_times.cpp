#include "policies/cost/shape_times.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>

#include "policies/framework/framework.hpp"
#include "policies/model/scratch.hpp"

namespace spillway {

namespace {

// Outputs of one tile, and its rate over that of the largest.
struct Tile {
  double rows, columns, rate;
};

// In the order of speed that NVIDIA's guide gives; how much slower is assumed: a tile of 128 x 128
// reads a third more per FLOP than the largest, one of 64 x 64 more than twice as much.
constexpr std::array<Tile, 7> tiles = {{{256, 128, 1},
                                        {128, 256, 1},
                                        {128, 128, 0.95},
                                        {256, 64, 0.9},
                                        {128, 64, 0.85},
                                        {64, 128, 0.85},
                                        {64, 64, 0.7}}};
constexpr std::array<double, 4> parts_of_depth = {1, 2, 4, 8};
constexpr double sum_bytes = 8;  // an fp32 partial sum is written and read

// With gpu.product_gain (shape_times.hpp).
constexpr double share_of_bandwidth = 0.9;
// Of gpu.launch, what each kernel takes on the GPU: 3 us of the 10 us that shipped cards have.
constexpr double kernel_share_of_launch = 0.3e-9;
// The head's norm, forward and backward, and its cross entropy, which reads and writes logits.
constexpr double norm_tensors = 5, logit_tensors = 2;

// Elements of a token that one operator's passes move which only another framework has.
double columns_of_others(const ModelSpec& model, const LayerOperator& one, bool is_backward) {
  const auto width = static_cast<double>(model.hidden);
  if (one.is_attention()) return 8 * width;  // q, k, v and the output: read, and written in order
  const bool is_gpt = model.architecture == Architecture::gpt;
  if (one.name == "attn-proj" || one.makes == saved_none) {
    double columns = 3 * width;                   // the residual is added; in backward, split
    if (is_gpt) columns += 2.5 * width;           // dropout, with a mask of a byte
    if (is_gpt && is_backward) columns += width;  // the bias' gradient
    return columns;
  }
  // The bias' gradient.
  return one.name == "fc" && is_backward ? static_cast<double>(model.ffn) : 0;
}

double parts(double whole, double part) { return std::ceil(whole / part); }

double product_flops(const ProductShape& shape) {
  return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.columns) *
         static_cast<double>(shape.depth);
}

// Time is linear in tokens between rows of the table; below the first, the share is in proportion.
double share_between(const std::map<std::int64_t, double>& rows, std::int64_t tokens) {
  const auto above = rows.lower_bound(tokens);
  if (above == rows.end()) return rows.rbegin()->second;
  const auto many = static_cast<double>(tokens), high = static_cast<double>(above->first);
  if (above == rows.begin()) return above->second * many / high;
  const auto below = std::prev(above);
  const auto low = static_cast<double>(below->first);
  const double low_time = low / below->second, high_time = high / above->second;
  return many / (low_time + (high_time - low_time) * (many - low) / (high - low));
}

// Rows of logits that the head's kernels work on: our own program's fill its scratch with logits in
// 16 bit, of at most eight sequences' share each (head_scratch_bytes); others take all.
std::int64_t head_rows(const Problem& problem, std::int64_t sequences) {
  const std::int64_t all = problem.workload.micro_batch * problem.workload.sequence;
  if (problem.framework != own_framework) return all;
  constexpr std::int64_t most_times = 8, rows_of_fp32 = 2;
  return std::min(all, head_chunk_tokens(problem) * std::min(sequences, most_times) * rows_of_fp32);
}

}  // namespace

std::int64_t sequences_of_kernel(const Problem& problem) {
  if (problem.framework != own_framework) return problem.workload.micro_batch;
  if (problem.workload.sequences_at_once > 1) return problem.workload.sequences_at_once;
  Problem trained;
  trained.model = problem.model;
  trained.workload = problem.workload;
  trained.use_gpu_sequences_at_once();
  return trained.workload.sequences_at_once;
}

double attention_slowdown(std::int64_t head_width, std::int64_t tokens) {
  constexpr double exponential = 25, diagonal = 550, usual_width = 128, usual_tokens = 2048;
  const auto time_of = [](double width, double length) {
    return (1 + exponential / width) * (1 + diagonal / length);
  };
  return time_of(static_cast<double>(head_width), static_cast<double>(tokens)) /
         time_of(usual_width, usual_tokens);
}

ShapeTimes::ShapeTimes(const Problem& problem)
    : problem_(problem),
      gpu_(problem.machine.gpu),
      moves_(gpu_.product_gain > 0 && gpu_.memory_bandwidth > 0),
      flops_(product_rate()),
      sequences_(known() ? sequences_of_kernel(problem) : 1),
      tokens_(sequences_ * problem.workload.sequence) {
  for (const Machine::Gpu::ShapeRate& row : gpu_.by_shape)
    shares_[row.hidden][row.tokens] = row.share;
  if (!moves_ || problem.framework == own_framework) return;
  const auto own = std::make_shared<Problem>(problem);
  own->framework = own_framework;
  own_problem_ = own;
  own_ = std::make_shared<const ShapeTimes>(*own);
}

// Of large ones, at the clock that is kept.
double ShapeTimes::product_rate() const {
  const double rate = gpu_.flops * gpu_.clock * std::max(1.0, gpu_.product_gain);
  // Where gpu.flops is of a product, nobody's passes are in it.
  if (!moves_ || gpu_.product_gain <= 1 || problem_.framework == own_framework) return rate;
  double columns = 0, flops = 0;  // of a token, forward and backward
  for (const LayerOperator& one : layer_operators(problem_.model, 1, 1)) {
    columns += columns_of_others(problem_.model, one, false) +
               columns_of_others(problem_.model, one, true);
    flops += 6.0 * static_cast<double>(one.inputs) * static_cast<double>(one.outputs);
  }
  // Passes weigh the less the wider a layer is. Those of the block whose rate was measured are in
  // gpu.flops; a wider one's own, and no more, or it would be faster than our own program's.
  constexpr double measured_width = 5120, most_faster = 1.25;
  const double narrower =
      std::min(1.0, static_cast<double>(problem_.model.hidden) / measured_width);
  const double bytes = columns * narrower * static_cast<double>(problem_.activation_bytes());
  const double beside = bytes / (gpu_.memory_bandwidth * share_of_bandwidth);
  return flops / std::max(flops / rate - beside, flops / (most_faster * rate));
}

double ShapeTimes::passes_of_others(const LayerOperator& one, bool is_backward) const {
  if (problem_.framework == own_framework) return 0;
  return static_cast<double>(tokens_) * columns_of_others(problem_.model, one, is_backward);
}

bool ShapeTimes::known() const {
  return gpu_.multiprocessors > 0 || gpu_.attention_flops > 0 || gpu_.product_gain > 0 ||
         gpu_.clock != 1 || !gpu_.by_shape.empty();
}

double ShapeTimes::seconds(const Task& task) const {
  const double kernels =
      static_cast<double>(problem_.workload.micro_batch) / static_cast<double>(sequences_);
  const double seconds =
      task.kind == TaskKind::head ? head_seconds() : kernels * layer_seconds(task);
  return own_ ? std::max(seconds, own_->seconds(task)) : seconds;
}

double ShapeTimes::layer_seconds(const Task& task) const {
  const bool is_backward = spillway::is_backward(task.kind);
  double seconds = 0;
  for (const LayerOperator& one :
       layer_operators(problem_.model, sequences_, problem_.workload.sequence)) {
    if (task.kind == TaskKind::weight_gradient) {
      seconds += weight_gradient_seconds(one);
      continue;
    }
    const int missing = one.makes & ~(is_backward ? task.available : saved_none);
    if (one.makes == saved_none ? !is_backward || task.recomputes_output : missing != 0)
      seconds += forward_seconds(
          one, is_backward && missing == saved_statistics ? one.statistics_flops : one.flops);
    if (is_backward) seconds += backward_seconds(one, task.kind == TaskKind::backward);
  }
  return seconds;
}

// What adapters compute beside the matrix goes at the full rate: their bytes are counted elsewhere.
double ShapeTimes::forward_seconds(const LayerOperator& one, double flops) const {
  const double moving = moving_seconds(one.moved + passes_of_others(one, false));
  if (one.is_attention()) return attention_seconds(flops) + moving;
  if (one.outputs == 0) return moving;
  const ProductShape shape{tokens_, one.outputs, one.inputs};
  return product_seconds(shape, tokens_) + (flops - product_flops(shape)) / flops_ + moving;
}

// `weights`: with the gradient of the matrix, where that is trained.
double ShapeTimes::backward_seconds(const LayerOperator& one, bool weights) const {
  const double moving = moving_seconds(one.backward_moved + passes_of_others(one, true));
  if (one.is_attention()) return attention_seconds(one.backward_flops) + moving;
  if (one.outputs == 0) return moving;
  const ProductShape of_input{tokens_, one.inputs, one.outputs};
  double seconds = product_seconds(of_input, tokens_), flops = product_flops(of_input);
  if (!problem_.model.has_adapters()) {
    if (weights) seconds += weight_gradient_seconds(one);
    flops += product_flops(of_matrix(one));
  }
  return seconds + (one.backward_flops - flops) / flops_ + moving;
}

// All that kernels beside the product move is counted with the gradient of the input.
double ShapeTimes::weight_gradient_seconds(const LayerOperator& one) const {
  return one.outputs > 0 ? product_seconds(of_matrix(one), tokens_) : 0;
}

// Of a kernel that does little but read and write so many elements; none has none.
double ShapeTimes::moving_seconds(double elements) const {
  if (!moves_ || elements <= 0) return 0;
  const double bytes = elements * static_cast<double>(problem_.activation_bytes());
  return bytes / (gpu_.memory_bandwidth * share_of_bandwidth) +
         kernel_share_of_launch * static_cast<double>(gpu_.launch_ns);
}

double ShapeTimes::head_seconds() const {
  const ModelSpec& model = problem_.model;
  const std::int64_t rows = head_rows(problem_, sequences_);
  const double kernels =
      static_cast<double>(problem_.workload.micro_batch * problem_.workload.sequence) /
      static_cast<double>(rows);
  double seconds = product_seconds({rows, model.vocabulary, model.hidden}, rows) +
                   product_seconds({rows, model.hidden, model.vocabulary}, rows);
  if (trained_elements(model, head_unit(model)) > 0)
    seconds += product_seconds({model.vocabulary, model.hidden, rows}, rows);
  const double moved = norm_tensors * static_cast<double>(model.hidden) +
                       logit_tensors * static_cast<double>(model.vocabulary);
  seconds += moving_seconds(static_cast<double>(rows) * moved);
  return kernels * seconds;
}

double ShapeTimes::attention_seconds(double flops) const {
  const double kernel = moves_ ? kernel_share_of_launch * static_cast<double>(gpu_.launch_ns) : 0;
  if (gpu_.attention_flops <= 0) return flops / (gpu_.flops * gpu_.clock) + kernel;
  const double slower =
      attention_slowdown(problem_.model.width_of_head(), problem_.workload.sequence);
  return flops * slower / (gpu_.attention_flops * gpu_.clock) + kernel;
}

double ShapeTimes::product_seconds(const ProductShape& shape, std::int64_t tokens) const {
  const double compute =
      !shares_.empty()
          ? product_flops(shape) / (gpu_.flops * gpu_.clock * share_at(tokens))
          : (gpu_.multiprocessors > 0 ? quantised_seconds(shape) : product_flops(shape) / flops_);
  const double kernel = moves_ ? kernel_share_of_launch * static_cast<double>(gpu_.launch_ns) : 0;
  if (gpu_.memory_bandwidth <= 0) return compute;
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns),
             depth = static_cast<double>(shape.depth);
  const double bytes = (rows * depth + depth * columns + rows * columns) *
                       static_cast<double>(problem_.activation_bytes());
  return std::max(compute, bytes / gpu_.memory_bandwidth) + kernel;
}

// Of the model's hidden size: between those of the table by its logarithm, at its ends as they are.
double ShapeTimes::share_at(std::int64_t tokens) const {
  const std::int64_t hidden = problem_.model.hidden;
  const auto above = shares_.lower_bound(hidden);
  if (above == shares_.end()) return share_between(shares_.rbegin()->second, tokens);
  const double high = share_between(above->second, tokens);
  if (above == shares_.begin() || above->first == hidden) return high;
  const auto below = std::prev(above);
  const double low = share_between(below->second, tokens);
  const auto log_of = [](std::int64_t size) { return std::log(static_cast<double>(size)); };
  const double way =
      (log_of(hidden) - log_of(below->first)) / (log_of(above->first) - log_of(below->first));
  return low + (high - low) * way;
}

double ShapeTimes::quantised_seconds(const ProductShape& shape) const {
  const auto at_once = static_cast<double>(gpu_.multiprocessors);
  const auto rows = static_cast<double>(shape.rows), columns = static_cast<double>(shape.columns),
             depth = static_cast<double>(shape.depth);
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : tiles) {
    const double count = parts(rows, tile.rows) * parts(columns, tile.columns);
    const double flops = 2 * tile.rows * tile.columns * depth;
    for (const double cuts : parts_of_depth) {
      if (cuts > 1 && gpu_.memory_bandwidth <= 0) break;
      const double wave = flops / cuts / (flops_ / at_once * tile.rate);
      double seconds = parts(count * cuts, at_once) * wave;
      if (cuts > 1) seconds += cuts * rows * columns * sum_bytes / gpu_.memory_bandwidth;
      best = std::min(best, seconds);
    }
  }
  return best;
}

}  // namespace spillway
