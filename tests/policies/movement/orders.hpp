// Orders of work for tests of derived movement, and a policy that says one of them under a plan.
#pragma once

#include <functional>
#include <utility>

#include "policies/common/policy.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway::test {

using Order = std::function<void(Step&)>;

// All micro-batches of a layer, ascending, before the next layer; each layer's update after its
// backward but for the fraction `delayed`, which comes before its next forward.
inline Order vertical(double delayed = 0) {
  return [delayed](Step& step) {
    for (const int layer : step.upward()) {
      step.update(layer, {0, delayed});
      for (const int m : step.ascending()) step.forward(layer, m);
    }
    for (const int layer : step.downward()) {
      for (const int m : step.ascending()) step.backward(layer, m);
      step.update(layer, {delayed, 1});
    }
    for (const int unit : step.outer()) step.update(unit);
  };
}

// One micro-batch through all layers before the next one; updates as gradients become complete.
inline void horizontal(Step& step) {
  for (const int m : step.ascending()) {
    for (const int layer : step.upward()) step.forward(layer, m);
    for (const int layer : step.downward()) {
      step.backward(layer, m);
      if (m + 1 == step.micro_batches()) step.update(layer);
    }
  }
  for (const int unit : step.outer()) step.update(unit);
}

inline OrderOfWork work_of(const Problem& problem, const Plan& plan, int steps,
                           const Order& order) {
  Step step(problem, plan);
  for (int s = 0; s < steps; ++s) {
    step.begin(s);
    order(step);
    step.end();
  }
  return step.finish();
}

class PlannedPolicy : public Policy {
 public:
  PlannedPolicy(Plan plan, Order order)
      : Policy("planned", "none", "an order under a plan"),
        plan_(std::move(plan)),
        order_(std::move(order)) {}
  Plan plan(const Problem&, const Costs&) const override { return plan_; }
  void step(Step& step) const override { order_(step); }

 private:
  Plan plan_;
  Order order_;
};

inline Schedule schedule_of(const Problem& problem, const Plan& plan, const Order& order,
                            int steps) {
  PlannedPolicy policy(plan, order);
  return build_schedule(problem, policy, steps);
}

}  // namespace spillway::test
