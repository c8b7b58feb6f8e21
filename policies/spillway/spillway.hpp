// The policy `spillway`: any plan, as settings.
#pragma once

#include <string>

#include "policies/movement/plan.hpp"

namespace spillway {

// The policy with that plan, as text: "spillway:order.row=4,parameters.rest=host:0.5+ssd:0.5".
// Canonical. Every policy whose order of work its plan says is a special case.
std::string spillway_policy(const Plan& plan);

}  // namespace spillway
