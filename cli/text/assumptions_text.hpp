// What a prediction rests on beside what the machine file knows, in words: values that are assumed,
// and how far they move the step; what lies beyond its tables.
#pragma once

#include <string>
#include <vector>

#include "experiments/questions/assumptions.hpp"

namespace spillway::cli {

// "extrapolated: 24 drives: ssd.by_count has rows for 1 to 12", a line each after `margin`; empty
// where there is nothing to say.
std::string extrapolation_text(const std::vector<std::string>& extrapolates,
                               const std::string& margin = "");

// Which assumed values move the step by more than 1 %, and how far; how many do not.
std::string effects_text(const AssumptionEffects& effects);
// The same where their effects were not looked for.
std::string assumed_text(const std::vector<AssumedValue>& assumed);

// A line where times are compared: how many values that may move them a machine file assumes; empty
// where it assumes none.
std::string assumed_note(const Machine& machine);
// The same of several machines, which assume from `least` to `most` values.
std::string assumed_note(std::size_t least, std::size_t most);
std::size_t assumed_count(const Machine& machine);

}  // namespace spillway::cli
