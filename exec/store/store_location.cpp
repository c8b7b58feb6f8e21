#include "exec/store/store_location.hpp"

#include <sys/stat.h>

#include <map>
#include <set>
#include <system_error>

namespace spillway {

DriveRoom room_on(const DriveFolders& drives) {
  std::map<dev_t, std::filesystem::path> places;
  std::vector<std::set<dev_t>> of_set(drives.set_count());
  std::map<dev_t, std::uint64_t> sets_on;
  for (std::size_t set = 0; set < of_set.size(); ++set) {
    for (const std::filesystem::path& directory : drives.of_set(set)) {
      struct stat status {};
      if (stat(directory.c_str(), &status) != 0) continue;
      places.emplace(status.st_dev, directory);
      if (of_set[set].insert(status.st_dev).second) ++sets_on[status.st_dev];
    }
  }
  DriveRoom room;
  for (const std::set<dev_t>& file_systems : of_set) {
    std::uint64_t free = 0;
    for (const dev_t one : file_systems) {
      std::error_code error;
      const std::filesystem::space_info space = std::filesystem::space(places.at(one), error);
      if (!error) free += space.available / sets_on.at(one);
    }
    room.free.push_back(free);
    room.file_systems.push_back(static_cast<std::int64_t>(file_systems.size()));
  }
  return room;
}

}  // namespace spillway
