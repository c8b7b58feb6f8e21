// Plans between Python and C++.
#pragma once

#include "policies/movement/plan.hpp"
#include "python/core.hpp"

namespace spillway::python {

// Of what a policy's plan() returns: a spillway.Plan.
Plan plan_in(const nb::object& answer);

}  // namespace spillway::python
