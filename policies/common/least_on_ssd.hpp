// Placements of what a policy leaves open that put as little on the SSD as fits.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "policies/common/policy.hpp"

namespace spillway {

// An option whose value is a share on the SSD, tried in so many parts.
struct OpenShare {
  const char* option;
  int parts;
};

// Nothing of all on the SSD, then more and more of the first, of the second beside all of the
// first, and so on. `value` writes a share.
std::vector<PolicyOptions> rising_on_ssd(const std::vector<OpenShare>& open,
                                         const std::function<std::string(double)>& value);

}  // namespace spillway
