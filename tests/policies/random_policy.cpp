#include "tests/policies/random_policy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "policies/model/saved.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"
#include "tests/policies/dice.hpp"

namespace spillway::test {

namespace {

// All of a tensor in `first`, all in `second`, or some in each.
void split(Dice& dice, double& first, double& second) {
  first = dice.habit();
  second = 1 - first;
}

// `delays`: some updates come in the step after that of their gradient.
Plan random_plan(Dice& dice, const Problem& problem, bool one_by_one, bool delays) {
  const auto layers = static_cast<std::size_t>(problem.model.layers);
  const int micro_batches = static_cast<int>(problem.workload.micro_batches());
  Plan plan;
  const auto host_or_ssd = [&] {
    Share share;
    split(dice, share.host, share.ssd);
    return share;
  };
  const bool all_on_gpu = dice.chance(0.15);
  std::vector<Share> rest;
  const double gpu_layers = all_on_gpu ? 1 : dice.habit();
  const Share elsewhere = host_or_ssd();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    rest.push_back(dice.chance(gpu_layers) ? Share{.gpu = 1}
                   : dice.chance(0.7)      ? elsewhere
                                           : host_or_ssd());
  }
  plan.parameters.rest = ByLayer<Share>::of_each(rest);
  plan.parameters.host_ahead = dice.between(0, 3);
  plan.parameters.gpu_ahead = dice.between(0, 3);
  if (dice.chance(0.5)) plan.parameters.backward_gpu_ahead = dice.between(0, 3);

  // A window of tensors has no place for updates that a wait holds in the next step.
  if (one_by_one && !delays && dice.chance(0.5)) {
    plan.parameters.by_tensor = true;
    plan.parameters.rest = all_on_gpu ? Share{.gpu = 1} : elsewhere;
    plan.parameters.tensors.bucket = dice.below(1 << dice.between(0, 18));
    plan.parameters.tensors.most_on_gpu = dice.below(1 << dice.between(0, 18));
    plan.parameters.tensors.reuse_distance = dice.below(1 << dice.between(0, 18));
    plan.parameters.tensors.most_in_host = dice.between(1, 5);
  }

  plan.gradients.on_gpu = dice.chance(0.5);
  const bool state_on_gpu = all_on_gpu || dice.chance(0.3);
  if (!state_on_gpu && dice.chance(0.4))
    plan.gradients.bucket = 1 + dice.below(1 << dice.between(10, 18));
  plan.gradients.head_waits = dice.chance(0.5) ? Tier::gpu : Tier::host;

  // Where parameters rest on the GPU, optimizer state may, too, and is updated there.
  const double states = all_on_gpu ? 1 : dice.habit();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const bool on_gpu =
        plan.parameters.rest.at(static_cast<int>(layer), static_cast<int>(layers)).gpu > 0;
    rest[layer] = state_on_gpu && on_gpu && dice.chance(states) ? Share{.gpu = 1} : host_or_ssd();
  }
  plan.optimizer_state.rest = ByLayer<Share>::of_each(rest);
  if (dice.chance(0.5) || !state_on_gpu)
    plan.optimizer_state.embedding =
        state_on_gpu && dice.chance(0.5) ? Share{.gpu = 1} : host_or_ssd();
  plan.optimizer_state.ahead = dice.between(0, 3);
  if (dice.chance(0.5)) plan.optimizer_state.slots = dice.between(1, 4);
  plan.optimizer.blocking = dice.chance(0.2);
  plan.optimizer.early = dice.chance(0.5);
  plan.optimizer.group = static_cast<UpdateGroup>(dice.below(4));
  plan.optimizer.elements = element_alignment * (1 + dice.below(20));

  const auto of_layers = [&] {
    const double on_gpu = dice.habit();
    const bool alike = dice.chance(0.5);
    const Share of_all = host_or_ssd();
    std::vector<Share> shares;
    for (std::size_t layer = 0; layer < layers; ++layer)
      shares.push_back(dice.chance(on_gpu) ? Share{.gpu = 1} : alike ? of_all : host_or_ssd());
    return ByLayer<Share>::of_each(shares);
  };
  plan.checkpoints.rest = of_layers();
  if (dice.chance(0.5)) plan.saved.rest = of_layers();
  plan.checkpoints.host_ahead = dice.between(0, micro_batches + 1);
  plan.checkpoints.gpu_ahead = dice.between(0, 3);
  plan.checkpoints.margin = dice.between(0, 2);
  plan.activation_gradients.on_gpu = dice.habit();

  const double saves = dice.habit(), saves_all = dice.habit();
  std::vector<SavedMask> masks;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    masks.push_back(!dice.chance(saves)      ? SavedMask{saved_none}
                    : dice.chance(saves_all) ? saved_all(problem.model)
                                             : static_cast<SavedMask>(dice.below(
                                                   std::uint64_t{saved_all(problem.model)} + 1)));
  }
  if (dice.chance(0.8)) plan.saved.saves = ByLayer<SavedMask>::of_each(masks);
  if (one_by_one && dice.chance(0.7))
    plan.saved.slots = std::max(2, plan.checkpoints.gpu_ahead + 1) + dice.between(0, 2);
  plan.saved.recomputes_output = dice.chance(0.5);
  if (dice.chance(0.5)) {
    for_kinds(plan.retention, [&](const char*, Retention& retention) {
      retention = dice.chance(0.5) ? Retention::nearest()
                  : dice.chance(0.5)
                      ? Retention::slots(static_cast<std::uint32_t>(dice.between(1, 4)))
                      : Retention::never();
    });
    plan.spare_gpu_bytes = dice.below(1 << dice.between(10, 22));
    plan.spare_host_bytes = dice.below(2);
  }
  return plan;
}

// Any mesh that divides the one around it, whole nodes where it spans several.
Mesh random_mesh(Dice& dice, const Mesh& around) {
  const auto divisor = [&](int whole) {
    std::vector<int> divisors;
    for (int one = 1; one <= whole; ++one) {
      if (whole % one == 0) divisors.push_back(one);
    }
    return dice.one_of(divisors);
  };
  Mesh mesh{divisor(around.inside), 1};
  if (mesh.inside == around.inside) mesh.across = divisor(around.across);
  return mesh;
}

void cut_into_shards(Dice& dice, const Problem& problem, Plan& plan) {
  const auto layers = static_cast<int>(problem.model.layers);
  const Mesh state = dice.chance(0.3) ? problem.ranks() : random_mesh(dice, problem.ranks());
  if (!(state == problem.ranks()) || dice.chance(0.5)) plan.shards.optimizer_state = state;
  bool all_rest_on_gpu = true;
  for (int layer = 0; layer < layers; ++layer)
    all_rest_on_gpu = all_rest_on_gpu && plan.parameters.rest.at(layer, layers).gpu > 0;
  // What rests elsewhere is cut as optimizer state, and gradients then no finer.
  Mesh gradients{};
  if (dice.chance(0.5)) gradients = all_rest_on_gpu ? random_mesh(dice, state) : state;
  if (gradients.size() > 1 || dice.chance(0.5)) plan.shards.gradients = gradients;
  if (dice.chance(0.6))
    plan.shards.parameters = gradients.size() > 1 && dice.chance(0.5)
                                 ? gradients
                                 : random_mesh(dice, gradients.size() > 1 ? gradients : state);
  const bool same = gradients.size() > 1 && plan.shards.parameters == gradients && all_rest_on_gpu;
  if (same && dice.chance(0.6)) plan.shards.second_parameters = random_mesh(dice, gradients);
  plan.shards.gather_overlaps = dice.chance(0.6);
  plan.shards.all_reduce = dice.chance(0.3);
  plan.shards.reduce_overlaps = dice.chance(0.6);
  plan.shards.spread_overlaps = dice.chance(0.6);
}

// When a part of a unit is updated with the gradient of a step.
enum class When { soon, at_end, delayed };
struct Part {
  int unit = 0;
  Portion portion;
  When when = When::soon;
  bool is_of_last_step = false;  // its gradient
};

enum class Order { horizontal, groups, vertical, snake, deepest, mixed };

class RandomPolicy : public Policy {
 public:
  explicit RandomPolicy(const RandomPolicyOptions& options)
      : Policy("random", "none", fmt::format("any legal choice, seed {}", options.seed)),
        options_(options),
        dice_(options.seed) {}

  // Called once for each program, before its first step: from here on choices are those of the
  // seed.
  Plan plan(const Problem& problem, const Costs&) const override {
    dice_ = Dice(options_.seed);
    layers_ = static_cast<int>(problem.model.layers);
    head_ = static_cast<int>(head_unit(problem.model));
    micro_batches_ = static_cast<int>(problem.workload.micro_batches());
    order_ = static_cast<Order>(dice_.below(6));
    group_ = dice_.between(1, micro_batches_);
    changes_order_ = dice_.chance(0.3);
    updates_ = dice_.habit();
    waits_ = dice_.habit() / 5;
    splits_ = dice_.habit();
    pays_ = dice_.habit() / 2;
    cut_units();
    // Host memory is lent to what is delayed by the order of all steps.
    const auto is_delayed = [](const Part& part) { return part.when == When::delayed; };
    const bool delays = std::any_of(parts_.begin(), parts_.end(), is_delayed);
    if (delays) changes_order_ = false;
    waiting_.clear();
    is_first_step_ = true;
    Plan plan = random_plan(dice_, problem, order_ == Order::horizontal && !changes_order_, delays);
    if (problem.workload.ranks > 1) cut_into_shards(dice_, problem, plan);
    return plan;
  }

  void step(Step& step) const override {
    if (changes_order_) order_ = static_cast<Order>(dice_.below(6));
    // Every step names what it delays, so that schedules of any length cut units alike; the first
    // has no gradient for it. Not in ascending order, as later steps need not be either.
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
      if (is_first_step_ && part->when == When::delayed) step.update(part->unit, part->portion);
    }
    is_first_step_ = false;
    for (Part& part : waiting_) part.is_of_last_step = true;
    at_.assign(static_cast<std::size_t>(micro_batches_), 0);
    done_.assign(static_cast<std::size_t>(2 * layers_), 0);
    summed_.assign(static_cast<std::size_t>(layers_), 0);
    owed_.assign(static_cast<std::size_t>(layers_), {});
    while (const std::optional<int> m = next()) {
      visit(step, *m);
      while (dice_.chance(pays_)) pay(step, static_cast<int>(dice_.below(owed_.size())));
      for (std::size_t k = waiting_.size(); k > 0 && dice_.chance(updates_); --k) update_one(step);
      if (dice_.chance(waits_)) step.wait();
    }
    for (int layer = 0; layer < layers_; ++layer) pay_all(step, layer);
    update_all(step, [](const Part& part) { return part.when != When::delayed; });
    if (dice_.chance(waits_)) step.wait();
  }

 private:
  void cut_units() const {
    parts_.clear();
    const double cuts = dice_.habit(), soon = dice_.habit(), delayed = dice_.habit();
    for (int unit = 0; unit <= head_; ++unit) {
      std::vector<double> ends = {1};
      while (ends.size() < 4 && dice_.chance(cuts)) ends.push_back(dice_.fraction());
      std::sort(ends.begin(), ends.end());
      double from = 0;
      for (const double to : ends) {
        const When when = dice_.chance(delayed) ? When::delayed
                          : dice_.chance(soon)  ? When::soon
                                                : When::at_end;
        parts_.push_back({unit, {from, to}, when});
        from = to;
      }
    }
  }

  // A micro-batch goes through places 0 .. 2 * layers - 1, one visit at each: forward of every
  // layer, backward of every layer.
  int last_place() const { return 2 * layers_ - 1; }
  int& done(int place) const { return done_[static_cast<std::size_t>(place)]; }
  int place_of(int m) const { return at_[static_cast<std::size_t>(m)]; }
  bool may_visit(int m) const {
    const int place = place_of(m);
    if (place > last_place()) return false;
    return !options_.ascending || place < layers_ || done(place) == m;
  }
  std::optional<int> next() const {
    std::vector<int> ready;
    for (int m = 0; m < micro_batches_; ++m) {
      if (may_visit(m)) ready.push_back(m);
    }
    if (ready.empty()) return std::nullopt;
    const auto lower = [&](int a, int b) { return place_of(a) < place_of(b); };
    const auto lowest = [&] { return *std::min_element(ready.begin(), ready.end(), lower); };
    switch (order_) {
      case Order::horizontal:
        return ready.front();
      case Order::groups: {
        const int first = ready.front() / group_;
        ready.erase(
            std::remove_if(ready.begin(), ready.end(), [&](int m) { return m / group_ != first; }),
            ready.end());
        return lowest();
      }
      case Order::vertical:
        return lowest();
      case Order::snake:
        if (place_of(lowest()) % 2 != 0) std::reverse(ready.begin(), ready.end());
        return lowest();
      case Order::deepest:
        return *std::max_element(ready.begin(), ready.end(), lower);
      case Order::mixed:
        break;
    }
    return dice_.one_of(ready);
  }

  void visit(Step& step, int m) const {
    const int place = at_[static_cast<std::size_t>(m)]++;
    if (place < layers_) {
      update_all(step, [&](const Part& part) {
        return part.is_of_last_step && layer_with(part.unit, layers_) == place;
      });
      return step.forward(place, m);
    }
    const int layer = last_place() - place;
    if (dice_.chance(splits_)) {
      step.input_gradient(layer, m);
      owed_[static_cast<std::size_t>(layer)].push_back(m);
    } else {
      if (options_.ascending) pay_all(step, layer);
      step.backward(layer, m);
      add_up(layer);
    }
    if (++done(place) < micro_batches_) return;
    for (const Part& part : parts_) {
      if (part.unit >= layers_ && layer_with(part.unit, layers_) == layer) waiting_.push_back(part);
    }
  }

  // The gradient of the weights of a layer, where any is owed.
  void pay(Step& step, int layer) const {
    std::vector<int>& owed = owed_[static_cast<std::size_t>(layer)];
    if (owed.empty()) return;
    const std::size_t k = options_.ascending ? 0 : dice_.below(owed.size());
    step.weight_gradient(layer, owed[k]);
    owed.erase(owed.begin() + static_cast<std::ptrdiff_t>(k));
    add_up(layer);
  }
  void pay_all(Step& step, int layer) const {
    while (!owed_[static_cast<std::size_t>(layer)].empty()) pay(step, layer);
  }
  void add_up(int layer) const {
    if (++summed_[static_cast<std::size_t>(layer)] < micro_batches_) return;
    for (const Part& part : parts_) {
      if (part.unit == layer) waiting_.push_back(part);
    }
  }

  // One that may be updated now: of this step's gradients those of parts updated soon, of the last
  // step's any.
  void update_one(Step& step) const {
    if (waiting_.empty()) return;
    const std::size_t k = dice_.below(waiting_.size());
    const Part part = waiting_[k];
    if (!part.is_of_last_step && part.when != When::soon) return;
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(k));
    step.update(part.unit, part.portion);
  }
  // In random order.
  template <class Chosen>
  void update_all(Step& step, const Chosen& chosen) const {
    const auto begin = std::stable_partition(waiting_.begin(), waiting_.end(),
                                             [&](const Part& part) { return !chosen(part); });
    for (auto part = begin; part != waiting_.end(); ++part) {
      const auto left = static_cast<std::uint64_t>(waiting_.end() - part);
      std::iter_swap(part, part + static_cast<std::ptrdiff_t>(dice_.below(left)));
      step.update(part->unit, part->portion);
    }
    waiting_.erase(begin, waiting_.end());
  }

  RandomPolicyOptions options_;
  // Of the program that is being said.
  mutable Dice dice_;
  mutable int layers_ = 0, head_ = 0, micro_batches_ = 0, group_ = 1;
  mutable Order order_ = Order::mixed;
  mutable bool changes_order_ = false, is_first_step_ = true;
  mutable double updates_ = 0, waits_ = 0, splits_ = 0, pays_ = 0;
  mutable std::vector<Part> parts_;             // of all units
  mutable std::vector<Part> waiting_;           // gradient complete, not updated
  mutable std::vector<int> at_;                 // by micro-batch: its next place
  mutable std::vector<int> done_;               // by place: visits
  mutable std::vector<int> summed_;             // by layer: gradients of weights
  mutable std::vector<std::vector<int>> owed_;  // by layer: micro-batches whose weights come later
};

}  // namespace

std::unique_ptr<Policy> make_random_policy(const RandomPolicyOptions& options) {
  return std::make_unique<RandomPolicy>(options);
}

}  // namespace spillway::test
