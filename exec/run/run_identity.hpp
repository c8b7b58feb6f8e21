// Who a store belongs to: the run (by a random id that its folder keeps, whatever the folder is
// called) and where that folder is. Copying a folder copies the id; the folder itself then tells
// the original from the copy.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/directory.hpp"

namespace spillway {

// Of a run, for as long as it lives.
using RunId = std::string;  // 32 hexadecimal digits
RunId new_run_id();
bool is_run_id(const std::string& text);

// Where the folder of a run is. The file system's id and the folder's inode stay when the folder is
// renamed, and differ in a copy.
struct RunHome {
  std::string host;  // name of the computer
  std::string path;  // absolute, links resolved
  std::uint64_t file_system = 0;
  std::uint64_t inode = 0;
  bool operator==(const RunHome&) const = default;
};

// What decides who may go on, as this computer sees it; tests pretend to be another one.
struct Surroundings {
  std::string host;
  // Whether files there may be in use by other computers as well (NFS, SMB, Lustre ...).
  bool (*is_shared)(int descriptor);
};
Surroundings this_computer();

// Of the directory `folder`, which exists. Throws MachineError.
RunHome home_of(const std::filesystem::path& folder, const Surroundings& here);
RunHome home_of(const Directory& folder, const Surroundings& here);

// What a folder is to the home that was written down when its run was last at work.
enum class Relation : std::uint8_t {
  same,      // the folder itself, perhaps renamed
  put_back,  // another folder in its place
  moved,     // the other one is gone: this folder, elsewhere, is what is left
  copied,    // the other one is there, with the run's id
  unknown,   // the other one is on another computer
};
Relation relation(const RunHome& written_down, const RunHome& now, const RunId& id);

std::string to_text(const RunHome& home);  // HOST:PATH, for messages

// The id in the run.json of a folder; empty where there is none.
RunId id_of_run_in(const std::filesystem::path& folder);

struct RunIdentity {
  RunId id = RunId(32, '0');  // of no run
  RunHome home;
};

// Of a training that has no folder: an id of its own and no home.
RunIdentity homeless_run();

}  // namespace spillway
