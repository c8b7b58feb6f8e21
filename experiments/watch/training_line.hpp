// Where a training is, in one line that fits: what matters most stays the longest where room is
// short.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "experiments/watch/run_history.hpp"

namespace spillway {

struct LineField {
  std::string text;
  int rank = 0;  // 0 matters most
};

// As many fields as fit in `width` characters, those of the lowest rank, in the order given, two
// spaces between them. Where not even the first of them fits, it is cut.
std::string fitted_line(const std::vector<LineField>& fields, std::size_t width);

// Step, loss, its average, evaluation loss, gradient norm, learning rate, tokens/s, MFU, power,
// memory, what each link carries, time left. `history` has at least one step.
std::string training_line(const RunHistory& history,
                          std::size_t width = std::numeric_limits<std::size_t>::max());

// "1:02:03", "4:05", "0:07"
std::string format_clock(double seconds);
// "12.3k", "1.20M": a number in at most five characters.
std::string short_number(double value);

}  // namespace spillway
