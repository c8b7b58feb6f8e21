// Finding the store of a run again, and settling whose it is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/run/run_identity.hpp"
#include "exec/store/store_location.hpp"
#include "exec/store/training_store.hpp"

namespace spillway {

// Where the store of a run is, whose files have one of these ids: where it was written down, or,
// where a drive is mounted under another name, in `given`. The stripes are recognised by what their
// headers say, whatever the order of the directories. A later store in `given` that the run does
// not know of may be what a broken move left: it is found with `take_over` only. Throws InputError
// when it is not there, or an older one is.
StoreLocation find_store(const StoreLocation& written_down, const std::vector<RunId>& ids,
                         const std::vector<std::filesystem::path>& given, bool take_over);

// Another folder than `home` that files of the store may belong to, be it that it cannot be seen
// any more; nothing where there is none.
std::optional<RunHome> claimed_by(const StoreLocation& location, const RunHome& home,
                                  const Surroundings& here);

// Writes `to` into the headers of all files of the store (also of one that a crash left beside it)
// that have one of the ids `from`, or that of `to` already. Throws MachineError where one is in
// use.
void give_store(const StoreLocation& location, const std::vector<RunId>& from,
                const RunIdentity& to);

// Reads all of the committed state. Throws InputError, naming the store as `what`, when any of it
// cannot be read or does not match its checksum.
void require_whole(const ResumePoint& point,
                   const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                   const std::string& what, const RingFactory& make_ring = make_usual_ring);

}  // namespace spillway
