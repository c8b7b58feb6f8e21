// Hints for a name that is not known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace spillway {

// The known names that look like `name`, nearest first, at most three: a few letters apart (a swap
// of neighbours counts as one), or equal to the part after the last dot ("memory" -> "gpu.memory").
std::vector<std::string> near_names(std::string_view name, const std::vector<std::string>& known);

// `did you mean gpu.memory?`, or, where nothing is near, `known: a, b, c`.
std::string unknown_name_hint(std::string_view name, const std::vector<std::string>& known);

}  // namespace spillway
