// Where each of several ranks has its store: in a folder of its own below each SSD directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "exec/store/store_location.hpp"

namespace spillway {

// DIR/rank-R of DIR, or of a DIR/rank-0 that is named itself.
std::filesystem::path place_of_rank(const std::filesystem::path& directory, int rank);
StoreLocation place_of_rank(StoreLocation of_first, int rank);
// The store of `rank`, where that of another one of the ranks is `of_other`.
StoreLocation place_beside(StoreLocation of_other, int rank);
// Of a run of so many ranks, in their order, where that of one of them, or the only one, is `one`.
std::vector<StoreLocation> stores_of_ranks(const StoreLocation& one, std::int64_t ranks);

}  // namespace spillway
