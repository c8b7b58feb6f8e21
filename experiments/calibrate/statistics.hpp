// What measurements share: the middle and the mean of several, and the processor time used.
#pragma once

#include <vector>

namespace spillway {

double median(
    std::vector<double> values);  // 0 of none; of an even number the mean of the middle two

// The mean without a tenth of the values, rounded, at either end; 0 of none. Where a machine has
// two speeds in turn, the median is one of them or the other.
double trimmed_mean(std::vector<double> values);

// Of this process, user and system. Throws MachineError where the system does not say.
double processor_seconds();

}  // namespace spillway
