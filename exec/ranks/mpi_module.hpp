// The MPI module, seen from the program: loaded only where the program was started by mpirun,
// absent in builds without MPI.
#pragma once

#include <memory>
#include <optional>

#include "exec/ranks/transport.hpp"

namespace spillway {

struct LaunchedRank {
  int rank = 0, size = 1;
};
// What mpirun has put into the environment of a process that it started with others; nothing where
// it did not, or the process is alone.
std::optional<LaunchedRank> launched_rank();

// Starts MPI, together with all other ranks. Throws MachineError where there is no module, or its
// library cannot be called by several threads.
std::unique_ptr<RankTransport> start_mpi();

}  // namespace spillway
