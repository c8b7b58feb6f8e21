// Where more of a resource stops paying, as text for people.
#pragma once

#include <string>

#include "experiments/questions/knee.hpp"

namespace spillway::cli {

// A table of all resources, then the points of each. `now` is the plan of the machine as it is.
std::string knee_text(const Candidate& now, const Knees& knees);

}  // namespace spillway::cli
