// RUN/run.json: who the run is, what it was started with and where its store is, so that `--resume`
// needs no other option. Always whole: a new version takes the place of the old one once it is
// durable.
//
// What lies inside the run's folder is written relative to it, so that the folder can be moved and
// copied with all that is in it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.hpp"
#include "exec/run/run_identity.hpp"
#include "exec/store/store_location.hpp"

namespace spillway {

struct SavedRun {
  RunId id;
  // Ids that files of its store may still have, while that is being made its own.
  std::vector<RunId> former_ids;
  RunHome home;                                             // of the folder, when it was saved
  std::map<std::string, std::vector<std::string>> options;  // by the setting's name; as given
  std::optional<StoreLocation> store;  // none: nothing is committed yet, or it was removed
  // Whose that is, where it is another run's, which keeps it; empty: its own.
  RunId store_of;
  bool complete = false;
  // Why there is nothing to go on from, for people; empty while there is, or may be.
  std::string not_resumable;

  // The ids that the files of its store have.
  std::vector<RunId> store_ids() const;

  // Throws InputError when the folder holds no run, or one of another version or damaged.
  static SavedRun load(const Directory& folder);
  // Throws MachineError; what was saved before is then still there.
  void save(const Directory& folder) const;
};

// The same from and to the text of the file. `folder`: absolute; `origin` is named in errors.
SavedRun parse_saved_run(const std::string& text, const std::filesystem::path& folder,
                         const std::string& origin);
std::string saved_run_text(const SavedRun& run, const std::filesystem::path& folder);

inline constexpr const char* saved_run_file = "run.json";

// Whether `path` (absolute, normal) is inside `folder`.
bool is_inside(const std::filesystem::path& path, const std::filesystem::path& folder);

}  // namespace spillway
