// The least time that a schedule can take.
#pragma once

#include "policies/schedule/schedule.hpp"

namespace spillway {

// A lower bound, in seconds, of the steps of a schedule together, without the first one and without
// what comes after the last one where there are more than two: the longest chain of tasks that wait
// for each other or for their lane, each as fast as alone, or the time of the resource that is
// asked for most. Throws InputError where the machine file does not give a rate.
double least_seconds(const Schedule& schedule);

}  // namespace spillway
