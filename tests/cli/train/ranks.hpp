// mpirun -n RANKS spillway train, as tests start it, watch it and kill it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.hpp"

namespace spillway::test {

std::vector<std::string> mpirun(int ranks);

// Warns why where several ranks cannot be started here.
bool ranks_are_skipped();

// The program by so many processes, one of them without mpirun; and where it has to end well.
Outcome run_by(int ranks, const std::vector<std::string>& words);
Outcome succeed(int ranks, const std::vector<std::string>& words);

// A training of the tiny model in batches of four micro-batches, to `folder`/`run`.
std::vector<std::string> rank_training(const TemporaryFolder& folder, const std::string& run,
                                       int steps);

// The last line of the run's metrics.
nlohmann::json last_event(const std::filesystem::path& run);

// The processes that mpirun has started, by rank; empty while they are not all there.
std::vector<pid_t> ranks_of(pid_t parent, int ranks);

// Whether the process still runs, a moment after mpirun has ended. One that is dead and that
// nobody has asked for yet, which is for whoever inherits it to do, does not.
bool is_there(pid_t process);

// Waits until so many steps are committed; false: the program ended before.
bool wait_for_commit(Program& program, const std::filesystem::path& run, int step);

// Waits for a program that was asked to stop, and checks that its run ended by that, with all of
// its steps committed.
void check_stopped(Program& program, const std::filesystem::path& run);

}  // namespace spillway::test
