// What a plan recomputes in backward: so that policies can be compared with as much of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "policies/workload/problem.hpp"

namespace spillway {

enum class Recomputation : std::uint8_t {
  off,     // nothing: all that is inside layers is saved
  needed,  // nothing is saved inside layers, and what backward needs of it is computed again
  full,    // nothing is saved inside layers, and whole layers are computed again
  some     // some of it is saved
};

const char* to_string(Recomputation recomputation);
// Of off, needed, full; nothing for another text.
std::optional<Recomputation> parse_recomputation(const std::string& text);

// Of a policy with settled options. The last layer, whose backward follows its forward at once, is
// left out, and so are frozen layers, which have no backward.
Recomputation recomputation_of(const Problem& problem, const std::string& policy);

// The policy, whose option `recompute` is set so; as it is where it has none or another domain.
// Throws InputError where the text sets the option otherwise.
std::string with_recomputation(const std::string& policy, Recomputation recomputation);

}  // namespace spillway
