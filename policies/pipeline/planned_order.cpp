#include "policies/pipeline/planned_order.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

struct Candidate {
  std::int64_t start = never;
  Pass pass;
  bool exists() const { return start != never; }
};

// A GPU of one pipeline: its stages, and what it has run.
struct PlannedGpu {
  int pipeline = 0, place = 0;
  std::int64_t free_at = 0;
  int held = 0;
  std::vector<int> stages;         // by chunk
  std::vector<int> forward_next;   // by chunk: the next micro-batch
  std::vector<int> backward_next;  // by chunk
  std::vector<int> held_of;        // by chunk
  std::deque<Pass> weights;        // gradients of weights that are due
  std::optional<Pass> recomputed;  // by a pass of its own, and not used yet
  std::optional<Pass> last;        // the pass before
  bool is_dirty = true;
  Candidate next;
  std::vector<Pass> order;
};

class PassPlanner {
 public:
  PassPlanner(const PipelineShape& shape, const PipelineTimes& times, const PlanningRule& rule)
      : shape_(shape), times_(times), rule_(rule) {
    const auto passes = static_cast<std::size_t>(shape.stages() * shape.micro_batches);
    for (int p = 0; p < times.pipelines; ++p) {
      inputs_.emplace_back(passes, never);
      gradients_.emplace_back(passes, never);
      forward_ends_.emplace_back(passes, never);
      for (int m = 0; m < shape.micro_batches; ++m) inputs_.back()[index(0, m)] = 0;
      for (int place = 0; place < shape.gpus; ++place) add_gpu(p, place);
    }
  }

  PlannedOrders plan() {
    for (PlannedGpu* gpu = first_to_start(); gpu != nullptr; gpu = first_to_start()) run(*gpu);
    PlannedOrders result{std::vector<PassOrder>(static_cast<std::size_t>(times_.pipelines)), end_};
    for (PlannedGpu& gpu : gpus_) {
      if (!is_done(gpu))
        throw InputError(
            "order of a pipeline: memory for so few micro-batches cannot hold one of each chunk",
            "let each GPU hold more micro-batches at once");
      result.orders[static_cast<std::size_t>(gpu.pipeline)].push_back(std::move(gpu.order));
    }
    return result;
  }

 private:
  std::size_t index(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage * shape_.micro_batches + micro_batch);
  }

  void add_gpu(int pipeline, int place) {
    PlannedGpu gpu;
    gpu.pipeline = pipeline;
    gpu.place = place;
    for (int stage = 0; stage < shape_.stages(); ++stage) {
      if (shape_.gpu_of(stage) == place) gpu.stages.push_back(stage);
    }
    gpu.forward_next.assign(gpu.stages.size(), 0);
    gpu.backward_next.assign(gpu.stages.size(), 0);
    gpu.held_of.assign(gpu.stages.size(), 0);
    gpus_.push_back(std::move(gpu));
  }

  bool is_done(const PlannedGpu& gpu) const {
    return gpu.weights.empty() &&
           std::all_of(gpu.backward_next.begin(), gpu.backward_next.end(),
                       [&](int next) { return next == shape_.micro_batches; });
  }

  PlannedGpu* first_to_start() {
    PlannedGpu* first = nullptr;
    for (PlannedGpu& gpu : gpus_) {
      if (std::exchange(gpu.is_dirty, false)) gpu.next = choose(gpu);
      if (gpu.next.exists() && (first == nullptr || gpu.next.start < first->next.start))
        first = &gpu;
    }
    return first;
  }

  // The pass of a kind that can begin first; chunks that come later in the model first among those
  // that can begin at once.
  Candidate backward(const PlannedGpu& gpu) const {
    Candidate best;
    for (std::size_t c = gpu.stages.size(); c-- > 0;) {
      const int m = gpu.backward_next[c];
      if (m == shape_.micro_batches) continue;
      const std::size_t at = index(gpu.stages[c], m);
      const auto p = static_cast<std::size_t>(gpu.pipeline);
      const std::int64_t forward = forward_ends_[p][at];
      const bool is_last = gpu.stages[c] + 1 == shape_.stages();
      const std::int64_t gradient = is_last ? forward : gradients_[p][at];
      if (forward == never || gradient == never) continue;
      const std::int64_t start = std::max({gpu.free_at, forward, gradient});
      if (start < best.start) best = {start, backward_pass(gpu, gpu.stages[c], m)};
    }
    return best;
  }
  Pass backward_pass(const PlannedGpu& gpu, int stage, int micro_batch) const {
    Pass pass{rule_.splits_backward ? PassKind::input_gradient : PassKind::backward, stage,
              micro_batch};
    const auto is_of = [&](const std::optional<Pass>& one) {
      return one && one->stage == stage && one->micro_batch == micro_batch;
    };
    pass.finds_all =
        rule_.recomputes_apart &&
        (is_of(gpu.recomputed) || (is_of(gpu.last) && gpu.last->kind == PassKind::forward));
    return pass;
  }

  Candidate forward(const PlannedGpu& gpu) const {
    Candidate best;
    const int chunks = static_cast<int>(gpu.stages.size());
    for (std::size_t c = gpu.stages.size(); c-- > 0;) {
      const int m = gpu.forward_next[c];
      if (m == shape_.micro_batches) continue;
      // A place for each later chunk stays free, so that what has begun can end.
      int kept_free = 0;
      for (std::size_t later = c + 1; later < gpu.stages.size(); ++later)
        kept_free += gpu.held_of[later] == 0 ? 1 : 0;
      if (gpu.held + kept_free >= rule_.most_held * chunks) continue;
      const std::int64_t input =
          inputs_[static_cast<std::size_t>(gpu.pipeline)][index(gpu.stages[c], m)];
      if (input == never) continue;
      const std::int64_t start = std::max(gpu.free_at, input);
      if (start < best.start) best = {start, {PassKind::forward, gpu.stages[c], m}};
    }
    return best;
  }

  // Of the micro-batch whose backward pass comes next.
  Candidate recompute(const PlannedGpu& gpu) const {
    if (!rule_.recomputes_apart || gpu.recomputed) return {};
    for (std::size_t c = gpu.stages.size(); c-- > 0;) {
      const int m = gpu.backward_next[c], stage = gpu.stages[c];
      if (m == shape_.micro_batches || m >= gpu.forward_next[c]) continue;
      if (gpu.last && gpu.last->kind == PassKind::forward && gpu.last->stage == stage &&
          gpu.last->micro_batch == m)
        continue;
      return {gpu.free_at, {PassKind::recompute, stage, m}};
    }
    return {};
  }

  std::int64_t share_of(const Pass& pass, double share) const {
    const std::int64_t ns = times_.stages[static_cast<std::size_t>(pass.stage)].of(pass);
    return static_cast<std::int64_t>(share * static_cast<double>(ns));
  }

  Candidate choose(const PlannedGpu& gpu) const {
    Candidate best = backward(gpu);
    const auto take_before = [&](const Candidate& other, double waits) {
      if (!other.exists()) return;
      if (!best.exists() || other.start + share_of(other.pass, waits) < best.start) best = other;
    };
    take_before(forward(gpu), rule_.forward_waits);
    if (!gpu.weights.empty()) take_before({gpu.free_at, gpu.weights.front()}, rule_.weights_wait);
    // Only while the GPU would wait, and nothing is sure to come before it is over.
    if (best.start > gpu.free_at) take_before(recompute(gpu), 1);
    return best;
  }

  void run(PlannedGpu& gpu) {
    const auto [start, pass] = gpu.next;
    const std::int64_t end = start + times_.stages[static_cast<std::size_t>(pass.stage)].of(pass);
    gpu.order.push_back(pass);
    end_ = std::max(end_, end);
    gpu.free_at = end;
    gpu.is_dirty = true;
    const auto p = static_cast<std::size_t>(gpu.pipeline);
    const auto chunk = static_cast<std::size_t>(
        std::find(gpu.stages.begin(), gpu.stages.end(), pass.stage) - gpu.stages.begin());
    switch (pass.kind) {
      case PassKind::forward:
        forward_ends_[p][index(pass.stage, pass.micro_batch)] = end;
        ++gpu.forward_next[chunk];
        ++gpu.held;
        ++gpu.held_of[chunk];
        break;
      case PassKind::recompute:
        gpu.recomputed = pass;
        break;
      case PassKind::input_gradient:
        gpu.weights.push_back({PassKind::weight_gradient, pass.stage, pass.micro_batch});
        [[fallthrough]];
      case PassKind::backward:
        ++gpu.backward_next[chunk];
        gpu.recomputed.reset();
        break;
      case PassKind::weight_gradient:
        gpu.weights.pop_front();
        break;
    }
    if (pass.kind == PassKind::backward || pass.kind == PassKind::weight_gradient) {
      --gpu.held;
      --gpu.held_of[chunk];
    }
    gpu.last = pass;
    send(gpu, pass, end);
  }

  void send(PlannedGpu& gpu, const Pass& pass, std::int64_t end) {
    const StageHop* hop = times_.hop_after(pass);
    if (hop == nullptr) return;
    const int to = pass.kind == PassKind::forward ? pass.stage + 1 : pass.stage - 1;
    std::int64_t arrives = end;
    if (hop->link >= 0) {
      const bool in_turns = times_.links[static_cast<std::size_t>(hop->link)].in_turns;
      std::int64_t& free_at = links_[{in_turns ? 0 : gpu.pipeline, gpu.place, shape_.gpu_of(to)}];
      free_at = std::max(free_at, end) + hop->transfer_ns();
      arrives = free_at + hop->latency_ns;
      if (times_.sends_wait) gpu.free_at = std::max(gpu.free_at, arrives);
    }
    const auto p = static_cast<std::size_t>(gpu.pipeline);
    std::vector<std::int64_t>& there = pass.kind == PassKind::forward ? inputs_[p] : gradients_[p];
    there[index(to, pass.micro_batch)] = arrives;
    gpus_[static_cast<std::size_t>(gpu.pipeline * shape_.gpus + shape_.gpu_of(to))].is_dirty = true;
  }

  const PipelineShape& shape_;
  const PipelineTimes& times_;
  const PlanningRule& rule_;
  std::vector<PlannedGpu> gpus_;  // of the pipelines one after the other
  // By pipeline, stage and micro-batch: when it is there.
  std::vector<std::vector<std::int64_t>> inputs_, gradients_, forward_ends_;
  std::int64_t end_ = 0;
  // By who takes turns, and the GPUs from and to: from when the link is free.
  std::map<std::tuple<int, int, int>, std::int64_t> links_;
};

}  // namespace

PlannedOrders planned_orders(const PipelineShape& shape, const PipelineTimes& times,
                             const PlanningRule& rule) {
  return PassPlanner(shape, times, rule).plan();
}

}  // namespace spillway
