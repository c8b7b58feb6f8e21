// The critical path and the stalls of a simulation, as text for people.
#pragma once

#include <string>

#include "sim/explanation.hpp"

namespace spillway::cli {

// Tables of a few lines: the largest parts, what is left as one line. Times are per step.
std::string critical_path_text(const Explanation& explanation);
std::string stalls_text(const Explanation& explanation);

// "ssd.read optimizer state 23 %" (of the step); "-" where the GPU is never idle.
std::string longest_stall_text(const Explanation& explanation);

}  // namespace spillway::cli
