// What measurements share: the middle of several, and the processor time used.
#pragma once

#include <vector>

namespace spillway {

double median(
    std::vector<double> values);  // 0 of none; of an even number the mean of the middle two

// Of this process, user and system. Throws MachineError where the system does not say.
double processor_seconds();

}  // namespace spillway
