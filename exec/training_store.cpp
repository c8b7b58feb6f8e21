#include "exec/training_store.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/training_record.hpp"

namespace spillway {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> absolute(const std::vector<fs::path>& directories) {
  std::vector<fs::path> result;
  for (const fs::path& directory : directories) {
    std::error_code error;
    const fs::path canonical = fs::canonical(directory, error);
    result.push_back(error ? fs::absolute(directory) : canonical);
  }
  return result;
}

// A run that held the store until a moment ago may have committed more. Call it with the files
// locked.
void require_newest(const ResumePoint& point) {
  const ResumePoint now = find_resume_point(point.location);
  if (now.record.epoch == point.record.epoch && now.record.version == point.record.version) return;
  throw MachineError(
      fmt::format("another run has committed step {} to {} meanwhile", now.record.version,
                  point.location.directories[0].string()),
      "let one run at a time go on with it; to go on from that step, --resume again");
}

// Refuses to write over a committed training, unless it is an earlier state of this very one.
void require_free(const StoreLocation& location, const TrainingStoreOptions& options) {
  const fs::path file = record_file(location.directories[0], location.generation);
  if (options.overwrite) return;
  if (!fs::exists(file)) {
    // A stripe without the first one, which goes last when a store is removed: of a stripe set that
    // begins in another directory.
    if (fs::exists(store_file(location.directories[0], 0, location.generation))) return;
    for (std::size_t i = 1; i < location.directories.size(); ++i) {
      const fs::path stripe = store_file(location.directories[i], i, location.generation);
      if (!fs::exists(stripe)) continue;
      throw InputError(fmt::format("{} belongs to another training, whose first SSD directory is "
                                   "not {}",
                                   stripe.string(), location.directories[0].string()),
                       "remove that training's store (`spillway store remove`), name other --ssd "
                       "directories, or --overwrite it if it is of no use any more");
    }
    return;
  }
  const std::optional<CommitRecord> record = read_newest_record(file);
  if (!record || record->version == 0) return;
  if (options.resume && same_training(record->identity.training, options.training) &&
      record->version <= options.resume->record.version) {
    return;
  }
  throw InputError(
      fmt::format("{} holds another training, committed at step {}",
                  location.directories[0].string(), record->version),
      "go on with it (--resume with its --run), remove it (`spillway store remove`), or name other "
      "--ssd directories");
}

}  // namespace

std::vector<fs::path> files_of(const StoreLocation& location) {
  std::vector<fs::path> files;
  const auto add = [&](const fs::path& file) {
    std::error_code ignored;
    if (fs::exists(file, ignored)) files.push_back(file);
  };
  if (location.directories.empty()) return files;
  add(record_file(location.directories[0], location.generation));
  for (std::size_t i = location.directories.size(); i > 0; --i) {
    add(store_file(location.directories[i - 1], i - 1, location.generation));
  }
  return files;
}

ResumePoint find_resume_point(const StoreLocation& location) {
  SPILLWAY_ASSERT(!location.directories.empty());
  const fs::path file = record_file(location.directories[0], location.generation);
  std::optional<CommitRecord> record = read_newest_record(file);
  if (!record) {
    throw InputError(fmt::format("{} holds no whole commit record", file.string()),
                     "the training ended before its first commit, or the file is damaged: start "
                     "the training again");
  }
  return {location, std::move(*record)};
}

TrainingStore::TrainingStore(std::span<const Schedule* const> schedules,
                             TrainingStoreOptions options)
    : options_(std::move(options)) {
  const StoreLayout layout(schedules, options_.durable);
  identity_.training = options_.training;
  identity_.stripe_bytes = SsdStoreOptions{}.stripe_bytes;
  identity_.store_bytes = layout.bytes();
  identity_.parts.assign(layout.parts().begin(), layout.parts().end());
  boundaries_ = layout.boundaries();
  captured_bytes_ = layout.captured_bytes() / 2;
  if (options_.resume) {
    base_version_ = options_.resume->record.version;
    previous_ = options_.resume->location;
  }
  if (layout.bytes() == 0) return;
  if (options_.directories.empty()) {
    throw InputError(
        fmt::format("policy {} {}, but no directory is given for it", schedules[0]->policy(),
                    schedules[0]->use(Tier::ssd).peak_bytes > 0 ? "uses the ssd tier"
                                                                : "is to commit to an SSD"),
        "--ssd DIR[,DIR]: directories on the drives to use");
  }
  location_.directories = absolute(options_.directories);
  for (const fs::path& directory : location_.directories) {
    identity_.directories.push_back(directory.string());
  }
  chunks_ =
      std::make_unique<ChunkTable>(boundaries_, identity_.stripe_bytes, identity_.store_bytes);
  create();
}

// Whether the committed state lies exactly where this training wants it.
bool TrainingStore::opens_again(std::span<const Schedule* const>) {
  if (!options_.resume || !options_.durable) return false;
  const auto& [location, record] = *options_.resume;
  const StoreIdentity& old = record.identity;
  std::error_code error;
  if (record.version == 0 || absolute(location.directories) != location_.directories ||
      old.stripe_bytes != identity_.stripe_bytes || old.store_bytes != identity_.store_bytes ||
      old.parts != identity_.parts ||
      record_slot_bytes(identity_, *chunks_) * 2 !=
          fs::file_size(record_file(location.directories[0], location.generation), error)) {
    return false;
  }
  return adopt_checksums(record, *chunks_);
}

void TrainingStore::create() {
  SsdStoreOptions with;
  with.chunks = chunks_.get();
  with.make_ring = options_.make_ring;
  if (options_.durable) with.record_bytes = 2 * record_slot_bytes(identity_, *chunks_);
  in_place_ = opens_again({});
  if (in_place_) {
    location_.generation = options_.resume->location.generation;
    base_epoch_ = options_.resume->record.epoch;
    with.reuse = with.keep = true;
    previous_.reset();
  } else {
    if (previous_) {
      const std::vector<fs::path> old = absolute(previous_->directories);
      const bool shared = std::any_of(old.begin(), old.end(), [&](const fs::path& directory) {
        return std::find(location_.directories.begin(), location_.directories.end(), directory) !=
               location_.directories.end();
      });
      if (shared) location_.generation = 1 - previous_->generation;
    }
    require_free(location_, options_);
  }
  with.generation = location_.generation;
  store_ = std::make_unique<SsdStore>(location_.directories, identity_.store_bytes, with);
  if (in_place_) require_newest(*options_.resume);
}

StateAtRest TrainingStore::at_rest(const Schedule& schedule, Device& device) {
  return {schedule, device, store_.get(), chunks_.get(), identity_.parts};
}

void TrainingStore::fill(const Schedule& schedule, Device& device, const StateValues& initial) {
  ModelAccess access(at_rest(schedule, device), static_cast<int>(base_epoch_ & 1));
  if (base_version_ == 0) {
    access.write(initial);
    if (options_.durable) access.commit(identity_, 0, 0);
  } else {
    const CommitRecord& record = options_.resume->record;
    if (in_place_) {
      // The run before may have been killed with its last record in the drive's cache only; what
      // the record before that refers to is overwritten from here on.
      SsdStore::Channel channel(*store_);
      channel.sync();
      channel.sync_record();
    }
    OpenStore old;
    if (!in_place_) {
      const StoreLocation& from = options_.resume->location;
      SsdStoreOptions with;
      with.make_ring = options_.make_ring;
      old = open_store(record, from.directories, from.generation, with);
      require_newest(*options_.resume);
    }
    StateReader reader(in_place_ ? *store_ : *old.store, record,
                       in_place_ ? *chunks_ : *old.chunks);
    access.write(
        [&](std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to) {
          reader.read(unit, moment, first, count, to);
        },
        in_place_ ? ModelAccess::Homes::not_on_ssd_optimizer_state : ModelAccess::Homes::all);
    if (options_.durable && !in_place_) {
      access.capture(static_cast<int>(base_epoch_ & 1));
      access.commit(identity_, base_version_, base_epoch_);
    }
  }
}

void TrainingStore::remove_previous() {
  if (!previous_) return;
  if (options_.durable) store_->set_keep(true);  // now it is the only one
  for (const fs::path& file : files_of(*previous_)) {
    std::error_code ignored;
    fs::remove(file, ignored);
  }
  previous_.reset();
}

}  // namespace spillway
