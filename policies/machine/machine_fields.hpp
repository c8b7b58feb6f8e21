// The keys of a machine file, bound to what holds them: reading, --set, writing and listing all go
// by these lists. Internal to policies/.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "policies/machine/config_field.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// In the order of docs/machine-files.md. Lists of tables ([[ssd.by_count]] and others) are apart:
// machine_sections.hpp.
std::vector<Field> fields_of(Machine& machine);

// One drive, and the path that the bytes of all drives take (host memory, RAID, file system): the
// times of both add, up to the ceiling of the lanes that all share. In place of [[ssd.by_count]].
struct DriveScaling {
  double read = 0, write = 0, path = 0, ceiling = 0;  // bytes/s
  bool given() const { return read > 0 && write > 0; }
};
std::vector<Field> fields_of(DriveScaling& scaling);

// Whether a key is of a set of drives beyond the first that the machine does not have.
bool is_of_absent_drives(const std::string& key, const Machine& machine);

// `machine` with the memories that its file gives: without what is set aside of them.
Machine as_in_file(Machine machine);

// What a file says beyond the machine that it describes.
struct MachineFile {
  DriveScaling scaling;         // of one drive, from which ssd.by_count follows
  std::set<std::string> given;  // keys that it, its parts or settings give
};
// As load_machine() in machine.hpp; `file` takes what its file says.
Machine load_machine(const std::string& name_or_path, const std::vector<std::string>& overrides,
                     MachineFile& file);

}  // namespace spillway
