#include "tests/policies/random_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "base/errors.hpp"
#include "policies/model/gpt_layout.hpp"
#include "tests/policies/random_moves.hpp"
#include "tests/policies/random_states.hpp"

namespace spillway::test {

namespace {

// What forward saved of one block on one micro-batch: as it was written, or tensor by tensor.
struct Saved {
  std::uint8_t mask = saved_none;
  Slice gpu;                   // laid out for `mask`; or
  std::vector<Value> tensors;  // of `mask`, in its order, away
};

enum class Order { horizontal, vertical, snake, deepest, mixed };

class RandomPolicy : public Policy {
 public:
  explicit RandomPolicy(const RandomPolicyOptions& options)
      : options_(options), dice_(options.seed) {}

  PolicyInfo info() const override {
    return {"random", "none", fmt::format("any legal choice, seed {}", options_.seed), {}};
  }

  void setup(Program& program) override {
    program_ = &program;
    const Problem& problem = program.problem();
    layers_ = static_cast<int>(problem.model.layers);
    micro_batches_ = static_cast<int>(problem.workload.micro_batches());
    if (dice_.chance(0.2)) program.use_one_copy_lane();
    order_ = static_cast<Order>(dice_.below(5));
    saves_ = dice_.habit();
    saves_all_ = dice_.habit() / 2;
    drops_ = dice_.habit() / 2;
    puts_away_ = dice_.habit();
    again_ = options_.runs_forward_again ? dice_.habit() / 2 : 0;
    barriers_ = dice_.habit() / 5;
    output_ = dice_.habit();
    shakes_ = dice_.below(8);
    moves_.emplace(program, dice_);
    states_.emplace(program, *moves_);
  }

  void emit_step(Program& program, int step) override {
    step_ = step;
    program.at(step, Phase::forward);
    const auto visits = static_cast<std::size_t>(micro_batches_);
    inputs_.assign(static_cast<std::size_t>(layers_ + 1) * visits, {});
    for (int l = 0; l <= layers_; ++l) {
      for (int m = 0; m < micro_batches_; ++m)
        input_value(l, m) = activation(BufferKind::checkpoint, l, m);
    }
    saved_.assign(static_cast<std::size_t>(layers_) * visits, {});
    activation_gradients_.assign(visits, {});
    at_.assign(visits, 0);
    done_.assign(static_cast<std::size_t>(last_place() + 1), 0);
    while (const std::optional<int> m = next()) {
      visit(*m);
      shake();
    }
    program.at(step, Phase::optimizer);
    states_->end_step();
  }

  void emit_epilogue(Program&) override { states_->finish(); }

 private:
  // -- order: each micro-batch goes through places 0 .. last_place(), one visit at each: forward of
  // block 0 .. L-1, head, backward of L-1 .. 0, the embedding's backward
  int last_place() const { return 2 * layers_ + 1; }
  int& done(int place) { return done_[static_cast<std::size_t>(place)]; }

  bool may_visit(int m) {
    const int place = at_[static_cast<std::size_t>(m)];
    if (place > last_place()) return false;
    return !options_.ascending || place < layers_ || done(place) == m;
  }
  std::optional<int> next() {
    std::vector<int> ready;
    for (int m = 0; m < micro_batches_; ++m) {
      if (may_visit(m)) ready.push_back(m);
    }
    if (ready.empty()) return std::nullopt;
    const auto place_of = [&](int m) { return at_[static_cast<std::size_t>(m)]; };
    const auto lower = [&](int a, int b) { return place_of(a) < place_of(b); };
    switch (order_) {
      case Order::horizontal:
        return ready.front();
      case Order::vertical:
        return *std::min_element(ready.begin(), ready.end(), lower);
      case Order::snake: {
        const int place = place_of(*std::min_element(ready.begin(), ready.end(), lower));
        if (place % 2 != 0) std::reverse(ready.begin(), ready.end());
        return *std::min_element(ready.begin(), ready.end(), lower);
      }
      case Order::deepest:
        return *std::max_element(ready.begin(), ready.end(), lower);
      case Order::mixed:
        break;
    }
    return ready[dice_.below(ready.size())];
  }

  void visit(int m) {
    const int place = at_[static_cast<std::size_t>(m)]++;
    const bool first = done(place)++ == 0;
    const bool last = done(place) == micro_batches_;
    if (place < layers_) {
      program_->at(step_, Phase::forward);
      return forward(place, m);
    }
    program_->at(step_, Phase::backward);
    if (place == layers_) return head(m, first);
    if (place == last_place()) {
      embed_backward(m, first);
      if (last) states_->complete(states_->embedding(), step_);
      return;
    }
    const int layer = 2 * layers_ - place;
    backward(layer, m, first);
    if (last) states_->complete(layer, step_);
  }

  // -- activations
  Value activation(BufferKind kind, int layer, int m) const {
    return {kind, layer, m, checkpoint_bytes(program_->problem()), {}, {}, false};
  }
  Value& input_value(int layer, int m) {
    return inputs_[static_cast<std::size_t>(layer * micro_batches_ + m)];
  }
  Saved& saved_of(int layer, int m) {
    return saved_[static_cast<std::size_t>(layer * micro_batches_ + m)];
  }
  // The input of a block, or of the head, on the GPU: fetched, or made (again).
  Slice input(int layer, int m) {
    Value& value = input_value(layer, m);
    if (!value.exists()) {
      if (layer > 0) {
        forward(layer - 1, m);
      } else {
        const Slice weights = states_->parameters(states_->embedding());
        value.in(Tier::gpu) = moves_->buffer(value, Tier::gpu);
        program_->embed_forward(m, weights, value.in(Tier::gpu));
      }
    }
    return moves_->bring(value, Tier::gpu);
  }
  std::uint8_t random_mask() {
    if (!dice_.chance(saves_)) return saved_none;
    if (dice_.chance(saves_all_)) return saved_all;
    return static_cast<std::uint8_t>(dice_.below(saved_all + 1));
  }

  // -- visits
  void forward(int layer, int m) {
    const bool weights_first = dice_.chance(0.5);
    Slice weights, in;
    if (weights_first) weights = states_->parameters(layer);
    in = input(layer, m);
    if (!weights_first) weights = states_->parameters(layer);
    Value& output = input_value(layer + 1, m);
    output.in(Tier::gpu) = moves_->buffer(output, Tier::gpu);
    Saved& saved = saved_of(layer, m);
    saved = {};
    saved.mask = random_mask();
    if (saved.mask != saved_none) {
      saved.gpu = program_->buffer(Tier::gpu, saved_bytes(program_->problem(), saved.mask),
                                   BufferKind::saved, layer, m);
    }
    program_->forward(layer, m, weights, in, output.in(Tier::gpu), saved.gpu, saved.mask);
    if (dice_.chance(puts_away_)) put_away(saved, layer, m);
    if (dice_.chance(puts_away_)) moves_->shake(input_value(layer, m));
    if (dice_.chance(again_)) moves_->forget_all(input_value(layer, m));
  }

  void head(int m, bool first) {
    Slice weights;
    const bool weights_first = dice_.chance(0.5);
    if (weights_first) weights = states_->parameters(states_->embedding());
    input(layers_, m);
    if (!weights_first) weights = states_->parameters(states_->embedding());
    const Slice hidden = moves_->bring_to_change(input_value(layers_, m), Tier::gpu);
    program_->head(m, weights, hidden, states_->head_accumulator(first), first);
    moves_->forget_all(input_value(layers_, m));
    Value& gradient = activation_gradients_[static_cast<std::size_t>(m)];
    gradient = activation(BufferKind::activation_gradient, -1, m);
    gradient.in(Tier::gpu) = hidden;
  }

  void backward(int layer, int m, bool first) {
    Value& gradient = activation_gradients_[static_cast<std::size_t>(m)];
    const bool gradient_first = dice_.chance(0.5);
    if (gradient_first) moves_->bring(gradient, Tier::gpu);
    const Slice weights = states_->parameters(layer);
    const Slice in = input(layer, m);
    Saved& saved = saved_of(layer, m);
    bring_back(saved, layer, m);
    const Slice changed = moves_->bring_to_change(gradient, Tier::gpu);
    program_->backward(layer, m, weights, in, saved.gpu, saved.mask, changed,
                       states_->accumulator(layer, first), first, dice_.chance(output_));
    moves_->forget_all(input_value(layer, m));
    saved = {};
    if (dice_.chance(puts_away_)) moves_->shake(gradient);
  }

  void embed_backward(int m, bool first) {
    Value& gradient = activation_gradients_[static_cast<std::size_t>(m)];
    const Slice on_gpu = moves_->bring(gradient, Tier::gpu);
    program_->embed_backward(m, on_gpu, states_->accumulator(states_->embedding(), first), first);
    moves_->forget_all(gradient);
  }

  // -- what forward saves
  void put_away(Saved& saved, int layer, int m) {
    if (!saved.gpu.valid()) return;
    std::uint8_t kept = saved_none;
    for (const SavedLayout& tensor : layout(saved.mask)) {
      if (dice_.chance(drops_)) continue;
      kept = static_cast<std::uint8_t>(kept | tensor.tensor);
      Value value{BufferKind::saved, layer, m, tensor.bytes, {}, {}, false};
      value.in(Tier::gpu) = saved.gpu.part(tensor.offset, tensor.bytes);
      moves_->bring(value, dice_.chance(0.5) ? Tier::host : Tier::ssd);
      if (dice_.chance(0.9)) value.in(Tier::gpu) = {};
      if (value.in(Tier::ssd).valid()) value.in(Tier::host) = {};
      saved.tensors.push_back(value);
    }
    saved.mask = kept;
    saved.gpu = {};
  }
  // Into a buffer laid out for what is left.
  void bring_back(Saved& saved, int layer, int m) {
    if (saved.tensors.empty()) return;
    saved.gpu = program_->buffer(Tier::gpu, saved_bytes(program_->problem(), saved.mask),
                                 BufferKind::saved, layer, m);
    std::size_t k = 0;
    for (const SavedLayout& tensor : layout(saved.mask)) {
      Value& value = saved.tensors[k++];
      moves_->copy(moves_->bring(value, Tier::host), saved.gpu.part(tensor.offset, tensor.bytes),
                   value);
    }
    saved.tensors.clear();
  }
  std::vector<SavedLayout> layout(std::uint8_t mask) const {
    const Problem& problem = program_->problem();
    return saved_layout(problem, mask, problem.workload.micro_batch);
  }

  // -- between visits
  void shake() {
    for (std::uint64_t k = dice_.below(shakes_ + 1); k > 0; --k) {
      switch (dice_.below(5)) {
        case 0: {
          Value& value = inputs_[dice_.below(inputs_.size())];
          if (value.layer < layers_ && dice_.chance(again_)) {
            moves_->forget_all(value);
          } else {
            moves_->shake(value);
          }
          break;
        }
        case 1:
          moves_->shake(activation_gradients_[dice_.below(activation_gradients_.size())]);
          break;
        case 2: {
          const std::size_t k_saved = dice_.below(saved_.size());
          const int layer = static_cast<int>(k_saved) / micro_batches_;
          put_away(saved_[k_saved], layer, static_cast<int>(k_saved) % micro_batches_);
          break;
        }
        default:
          states_->shake();
      }
    }
    if (dice_.chance(barriers_)) program_->barrier(random_lanes(), random_lanes());
  }
  LaneSet random_lanes() {
    const auto lane = [&] { return static_cast<Lane>(dice_.below(lane_count)); };
    if (dice_.chance(0.3)) return LaneSet::all();
    return {lane(), lane()};
  }

  RandomPolicyOptions options_;
  Dice dice_;
  Program* program_ = nullptr;
  std::optional<Moves> moves_;
  std::optional<RandomStates> states_;
  int layers_ = 0, micro_batches_ = 0, step_ = 0;
  Order order_ = Order::mixed;
  double saves_ = 0, saves_all_ = 0, drops_ = 0, puts_away_ = 0, again_ = 0, barriers_ = 0,
         output_ = 0;
  std::uint64_t shakes_ = 0;
  std::vector<Value> inputs_;                // of blocks and head, by layer and micro-batch
  std::vector<Saved> saved_;                 // by layer and micro-batch
  std::vector<Value> activation_gradients_;  // by micro-batch
  std::vector<int> at_;                      // by micro-batch: its next place
  std::vector<int> done_;                    // by place: visits
};

}  // namespace

std::unique_ptr<Policy> make_random_policy(const RandomPolicyOptions& options) {
  return std::make_unique<RandomPolicy>(options);
}

}  // namespace spillway::test
