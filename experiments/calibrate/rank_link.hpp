// How fast ranks reach each other: measured between the processes that are to train.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/ranks/rank_gpus.hpp"
#include "exec/ranks/rank_team.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

struct RankLink {
  double bandwidth = 0;         // bytes/s each way between a rank and the others together
  std::int64_t latency_ns = 0;  // of a step of a collective
  double cores = 0;             // that a rank's collective keeps busy; of ranks on GPUs none
};

// By all ranks at once, in a quarter of a second; all get the same. The bandwidth is that of large
// collectives, of a gather and of a sum, and so are the cores: processor time over elapsed time.
// The latency is what is left of a small one.
RankLink measure_link(RankTeam& team);

// The same between the ranks' GPUs, in GPU memory: of collectives, or, of stages of a pipeline, of
// messages from one to the next.
RankLink measure_link(RankTeam& team, RankGpus& gpus);

// The first as a table: gathers and sums of whole tensors of 64 KiB to 32 MiB, in fp32, some
// seconds at the most. For `cluster.collectives` of a machine whose GPUs are these ranks.
std::vector<Machine::Cluster::Collective> measure_collectives(RankTeam& team);

}  // namespace spillway
