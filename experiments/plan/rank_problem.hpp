// The problem of one of several ranks, from that of a whole machine: one place for every command.
#pragma once

#include "policies/workload/problem.hpp"
#include "policies/workload/workload_fields.hpp"

namespace spillway {

// A machine of several GPUs is taken as a whole where `given` does not say how many ranks train.
void use_all_gpus(const Machine& machine, WorkloadTexts& given);

// Leaves of the problem's machine what one rank has of it (policies/machine/rank_share.hpp). Throws
// InputError where the problem is wrong.
void take_rank_share(Problem& problem);

}  // namespace spillway
