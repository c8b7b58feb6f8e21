// A problem, as policies and results have it in Python.
#pragma once

#include "policies/cost/costs.hpp"
#include "python/core.hpp"

namespace spillway::python {

// Costs that a policy is given while it plans. They refer to a problem that goes away: used later,
// they say so.
class LentCosts {
 public:
  explicit LentCosts(const Costs& costs) : costs_(&costs) {}
  void end() { costs_ = nullptr; }
  const Costs& get() const;

 private:
  const Costs* costs_;
};

}  // namespace spillway::python
