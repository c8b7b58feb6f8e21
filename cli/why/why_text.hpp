// Why one plan is faster than another, as text for people.
#pragma once

#include <string>

#include "experiments/why/why.hpp"

namespace spillway::cli {

// Tables of both plans side by side, then the settings in which they differ, one at a time.
std::string why_text(const Why& why);

}  // namespace spillway::cli
