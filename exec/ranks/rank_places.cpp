#include "exec/ranks/rank_places.hpp"

namespace spillway {

std::filesystem::path place_of_rank(const std::filesystem::path& directory, int rank) {
  const std::filesystem::path plain =
      directory.has_filename() ? directory : directory.parent_path();
  const std::filesystem::path above = plain.filename() == "rank-0" ? plain.parent_path() : plain;
  return above / ("rank-" + std::to_string(rank));
}

StoreLocation place_of_rank(StoreLocation of_first, int rank) {
  for (std::filesystem::path& directory : of_first.directories)
    directory = place_of_rank(directory, rank);
  return of_first;
}

StoreLocation place_beside(StoreLocation of_other, int rank) {
  for (std::filesystem::path& directory : of_other.directories)
    directory = directory.parent_path() / ("rank-" + std::to_string(rank));
  return of_other;
}

std::vector<StoreLocation> stores_of_ranks(const StoreLocation& one, std::int64_t ranks) {
  if (ranks == 1) return {one};
  std::vector<StoreLocation> all;
  for (int rank = 0; rank < static_cast<int>(ranks); ++rank) all.push_back(place_beside(one, rank));
  return all;
}

}  // namespace spillway
