#include "policies/vertical.hpp"

#include <algorithm>
#include <map>

#include "base/errors.hpp"
#include "policies/look_ahead.hpp"

namespace spillway {

namespace {

// Micro-batches at each end of a layer's order whose checkpoints never go to the SSD: they are
// still crossing PCIe when the SSD requests of the layer are issued.
constexpr int checkpoint_margin = 2;

// One layer on one micro-batch, in the order in which the GPU runs them.
struct Visit {
  int layer = 0;
  int micro_batch = 0;
  int position = 0;  // in the layer's order
};

class VerticalStep {
 public:
  VerticalStep(Program& program, ModelState& state, const VerticalOptions& options, int step,
               std::vector<std::optional<DelayedGradient>>& stash)
      : program_(program),
        state_(state),
        options_(options),
        step_(step),
        stash_(stash),
        layers_(static_cast<int>(program.problem().model.layers)),
        micro_batches_(static_cast<int>(program.problem().workload.micro_batches())),
        staged_(uses(), 2, [this](std::size_t k) { return stage(k); }),
        delayed_(static_cast<std::size_t>(layers_), 1,
                 [this](std::size_t u) {
                   return state_.begin_update(static_cast<int>(u), 0, delayed_elements());
                 }),
        updates_(static_cast<std::size_t>(layers_), 1,
                 [this](std::size_t k) { return begin_update(k); }) {}

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
  int micro_batch_at(int layer, int position) const {
    return options_.snake && layer % 2 == 1 ? micro_batches_ - 1 - position : position;
  }
  void plan_visits() {
    for (int l = 0; l < layers_; ++l) {
      for (int p = 0; p < micro_batches_; ++p) up_.push_back({l, micro_batch_at(l, p), p});
    }
    for (int l = layers_ - 2; l >= 0; --l) {
      for (int p = 0; p < micro_batches_; ++p) down_.push_back({l, micro_batch_at(l, p), p});
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
  std::uint64_t delayed_elements() const { return fraction_of(state_.elements(0), options_.alpha); }

  ModelState::Runs stage(std::size_t k) {
    const int unit = unit_of_use(k);
    const std::uint64_t delayed = delayed_elements();
    auto& stash = stash_[static_cast<std::size_t>(unit)];
    if (static_cast<int>(k) >= layers_ || !stash) return state_.stage_parameters(unit);
    ModelState::Runs runs = state_.finish_update(delayed_.at(k), stash->gradient, {}, stash->step);
    stash.reset();
    for (const auto& run : state_.stage_parameters(unit, delayed, state_.elements(unit) - delayed))
      runs.push_back(run);
    return runs;
  }

  // The parameters of use k cross PCIe in chunks, one under each micro-batch of the use before, so
  // that checkpoints and activation gradients do not queue behind a whole layer.
  struct Upload {
    std::size_t use = 0;
    Slice gpu;
    ModelState::Runs staged;
    std::uint64_t done = 0;  // elements
  };
  std::uint64_t chunk_end(std::uint64_t elements, int position) const {
    return fraction_of(elements, static_cast<double>(position + 1) / micro_batches_);
  }
  Upload begin_upload(std::size_t use) {
    const int unit = unit_of_use(use);
    const std::uint64_t bytes = state_.elements(unit) * program_.problem().parameter_bytes();
    Upload upload{use, {}, staged_.at(use), 0};
    upload.gpu = program_.buffer(Tier::gpu, bytes, BufferKind::parameters, unit).part(0, bytes);
    return upload;
  }
  void advance(Upload& upload, std::uint64_t end) {
    const std::uint64_t width = program_.problem().parameter_bytes();
    for (const ModelState::Run& run : upload.staged) {
      const std::uint64_t from = std::max(upload.done, run.first);
      const std::uint64_t to = std::min(end, run.first + run.elements);
      if (from >= to) continue;
      program_.copy(run.where.part((from - run.first) * width, (to - from) * width),
                    upload.gpu.part(from * width, (to - from) * width), unit_of_use(upload.use));
    }
    upload.done = end;
  }
  // The parameters of use `use`, complete.
  Slice parameters(std::size_t use) {
    if (use == current_use_) return parameters_;
    if (!next_upload_) next_upload_ = begin_upload(use);
    SPILLWAY_ASSERT(next_upload_->use == use);
    advance(*next_upload_, state_.elements(unit_of_use(use)));
    parameters_ = next_upload_->gpu;
    current_use_ = use;
    next_upload_.reset();
    if (use + 1 < uses()) next_upload_ = begin_upload(use + 1);
    return parameters_;
  }
  // Emits the chunk of the next use that goes under the visit at `position`.
  void upload_chunk(int position) {
    if (!next_upload_) return;
    advance(*next_upload_, chunk_end(state_.elements(unit_of_use(next_upload_->use)), position));
  }

  // -- checkpoints: the input of (layer, micro-batch)
  // ------------------------------------------------
  struct Checkpoint {
    Slice host, ssd;
  };
  using Key = std::pair<int, int>;  // layer, micro-batch

  bool goes_to_ssd(const Visit& v) const {
    const int middle = micro_batches_ - 2 * checkpoint_margin;
    if (middle <= 0) return false;
    const int on_ssd = static_cast<int>(options_.checkpoints_ssd * middle + 0.5);
    return v.position >= checkpoint_margin && v.position < checkpoint_margin + on_ssd;
  }

  // Leaving the GPU is emitted one visit late, so that the next output has memory of its own.
  void put_away_later(Key key, Slice gpu, bool to_ssd) {
    flush_leaving();
    leaving_ = Leaving{key, gpu, to_ssd};
  }
  void flush_leaving() {
    if (!leaving_) return;
    const auto [key, gpu, to_ssd] = *leaving_;
    leaving_.reset();
    Checkpoint& checkpoint = checkpoints_[key];
    checkpoint.host =
        program_.buffer(Tier::host, gpu.bytes, BufferKind::checkpoint, key.first, key.second);
    program_.copy(gpu, checkpoint.host, key.first, key.second);
    if (!to_ssd) return;
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
    if (layers_ > 1) put_away_later({0, v.micro_batch}, input, goes_to_ssd(v));
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
      if (!used_at_once) {
        const Visit next{v.layer + 1, v.micro_batch, position_in(v.layer + 1, v.micro_batch)};
        put_away_later({next.layer, next.micro_batch}, hidden_,
                       next.layer < layers_ - 1 && goes_to_ssd(next));
      }
    }
  }
  int position_in(int layer, int micro_batch) const {
    return options_.snake && layer % 2 == 1 ? micro_batches_ - 1 - micro_batch : micro_batch;
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
      after_backward(up_[k], k + 1 == up_.size(), down_.empty() ? nullptr : &down_.front());
    }
    head_gradient_host_ = state_.gradient_buffer(Tier::host, embedding, BufferKind::head_gradient);
    program_.copy(head_gradient, head_gradient_host_, embedding);
    finished_ = finished_gradient(l);
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
      after_backward(v, last_of_layer, k + 1 < visits ? &down_[k + 1] : nullptr);
      leave_chunk(v.position);
      if (last_of_layer) finished_ = finished_gradient(v.layer);
    }
    flush_leaving_gradient();
    leave_chunk(micro_batches_ - 1);
  }

  // -- gradients and optimizer
  // -----------------------------------------------------------------------
  ModelState::Update begin_update(std::size_t k) {
    const int unit = layers_ - 1 - static_cast<int>(k);
    const std::uint64_t delayed = delayed_elements();
    return state_.begin_update(unit, delayed, state_.elements(unit) - delayed);
  }
  // The complete gradient of a layer leaves in chunks under the next layer's micro-batches; its
  // undelayed part is applied when all of it has left, the rest is kept for the next step.
  struct Finished {
    int unit = 0;
    Slice gpu;
    Slice delayed, now;      // in host memory; invalid where there are no such elements
    std::uint64_t done = 0;  // elements that have left
  };
  Finished finished_gradient(int unit) {
    const std::uint64_t width = program_.problem().gradient_bytes();
    const std::uint64_t delayed = delayed_elements();
    const auto host = [&](std::uint64_t elements) {
      if (elements == 0) return Slice{};
      return program_.buffer(Tier::host, elements * width, BufferKind::gradient, unit)
          .part(0, elements * width);
    };
    return {unit, gradient_, host(delayed), host(state_.elements(unit) - delayed), 0};
  }
  void leave_chunk(int position) {
    if (!finished_) return;
    Finished& f = *finished_;
    const std::uint64_t all = state_.elements(f.unit);
    const std::uint64_t delayed = delayed_elements();
    const std::uint64_t width = program_.problem().gradient_bytes();
    const std::uint64_t end = chunk_end(all, position);
    const auto leave = [&](Slice host, std::uint64_t first, std::uint64_t last) {
      const std::uint64_t from = std::max(f.done, first), to = std::min(end, last);
      if (from >= to) return;
      program_.copy(state_.gradient_part(f.gpu, from, to - from),
                    host.part((from - first) * width, (to - from) * width), f.unit);
    };
    leave(f.delayed, 0, delayed);
    leave(f.now, delayed, all);
    f.done = end;
    if (end < all) return;
    if (f.now.valid()) {
      state_.finish_update(updates_.at(static_cast<std::size_t>(layers_ - 1 - f.unit)), f.now, {},
                           step_);
    }
    if (f.delayed.valid())
      stash_[static_cast<std::size_t>(f.unit)] = DelayedGradient{f.delayed, step_};
    finished_.reset();
  }
  void finish_embedding() {
    const int embedding = state_.embedding();
    const ModelState::Update update = state_.begin_update(embedding);
    const Slice host = state_.gradient_buffer(Tier::host, embedding);
    program_.copy(embed_gradient_, host, embedding);
    state_.finish_update(update, host, head_gradient_host_, step_);
  }

  struct Leaving {
    Key key;
    Slice gpu;
    bool to_ssd;
  };

  Program& program_;
  ModelState& state_;
  const VerticalOptions& options_;
  int step_;
  std::vector<std::optional<DelayedGradient>>& stash_;
  int layers_, micro_batches_;
  std::vector<Visit> up_, down_;
  LookAhead<ModelState::Runs> staged_;
  LookAhead<ModelState::Update> delayed_, updates_;
  std::optional<LookAhead<Slice>> inputs_;
  std::map<Key, Checkpoint> checkpoints_;
  std::map<int, Slice> activation_gradients_;  // by micro-batch, in host memory
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

void emit_vertical_step(Program& program, ModelState& state, const VerticalOptions& options,
                        int step, std::vector<std::optional<DelayedGradient>>& delayed) {
  VerticalStep(program, state, options, step, delayed).emit();
}

}  // namespace spillway
