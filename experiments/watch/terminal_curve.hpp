// The loss of a run as a small curve of characters.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "experiments/watch/run_history.hpp"

namespace spillway {

// `rows` lines of at most `width` characters of ASCII: a scale at the left, '*' where the average
// of the training loss is, 'o' where an evaluation's is; a last line with the steps. Empty where
// there is too little room, or no two steps.
std::vector<std::string> loss_curve(const RunHistory& history, std::size_t width, std::size_t rows);

}  // namespace spillway
