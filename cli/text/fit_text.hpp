// What fits, by policy, as a table for people.
#pragma once

#include <string>

#include "experiments/questions/fit_table.hpp"

namespace spillway::cli {

std::string answer_text(const FitTable& table);

}  // namespace spillway::cli
