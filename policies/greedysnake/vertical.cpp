// The vertical pass as a data flow.
#include "policies/greedysnake/vertical.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/errors.hpp"
#include "policies/common/look_ahead.hpp"

namespace spillway {

namespace {

constexpr auto late = BlockStates::delayed;
constexpr auto now = BlockStates::rest;

// One layer on one micro-batch, in the order in which the GPU runs them.
struct Visit {
  int layer = 0;
  int micro_batch = 0;
  int position = 0;  // in the layer's order
};

class VerticalStep {
 public:
  VerticalStep(Program& program, ModelState& state, BlockStates& blocks,
               const VerticalOptions& options, int step)
      : program_(program),
        state_(state),
        blocks_(blocks),
        options_(options),
        order_(program.problem(), options),
        step_(step),
        layers_(order_.layers()),
        micro_batches_(order_.micro_batches()),
        staged_(uses(), 2, [this](std::size_t k) { return stage(k); }),
        delayed_(static_cast<std::size_t>(layers_), 1,
                 [this](std::size_t u) { return read_optimizer(static_cast<int>(u), late); }),
        updates_(static_cast<std::size_t>(layers_), 1,
                 [this](std::size_t k) { return read_optimizer(unit_of_update(k), now); }) {}

  void emit() {
    program_.at(step_, Phase::forward);
    plan_visits();
    forward();
    last_layer();
    program_.at(step_, Phase::backward);
    backward();
    finish_embedding();
  }

 private:
  // -- order
  // ---------------------------------------------------------------------------------------
  void plan_visits() {
    for (int l = 0; l < layers_; ++l) {
      for (int p = 0; p < micro_batches_; ++p) up_.push_back({l, order_.micro_batch(l, p), p});
    }
    for (int l = layers_ - 2; l >= 0; --l) {
      for (int p = 0; p < micro_batches_; ++p) down_.push_back({l, order_.micro_batch(l, p), p});
    }
  }
  // Parameters are used going up, and going down for all layers but the last.
  std::size_t uses() const { return 2 * static_cast<std::size_t>(layers_) - 1; }
  int unit_of_use(std::size_t k) const {
    const int at = static_cast<int>(k);
    return at < layers_ ? at : 2 * layers_ - 2 - at;
  }

  // -- parameters
  // ----------------------------------------------------------------------------------
  struct Emitted {};  // a look-ahead's item that is nothing but its tasks

  Emitted read_optimizer(int unit, BlockStates::Part part) {
    const bool updates = part == late              ? blocks_.stashed(unit)
                         : program_.updates_wait() ? blocks_.rest_waits(unit)
                                                   : blocks_.has(now);
    if (updates) blocks_.read_optimizer(unit, part);
    return {};
  }
  // The parameters of use k in host memory. Going up, what the step before delayed is updated here,
  // and all of it where updates wait for the norm of the whole gradient.
  Emitted stage(std::size_t k) {
    const int unit = unit_of_use(k);
    if (static_cast<int>(k) < layers_ && blocks_.stashed(unit)) {
      delayed_.at(k);
      blocks_.update(unit, late);
      blocks_.write_parameters(unit, late);
      blocks_.write_optimizer(unit, late);
    } else {
      blocks_.read_parameters(unit, late);
    }
    if (static_cast<int>(k) < layers_ && blocks_.rest_waits(unit)) {
      update_now(k);
    } else {
      blocks_.read_parameters(unit, now);
    }
    return {};
  }

  // The parameters of use k cross PCIe in chunks, one under each micro-batch of the use before, so
  // that checkpoints and activation gradients do not queue behind a whole layer.
  struct Upload {
    std::size_t use = 0;
    Slice gpu;
    std::uint64_t done = 0;  // elements
  };
  std::uint64_t chunk_end(int position) const {
    return fraction_of(blocks_.elements(), static_cast<double>(position + 1) / micro_batches_);
  }
  Upload begin_upload(std::size_t use) {
    staged_.at(use);
    const std::uint64_t bytes = blocks_.elements() * program_.problem().parameter_bytes();
    return {
        use,
        program_.buffer(Tier::gpu, bytes, BufferKind::parameters, unit_of_use(use)).part(0, bytes),
        0};
  }
  void advance(Upload& upload, std::uint64_t end) {
    if (end <= upload.done) return;
    const int unit = unit_of_use(upload.use);
    blocks_.upload(unit, upload.done, end, upload.gpu);
    upload.done = end;
    // Those of the last layer but one are used again as soon as the last layer is through.
    const bool again = static_cast<int>(upload.use) == layers_ - 2;
    if (end == blocks_.elements() && !again) blocks_.forget_parameters(unit);
  }
  // The parameters of use `use`, complete.
  Slice parameters(std::size_t use) {
    if (use == current_use_) return parameters_;
    if (!next_upload_) next_upload_ = begin_upload(use);
    SPILLWAY_ASSERT(next_upload_->use == use);
    advance(*next_upload_, blocks_.elements());
    parameters_ = next_upload_->gpu;
    current_use_ = use;
    next_upload_.reset();
    if (use + 1 < uses()) next_upload_ = begin_upload(use + 1);
    return parameters_;
  }
  // Emits the chunk of the next use that goes under the visit at `position`.
  void upload_chunk(int position) {
    if (!next_upload_) return;
    advance(*next_upload_, chunk_end(position));
  }

  // -- checkpoints: the input of (layer, micro-batch)
  // ------------------------------------------------
  struct Checkpoint {
    Slice host, ssd;
  };
  using Key = std::pair<int, int>;  // layer, micro-batch

  // The place in its order at which a checkpoint is made: as an output of the layer below, or by
  // the embedding.
  int made_at(Key key) const { return order_.position(std::max(0, key.first - 1), key.second); }
  // The last layer's inputs are used at once.
  bool goes_to_ssd(Key key) const {
    return key.first < layers_ - 1 && order_.rests_on_ssd(made_at(key));
  }
  Slice host_checkpoint(Key key, std::uint64_t bytes) {
    if (key.first > 0 && !order_.rests_on_ssd(made_at(key)))
      return blocks_.checkpoint(key.first - 1, order_.slot(made_at(key)));
    return program_.buffer(Tier::host, bytes, BufferKind::checkpoint, key.first, key.second);
  }

  // Leaving the GPU is emitted one visit late, so that the next output has memory of its own.
  void put_away_later(Key key, Slice gpu) {
    flush_leaving();
    leaving_ = Leaving{key, gpu};
  }
  void flush_leaving() {
    if (!leaving_) return;
    const auto [key, gpu] = *leaving_;
    leaving_.reset();
    Checkpoint& checkpoint = checkpoints_[key];
    checkpoint.host = host_checkpoint(key, gpu.bytes);
    program_.copy(gpu, checkpoint.host, key.first, key.second);
    if (!goes_to_ssd(key)) return;
    checkpoint.ssd =
        program_.buffer(Tier::ssd, gpu.bytes, BufferKind::checkpoint, key.first, key.second);
    program_.copy(checkpoint.host, checkpoint.ssd, key.first, key.second);
  }
  Slice fetch(const Slice& host, BufferKind kind, int layer, int micro_batch) {
    const Slice gpu = program_.buffer(Tier::gpu, host.bytes, kind, layer, micro_batch);
    program_.copy(host, gpu, layer, micro_batch);
    return gpu;
  }
  Slice checkpoint_buffer(int layer, int micro_batch) {
    return program_.buffer(Tier::gpu, checkpoint_bytes(program_.problem()), BufferKind::checkpoint,
                           layer, micro_batch);
  }

  // -- forward
  // --------------------------------------------------------------------------------------- Whether
  // visit k of `visits` finds its input where the visit before left it.
  static bool continues(const std::vector<Visit>& visits, std::size_t k) {
    return k > 0 && visits[k].layer != visits[k - 1].layer &&
           visits[k].micro_batch == visits[k - 1].micro_batch;
  }
  Slice fetch_input(std::size_t k) {
    const Visit& v = up_[k];
    if (v.layer == 0 || continues(up_, k)) return {};
    if (leaving_ && leaving_->key == Key{v.layer, v.micro_batch}) flush_leaving();
    return fetch(checkpoints_.at({v.layer, v.micro_batch}).host, BufferKind::checkpoint, v.layer,
                 v.micro_batch);
  }
  // The input of visit k on the GPU: embedded, left by the visit before, or fetched one visit
  // ahead.
  Slice input_of(std::size_t k) {
    const Visit& v = up_[k];
    const Slice fetched = inputs_->at(k);
    if (fetched.valid()) return fetched;
    if (v.layer > 0) return hidden_;
    const Slice input = checkpoint_buffer(0, v.micro_batch);
    program_.embed_forward(v.micro_batch, state_.resident_parameters(state_.embedding()), input);
    if (layers_ > 1) put_away_later({0, v.micro_batch}, input);
    return input;
  }

  void forward() {
    inputs_.emplace(up_.size(), 1, [this](std::size_t k) { return fetch_input(k); });
    const std::size_t until =
        up_.size() - static_cast<std::size_t>(micro_batches_);  // the last layer is fused
    for (std::size_t k = 0; k < until; ++k) {
      const Visit& v = up_[k];
      const Slice weights = parameters(static_cast<std::size_t>(v.layer));
      const Slice input = input_of(k);
      upload_chunk(v.position);
      hidden_ = checkpoint_buffer(v.layer + 1, v.micro_batch);
      program_.forward(v.layer, v.micro_batch, weights, input, hidden_);
      // The last layer's inputs are used once: one that stays on the GPU for it goes nowhere.
      const bool used_at_once = v.layer + 1 == layers_ - 1 && continues(up_, k + 1);
      if (!used_at_once) put_away_later({v.layer + 1, v.micro_batch}, hidden_);
    }
  }
  // Forward, loss and backward of the last layer, micro-batch by micro-batch.
  void last_layer() {
    const int l = layers_ - 1;
    const int embedding = state_.embedding();
    const Slice embedding_parameters = state_.resident_parameters(embedding);
    const std::uint64_t bytes = saved_bytes(program_.problem(), saved_all);
    const Slice head_gradient =
        state_.gradient_buffer(Tier::gpu, embedding, BufferKind::head_gradient);
    gradient_ = state_.gradient_buffer(Tier::gpu, l);
    const std::size_t from = up_.size() - static_cast<std::size_t>(micro_batches_);
    for (std::size_t k = from; k < up_.size(); ++k) {
      const int m = up_[k].micro_batch;
      const bool first = k == from;
      program_.at(step_, Phase::forward);
      const Slice weights = parameters(static_cast<std::size_t>(l));
      const Slice input = input_of(k);
      upload_chunk(up_[k].position);
      hidden_ = checkpoint_buffer(l + 1, m);
      const Slice saved = program_.buffer(Tier::gpu, bytes, BufferKind::saved, l, m);
      program_.forward(l, m, weights, input, hidden_, saved);
      flush_leaving();
      program_.at(step_, Phase::backward);
      program_.head(m, embedding_parameters, hidden_, head_gradient, first);
      program_.backward(l, m, weights, input, saved, saved_all, hidden_, gradient_, first, false);
      if (k + 1 == up_.size()) program_.gradient_complete(l, gradient_);
      after_backward(up_[k], k + 1 == up_.size(), down_.empty() ? nullptr : &down_.front());
    }
    head_gradient_host_ = state_.gradient_buffer(Tier::host, embedding, BufferKind::head_gradient);
    program_.copy(head_gradient, head_gradient_host_, embedding);
    finished_ = Finished{l, gradient_, 0};
  }

  // -- backward
  // --------------------------------------------------------------------------------------
  Slice stage_checkpoint(std::size_t k) {
    const Visit& v = down_[k];
    const Checkpoint& checkpoint = checkpoints_.at({v.layer, v.micro_batch});
    if (!checkpoint.ssd.valid()) return checkpoint.host;
    const Slice host = program_.buffer(Tier::host, checkpoint.ssd.bytes, BufferKind::checkpoint,
                                       v.layer, v.micro_batch);
    program_.copy(checkpoint.ssd, host, v.layer, v.micro_batch);
    return host;
  }
  Slice fetch_activation_gradient(std::size_t k) {
    const Visit& v = down_[k];
    const Visit& before = k > 0 ? down_[k - 1] : up_.back();
    if (before.micro_batch == v.micro_batch && before.layer != v.layer) return {};
    if (leaving_gradient_ && leaving_gradient_->first == v.micro_batch) flush_leaving_gradient();
    if (order_.stays_on_gpu(v.micro_batch)) return activation_gradients_.at(v.micro_batch);
    return fetch(activation_gradients_.at(v.micro_batch), BufferKind::activation_gradient, v.layer,
                 v.micro_batch);
  }
  // What becomes of the activation gradient in hidden_ once layer v.layer is through with it.
  void after_backward(const Visit& v, bool last_of_layer, const Visit* next) {
    if (v.layer == 0) {
      if (!embed_gradient_.valid()) {
        embed_gradient_ = state_.gradient_buffer(Tier::gpu, state_.embedding());
        program_.embed_backward(v.micro_batch, hidden_, embed_gradient_, true);
      } else {
        program_.embed_backward(v.micro_batch, hidden_, embed_gradient_, false);
      }
    } else if (order_.stays_on_gpu(v.micro_batch)) {
      activation_gradients_[v.micro_batch] = hidden_;
    } else if (!(last_of_layer && next && next->micro_batch == v.micro_batch)) {
      flush_leaving_gradient();
      leaving_gradient_ = {v.micro_batch, hidden_};
    }
  }
  void flush_leaving_gradient() {
    if (!leaving_gradient_) return;
    const auto [m, gpu] = *leaving_gradient_;
    leaving_gradient_.reset();
    const Slice host =
        program_.buffer(Tier::host, gpu.bytes, BufferKind::activation_gradient, -1, m);
    program_.copy(gpu, host, -1, m);
    activation_gradients_[m] = host;
  }

  void backward() {
    const auto visits = down_.size();
    const auto unit_ahead = static_cast<std::size_t>(micro_batches_);
    LookAhead<Slice> host_inputs(visits, unit_ahead,
                                 [this](std::size_t k) { return stage_checkpoint(k); });
    LookAhead<Slice> gpu_inputs(visits, 1, [&](std::size_t k) {
      return fetch(host_inputs.at(k), BufferKind::checkpoint, down_[k].layer, down_[k].micro_batch);
    });
    LookAhead<Slice> gradients(visits, 1,
                               [this](std::size_t k) { return fetch_activation_gradient(k); });
    for (std::size_t k = 0; k < visits; ++k) {
      const Visit& v = down_[k];
      const Slice weights = parameters(static_cast<std::size_t>(2 * layers_ - 2 - v.layer));
      const Slice input = gpu_inputs.at(k);
      if (const Slice fetched = gradients.at(k); fetched.valid()) hidden_ = fetched;
      upload_chunk(v.position);
      const bool first = v.position == 0;
      if (first) gradient_ = state_.gradient_buffer(Tier::gpu, v.layer);
      program_.backward(v.layer, v.micro_batch, weights, input, {}, saved_none, hidden_, gradient_,
                        first, options_.recomputes_output);
      const bool last_of_layer = v.position == micro_batches_ - 1;
      if (last_of_layer) program_.gradient_complete(v.layer, gradient_);
      after_backward(v, last_of_layer, k + 1 < visits ? &down_[k + 1] : nullptr);
      leave_chunk(v.position);
      if (last_of_layer) finished_ = Finished{v.layer, gradient_, 0};
    }
    flush_leaving_gradient();
    leave_chunk(micro_batches_ - 1);
  }

  // -- gradients and optimizer
  // -----------------------------------------------------------------------
  // The complete gradient of a layer leaves in chunks under the next layer's micro-batches; its
  // undelayed part is applied when all of it has left, the rest is kept for the next step. Where
  // updates wait for the norm of the whole gradient, the undelayed part is kept, too, in memory of
  // its own: the next forward needs the blocks in the other order.
  struct Finished {
    int unit = 0;
    Slice gpu;
    std::uint64_t done = 0;  // elements that have left
  };
  void leave_chunk(int position) {
    if (!finished_) return;
    const int unit = finished_->unit;
    const std::uint64_t end = chunk_end(position);
    if (end > finished_->done)
      blocks_.leave_gradient(unit, finished_->done, end, finished_->gpu, step_);
    finished_->done = end;
    if (end < blocks_.elements()) return;
    finished_.reset();
    if (program_.updates_wait() || !blocks_.has(now)) return;
    update_now(static_cast<std::size_t>(layers_ - 1 - unit));
    blocks_.forget_parameters(unit);
  }
  int unit_of_update(std::size_t k) const {
    const int place = static_cast<int>(k);
    return program_.updates_wait() ? place : layers_ - 1 - place;
  }
  void update_now(std::size_t k) {
    const int unit = unit_of_update(k);
    updates_.at(k);
    blocks_.update(unit, now);
    blocks_.write_parameters(unit, now);
    blocks_.write_optimizer(unit, now);
  }
  void finish_embedding() {
    const int embedding = state_.embedding();
    const ModelState::Update update = state_.begin_update(embedding);
    const Slice host = state_.gradient_buffer(Tier::host, embedding);
    program_.copy(embed_gradient_, host, embedding);
    program_.gradient_complete(embedding, host, head_gradient_host_);
    if (program_.updates_wait()) program_.at(step_, Phase::optimizer);
    state_.finish_update(update, host, head_gradient_host_, step_);
  }

  struct Leaving {
    Key key;
    Slice gpu;
  };

  Program& program_;
  ModelState& state_;  // the embedding's
  BlockStates& blocks_;
  const VerticalOptions& options_;
  VerticalOrder order_;
  int step_;
  int layers_, micro_batches_;
  std::vector<Visit> up_, down_;
  LookAhead<Emitted> staged_, delayed_, updates_;
  std::optional<LookAhead<Slice>> inputs_;
  std::map<Key, Checkpoint> checkpoints_;
  std::map<int, Slice> activation_gradients_;  // by micro-batch, in host or GPU memory
  std::optional<Leaving> leaving_;
  std::optional<std::pair<int, Slice>> leaving_gradient_;
  std::optional<Finished> finished_;  // the gradient on its way out
  std::optional<Upload> next_upload_;
  Slice parameters_;  // of use current_use_
  std::size_t current_use_ = static_cast<std::size_t>(-1);
  Slice hidden_;  // activation, then its gradient, of the running visit
  Slice gradient_, embed_gradient_, head_gradient_host_;
};

}  // namespace

void emit_vertical_step(Program& program, ModelState& state, BlockStates& blocks,
                        const VerticalOptions& options, int step) {
  VerticalStep(program, state, blocks, options, step).emit();
}

void emit_vertical_epilogue(Program& program, BlockStates& blocks) {
  for (int unit = 0; unit < static_cast<int>(program.problem().model.layers); ++unit) {
    if (blocks.stashed(unit)) {
      blocks.read_optimizer(unit, late);
      blocks.update(unit, late);
    }
    if (blocks.rest_waits(unit)) {
      blocks.read_optimizer(unit, now);
      blocks.update(unit, now);
    }
    for (const BlockStates::Part part : {late, now}) {
      blocks.write_parameters(unit, part);
      blocks.write_optimizer(unit, part);
    }
    blocks.forget_parameters(unit);
    blocks.barrier();  // waiting for the SSD is no loss here: the GPU has nothing to do
  }
}

}  // namespace spillway
