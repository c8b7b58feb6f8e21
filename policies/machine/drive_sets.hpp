// Sets of drives: those of one set are striped together, and sets differ in speed. The first is
// `ssd` of a machine file, the others `ssd2`, `ssd3` and so on.
#pragma once

#include <array>
#include <string>

namespace spillway {

inline constexpr int most_drive_sets = 4;

// "ssd", "ssd2", ...: the sections of machine files, the memories and the options of the command
// line are called so.
inline constexpr std::array<const char*, most_drive_sets> drive_set_names = {"ssd", "ssd2", "ssd3",
                                                                             "ssd4"};
inline const char* drive_set_name(int set) {
  return drive_set_names[static_cast<std::size_t>(set)];
}
// "ssd2.read"
inline std::string drive_set_key(int set, const std::string& key) {
  return std::string(drive_set_name(set)) + "." + key;
}

}  // namespace spillway
