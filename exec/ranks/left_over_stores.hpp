// What a run has left in its SSD directories of stores that it does not use any more: of another
// number of ranks, of a change that was killed, of directories that it has moved from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "exec/store/training_store.hpp"

namespace spillway {

// The stores that a run of `ranks` has, where `first` is that of its first or only rank. A store
// that was made later and has committed more than `step` is nothing that the run has left: its
// folder may have been put back from a backup.
struct StoresInUse {
  StoreLocation first;
  std::int64_t ranks = 1;
  std::int64_t step = 0;
};

// Removes all files of stores of these runs in the directories and in the folders of ranks below
// them, but those in use; where none are given: all. A directory may be that of a rank: those of
// the others are beside it. Of each store the record goes first and the first stripe last. Returns
// what was removed. Throws MachineError where a file is in use by another process.
std::vector<std::filesystem::path> remove_left_over_stores(
    const std::vector<std::filesystem::path>& directories, const std::vector<RunId>& runs,
    const std::optional<StoresInUse>& in_use);

}  // namespace spillway
