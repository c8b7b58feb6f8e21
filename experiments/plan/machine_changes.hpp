// What has to be set so that a machine has more or less of one thing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/message.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// Keys of the machine's file with their values, for `machine` of a Problem: where it is what one of
// several ranks has, the values are those of its node.

// So many drives of a set. With `in_proportion`, their bandwidths are in proportion to their
// number; else the set's table says them.
std::vector<Setting> drive_settings(const Machine& machine, int set, std::int64_t count,
                                    bool in_proportion);

// A link between host and GPU of `factor` times the rate, each way.
std::vector<Setting> link_settings(const Machine& machine, double factor);

// "ssd.count=6"
std::string assignment(const Setting& setting);

}  // namespace spillway
