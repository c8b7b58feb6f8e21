// The folder of one training run: who the run is, where its state is, metrics, trace, weights. It
// is opened once, locked, and used by descriptor.
//
// What may go on from where:
//   * a folder that was renamed is the run itself;
//   * one that was copied (cp -r, another file system, a backup put back), with its state inside
//   it,
//     becomes a run of its own, with a new id, once that state has proved whole;
//   * state outside the folder belongs to one folder. Where another one claims it, both are named
//   and
//     the run is refused, unless it is given SSD directories of its own, which are then filled from
//     that state, or takes it over.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/directory.hpp"
#include "base/new_file.hpp"
#include "exec/run/run_identity.hpp"
#include "exec/run/run_lock.hpp"
#include "exec/run/saved_run.hpp"
#include "exec/store/training_store.hpp"

namespace spillway {

// What a resumed run is told beside its folder.
struct ResumeRequest {
  std::vector<std::filesystem::path> ssd;  // directories given anew; empty: those it has
  bool take_over = false;                  // state that another folder claims
  // Of checking a copy: bytes checked so far and in all; may be empty.
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  RingFactory make_ring = make_usual_ring;  // that it is read through
};

struct ResumeState {
  std::optional<ResumePoint> point;        // none: it ended before its first commit
  std::vector<std::filesystem::path> ssd;  // where the state is to be from now on; empty: not said
  std::string note;                        // what the user should know, in a line; may be empty
};

class RunFolder {
 public:
  // Creates `path`, or a folder of its own in runs/, named after `name` (which may come from a
  // file) and the time. Throws InputError when `path` is there and not empty, or cannot be created.
  static RunFolder create(const std::string& path, const std::string& name,
                          const Surroundings& here = this_computer());
  // Throws InputError where create() would because of what is there. Changes nothing.
  static void require_new(const std::string& path);
  // The folder of an earlier run, to go on in: it stays whatever happens. Throws InputError when it
  // holds no run, MachineError when a run is at work in it.
  static RunFolder open(const std::string& path, bool take_over = false,
                        const Surroundings& here = this_computer());
  // The same, to look at what is in it, also while a run is at work there: it is neither locked nor
  // changed, and find() takes the place of resume().
  static RunFolder look(const std::string& path, const Surroundings& here = this_computer());
  // Unless kept, removes what this object created and the files a run writes before it starts;
  // nothing else.
  ~RunFolder();
  RunFolder(RunFolder&&) noexcept;
  RunFolder& operator=(RunFolder&&) = delete;

  // Finds the state of the run and makes it the run's own where that is needed (above). Throws
  // InputError naming the other folder where the state is claimed twice, and what is missing or
  // damaged.
  ResumeState resume(const ResumeRequest& request);

  // What resume() would go on from. Where the state is claimed twice, the note says so.
  ResumeState find(const std::vector<std::filesystem::path>& ssd) const;

  // What run.json holds, to be changed and saved.
  SavedRun& saved() { return saved_; }
  const SavedRun& saved() const { return saved_; }
  void save();
  // Who the run is, for its store.
  RunIdentity identity() const { return {saved_.id, home_}; }
  // From here on the state is there.
  void remember_store(const StoreLocation& location);

  const std::filesystem::path& path() const { return path_; }  // as it was named
  const Directory& directory() const { return *directory_; }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }  // to be shown
  FilePlace place(const std::string& name) const { return {*directory_, name}; }      // to write
  // Creates, where it is missing, and returns the folder of the ssd tier where the user names none.
  std::filesystem::path make_ssd_folder();
  // Training starts: from here on the folder stays.
  void keep() { keep_ = true; }

  static constexpr const char* metrics = "metrics.jsonl";
  // Made of the metrics (experiments/watch/run_records.hpp).
  static constexpr const char* metrics_table = "metrics.csv";
  static constexpr const char* samples = "samples.txt";
  static constexpr const char* loss_curve = "loss.svg";
  static constexpr const char* tensorboard = "events.out.tfevents.";  // how their names begin
  static constexpr const char* machine = "machine.toml";
  static constexpr const char* model = "model.toml";
  static constexpr const char* config = "config.toml";
  static constexpr const char* weights = "model.safetensors";
  static constexpr const char* trace = "trace.json.gz";
  static constexpr const char* ssd = "ssd";

 private:
  RunFolder(std::filesystem::path path, const Surroundings& here);
  void enter(bool take_over, bool anew);
  void make_name_durable() const;
  ResumeState resume_inside(StoreLocation location, const ResumeRequest& request);
  ResumeState resume_outside(StoreLocation location, const ResumeRequest& request);
  void make_own(const StoreLocation& location);
  void remove_unfinished_files() const;

  std::filesystem::path path_;
  Surroundings here_;
  std::optional<Directory> directory_;
  std::optional<RunLock> lock_;
  SavedRun saved_;
  RunHome home_;                    // of the folder now
  std::filesystem::path existing_;  // the nearest folder above (or at) path_ that was there before
  bool keep_ = true;
  bool made_ssd_ = false;
};

// The nearest path at or above `path` that exists.
std::filesystem::path nearest_existing(const std::filesystem::path& path);

// The committed state of a run whose folder is not to be changed: to be looked at, or removed.
// Throws InputError when there is none.
struct StateOfRun {
  ResumePoint point;
  // The other folder that claims the same state; empty: nobody does.
  std::string also_of;
};
StateOfRun find_state(const Directory& folder, const SavedRun& run,
                      const Surroundings& here = this_computer());

}  // namespace spillway
