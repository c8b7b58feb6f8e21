// The store of one training: made anew, opened again where a committed training goes on as it was,
// or made anew and filled from a committed one that had another policy, placement or stripe set.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/run/model_access.hpp"
#include "exec/store/chunk_table.hpp"
#include "exec/store/commit_points.hpp"
#include "exec/store/commit_record.hpp"
#include "exec/store/ssd_store.hpp"
#include "exec/store/state_reader.hpp"
#include "exec/store/store_header.hpp"
#include "exec/store/store_layout.hpp"
#include "exec/store/store_location.hpp"

namespace spillway {

// A committed training: its store and the newest record in it.
struct ResumePoint {
  StoreLocation location;
  CommitRecord record;
  RunIdentity run;  // whose store it is
  // It is another run's, which keeps it: it is read, and neither changed nor removed.
  bool foreign = false;
  // The store has a newer commit, which not all ranks have: it does not count.
  bool is_older = false;
  // It is of another number of ranks than go on, and the first one's: each of those may read all of
  // it, none changes or removes it (exec/ranks/shards_at_rest.hpp).
  bool of_other_ranks = false;

  bool only_read() const { return foreign || of_other_ranks; }
};

// Throws InputError when there is no store, nothing was committed to it, or what it says of itself
// does not hold together.
ResumePoint find_resume_point(const StoreLocation& location);
// That of `step`, to be read and not gone on from: the newest commit, or the one before, whose
// state has been overwritten where its checksums say so. Throws InputError, too, where it is
// neither.
ResumePoint find_commit(const StoreLocation& location, std::int64_t step);

struct TrainingStoreOptions {
  std::vector<std::filesystem::path> directories;
  // How many of them are on each set of drives, in their order; empty: all on one.
  std::vector<std::uint32_t> sets = {};
  bool durable = false;
  std::string training;    // JSON, for the record
  RunIdentity run;         // whose the files are
  bool overwrite = false;  // replace a committed training that lies in the directories
  std::optional<ResumePoint> resume;
  const FrozenFiles* frozen = nullptr;  // what of the ssd tier is not in the store; may be null
  std::uint64_t stripe_bytes = SsdStoreOptions{}.stripe_bytes;
  // Makes the rings of all channels.
  RingFactory make_ring = make_usual_ring;
  // Of several ranks that go on: whether all of them go on in place, as this one could. Where one
  // cannot, all make a new store, so that all are of one generation.
  std::function<bool(bool own)> agree_in_place = {};
};

class TrainingStore {
 public:
  // Reserves or opens the files. Throws InputError (other training in the directories, missing
  // files), MachineError (no room, in use).
  TrainingStore(std::span<const Schedule* const> schedules, TrainingStoreOptions options);
  TrainingStore(const TrainingStore&) = delete;
  TrainingStore& operator=(const TrainingStore&) = delete;

  // Null when nothing needs a store: no state on the ssd, not durable.
  SsdStore* store() { return store_.get(); }
  ChunkTable* chunks() { return chunks_.get(); }
  std::span<const StatePart> parts() const { return identity_.parts; }
  const StoreIdentity& identity() const { return identity_; }
  const StoreLocation& location() const { return location_; }
  std::int64_t base_version() const { return base_version_; }
  std::int64_t base_epoch() const { return base_epoch_; }
  // Bytes a commit copies from memory to the store, because they rest there.
  std::uint64_t captured_bytes() const { return captured_bytes_; }

  // What records say of the training from here on, in a text as long as that of the options. Before
  // anything is committed.
  void set_training(std::string text);

  // Puts the states where the schedule wants them, initial or resumed, and commits them if that is
  // needed. What is frozen is initial always. `begun` (may be empty): called once initial ones are
  // there, before they are committed.
  void fill(const Schedule& schedule, Device& device, const StateValues& initial,
            const std::function<void()>& begun = {});

  // The store that was resumed from, if this is another one: its files are still there, in case
  // this one is lost before anybody knows of it.
  const std::optional<StoreLocation>& previous() const { return previous_; }
  void remove_previous();

 private:
  bool opens_again();
  void create();
  void open_previous();
  void remove_stale_record() const;
  void remove_unfinished_move() const;
  void require_replaceable(const std::filesystem::path& file, const StoreHeader* header) const;
  void require_alone() const;
  StateAtRest at_rest(const Schedule& schedule, Device& device);

  TrainingStoreOptions options_;
  std::vector<std::uint64_t> boundaries_;
  StoreIdentity identity_;
  StoreLocation location_;
  std::uint64_t captured_bytes_ = 0;
  std::int64_t base_version_ = 0, base_epoch_ = 0;
  bool in_place_ = false;
  std::unique_ptr<ChunkTable> chunks_;
  std::unique_ptr<SsdStore> store_;
  std::optional<StoreLocation> previous_;
  OpenStore old_;  // the previous store, held until it is removed
};

// The files of a store that are there, in the order in which to remove them: the record first, the
// first stripe last.
std::vector<std::filesystem::path> files_of(const StoreLocation& location);
// Removes the file of a store where it still is the one of that header, and says whether it did;
// one that somebody else has removed meanwhile is none. Throws MachineError where it is in use.
bool remove_store_file(const std::filesystem::path& path, const StoreHeader& header);
// Removes those of them that are the run's, of that generation, and in nobody's use. Throws
// MachineError where one is in use.
std::vector<std::filesystem::path> remove_files(const StoreLocation& location, const RunId& run);

}  // namespace spillway
