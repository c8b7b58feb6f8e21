#include "policies/common/horizontal.hpp"

#include <optional>

#include "policies/common/look_ahead.hpp"

namespace spillway {

namespace {

// The order in which blocks' parameters are used: up and down, once per micro-batch. A block that
// is used twice in a row (at the turn, and between micro-batches) is fetched once.
struct UseOrder {
  UseOrder(int layers, int micro_batches) {
    for (int use = 0; use < 2 * layers * micro_batches; ++use) {
      const int at = use % (2 * layers);
      const int unit = at < layers ? at : 2 * layers - 1 - at;
      if (units.empty() || units.back() != unit) units.push_back(unit);
      item_of_use.push_back(units.size() - 1);
    }
  }
  std::vector<int> units;                // each fetched once
  std::vector<std::size_t> item_of_use;  // index into units
};

class HorizontalPass {
 public:
  HorizontalPass(Program& program, ModelState& state, int step, const HorizontalOptions& options,
                 const GradientReady& ready)
      : program_(program),
        state_(state),
        step_(step),
        options_(options),
        ready_(ready),
        layers_(static_cast<int>(program.problem().model.layers)),
        micro_batches_(static_cast<int>(program.problem().workload.micro_batches())),
        order_(layers_, micro_batches_),
        staged_(order_.units.size(), options.host_ahead,
                [this](std::size_t k) { return state_.stage_parameters(order_.units[k]); }),
        uploaded_(order_.units.size(), options.gpu_ahead,
                  [this](std::size_t k) {
                    return state_.upload_parameters(order_.units[k], staged_.at(k));
                  }),
        activations_(program, options),
        gradients_(static_cast<std::size_t>(layers_) + 1) {}

  void emit() {
    for (int m = 0; m < micro_batches_; ++m) {
      program_.at(step_, Phase::forward);
      forward(m);
      program_.at(step_, Phase::backward);
      backward(m);
    }
  }

 private:
  Slice parameters(int m, int use) {
    const std::size_t item = order_.item_of_use[static_cast<std::size_t>(2 * layers_ * m + use)];
    return uploaded_.at(item, use < layers_
                                  ? options_.gpu_ahead
                                  : options_.backward_gpu_ahead.value_or(options_.gpu_ahead));
  }

  void forward(int m) {
    activations_.begin_forward(m);
    const std::uint64_t bytes = checkpoint_bytes(program_.problem());
    hidden_ = program_.buffer(Tier::gpu, bytes, BufferKind::checkpoint, 0, m);
    program_.embed_forward(m, state_.resident_parameters(state_.embedding()), hidden_);
    for (int l = 0; l < layers_; ++l) {
      const Slice weights = parameters(m, l);
      const Slice output = program_.buffer(Tier::gpu, bytes, BufferKind::checkpoint, l + 1, m);
      const Slice saved = activations_.saved_buffer(l);
      activations_.keep_input(l, hidden_);
      program_.forward(l, m, weights, hidden_, output, saved, activations_.saves(l));
      activations_.after_forward(l);
      hidden_ = output;
    }
  }

  void backward(int m) {
    const bool first = m == 0;
    const bool last = m == micro_batches_ - 1;
    const int embedding = state_.embedding();
    if (first)
      head_gradient_ = state_.gradient_buffer(Tier::gpu, embedding, BufferKind::head_gradient);
    program_.head(m, state_.resident_parameters(embedding), hidden_, head_gradient_, first);

    const auto blocks = static_cast<std::size_t>(layers_);
    const auto layer_of = [&](std::size_t k) { return layers_ - 1 - static_cast<int>(k); };
    activations_.begin_backward();
    LookAhead<Slice> accumulators(blocks, 1,
                                  [&](std::size_t k) { return accumulator(layer_of(k), first); });
    std::optional<int> leaving;  // its gradient leaves under the next block's backward
    for (std::size_t k = 0; k < blocks; ++k) {
      const int l = layer_of(k);
      const Slice weights = parameters(m, layers_ + static_cast<int>(k));
      const auto [input, saved] = activations_.fetch(l);
      const Slice gradient = accumulators.at(k);
      program_.backward(l, m, weights, input, saved, activations_.saves(l), hidden_, gradient,
                        first, !saved.valid() && options_.recomputes_output);
      if (last) program_.gradient_complete(l, gradient);
      on_gpu_.emplace_back(l, gradient);
      if (leaving) leave(*leaving, last);
      leaving = l;
    }
    if (first) embed_gradient_ = state_.gradient_buffer(Tier::gpu, embedding);
    program_.embed_backward(m, hidden_, embed_gradient_, first);
    if (last) program_.gradient_complete(embedding, embed_gradient_, head_gradient_);
    if (leaving) leave(*leaving, last);
    if (last) finish_embedding();
  }

  Slice accumulator(int l, bool first) {
    Slice& kept = gradients_[static_cast<std::size_t>(l)];
    if (options_.gradients == Tier::gpu) {
      if (first) kept = state_.gradient_buffer(Tier::gpu, l);
      return kept;
    }
    const Slice gpu = state_.gradient_buffer(Tier::gpu, l);
    if (first) {
      kept = options_.host_accumulator(l);
    } else {
      program_.copy(kept, gpu, l);
    }
    return gpu;
  }

  void leave(int l, bool last) {
    Slice gradient = gradients_[static_cast<std::size_t>(l)];
    if (options_.gradients == Tier::host) program_.copy(on_gpu_.front().second, gradient, l);
    on_gpu_.erase(on_gpu_.begin());
    if (last) complete({l, gradient, {}});
  }

  void finish_embedding() {
    const int embedding = state_.embedding();
    Slice gradient = embed_gradient_, head = head_gradient_;
    if (options_.gradients == Tier::host) {
      gradient = options_.host_accumulator(embedding);
      head = state_.gradient_buffer(Tier::host, embedding, BufferKind::head_gradient);
      program_.copy(head_gradient_, head, embedding);
      program_.copy(embed_gradient_, gradient, embedding);
    }
    complete({embedding, gradient, head});
  }

  struct Complete {
    int unit = 0;
    Slice gradient, head_gradient;
  };
  void complete(const Complete& one) {
    if (options_.complete) options_.complete(one.unit, one.gradient, one.head_gradient);
    waiting_.push_back(one);
    if (program_.updates_wait()) {
      if (one.unit != state_.embedding()) return;
      program_.at(step_, Phase::optimizer);
    }
    for (const Complete& each : waiting_) ready_(each.unit, each.gradient, each.head_gradient);
    waiting_.clear();
  }

  Program& program_;
  ModelState& state_;
  int step_;
  const HorizontalOptions& options_;
  const GradientReady& ready_;
  int layers_;
  int micro_batches_;
  UseOrder order_;
  LookAhead<ModelState::Runs> staged_;
  LookAhead<Slice> uploaded_;
  ActivationStore activations_;
  std::vector<Slice> gradients_;               // by block: accumulators in options_.gradients' tier
  std::vector<std::pair<int, Slice>> on_gpu_;  // gradients in GPU memory, oldest first
  Slice hidden_;                               // activation, then its gradient
  Slice head_gradient_, embed_gradient_;
  std::vector<Complete> waiting_;  // complete, and not yet to be applied
};

}  // namespace

void emit_horizontal_pass(Program& program, ModelState& state, int step,
                          const HorizontalOptions& options, const GradientReady& ready) {
  HorizontalPass(program, state, step, options, ready).emit();
}

}  // namespace spillway
