#include "exec/training_store.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "base/errors.hpp"
#include "exec/file_descriptor.hpp"
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

// The same folder, however it is reached (links, bind mounts).
bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return a == b || (fs::equivalent(a, b, error) && !error);
}

bool share_a_folder(const StoreLocation& a, const StoreLocation& b) {
  return std::any_of(a.directories.begin(), a.directories.end(), [&](const fs::path& one) {
    return std::any_of(b.directories.begin(), b.directories.end(),
                       [&](const fs::path& other) { return same_folder(one, other); });
  });
}

// Who a stripe belongs to stands beside it: the first directory of its stripe set.
fs::path owner_file(const fs::path& directory, std::size_t index, int generation) {
  return fs::path(store_file(directory, index, generation)).replace_extension(".owner");
}

std::optional<fs::path> owner_of(const fs::path& directory, std::size_t index, int generation) {
  std::ifstream in(owner_file(directory, index, generation));
  std::string path;
  if (!std::getline(in, path) || path.empty()) return {};
  return path;
}

// Nothing is committed there, or an earlier state of this very training.
bool is_ours(const fs::path& file, const TrainingStoreOptions& options) {
  const std::optional<CommitRecord> record = read_newest_record(file);
  if (!record || record->version == 0) return true;
  return options.resume && same_training(record->identity.training, options.training) &&
         record->version <= options.resume->record.version;
}

// Refuses to write over a committed training, unless it is an earlier state of this very one.
void require_free(const StoreLocation& location, const TrainingStoreOptions& options) {
  const fs::path file = record_file(location.directories[0], location.generation);
  if (options.overwrite) return;
  for (std::size_t i = 1; i < location.directories.size(); ++i) {
    const std::optional<fs::path> owner = owner_of(location.directories[i], i, location.generation);
    if (!owner || same_folder(*owner, location.directories[0])) continue;
    const fs::path theirs = record_file(*owner, location.generation);
    if (!fs::exists(theirs) || is_ours(theirs, options)) continue;
    throw InputError(
        fmt::format("{} belongs to another training, whose first SSD directory is {}",
                    store_file(location.directories[i], i, location.generation).string(),
                    owner->string()),
        "remove that training's store (`spillway store remove`), name other --ssd directories, or "
        "--overwrite it if it is of no use any more");
  }
  if (!fs::exists(file) || is_ours(file, options)) return;
  const std::optional<CommitRecord> record = read_newest_record(file);
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
    add(owner_file(location.directories[i - 1], i - 1, location.generation));
  }
  return files;
}

void remove_file(const fs::path& file) {
  std::error_code ignored;
  fs::remove(file, ignored);
}

void remove_files(const StoreLocation& location) {
  for (const fs::path& file : files_of(location)) remove_file(file);
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
  identity_.stripe_bytes = options_.stripe_bytes;
  identity_.store_bytes = layout.bytes();
  identity_.parts.assign(layout.parts().begin(), layout.parts().end());
  boundaries_ = layout.boundaries();
  captured_bytes_ = layout.captured_bytes() / 2;
  if (options_.resume) {
    base_version_ = options_.resume->record.version;
    previous_ = options_.resume->location;
  }
  if (layout.bytes() == 0) {
    if (previous_ && base_version_ > 0) open_previous();
    return;
  }
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

TrainingStore::~TrainingStore() {
  if (!store_ || store_->options().keep) return;
  for (std::size_t i = 1; i < location_.directories.size(); ++i) {
    remove_file(owner_file(location_.directories[i], i, location_.generation));
  }
}

// Whether the committed state lies exactly where this training wants it.
bool TrainingStore::opens_again() {
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
  with.stripe_bytes = identity_.stripe_bytes;
  if (options_.durable) with.record_bytes = 2 * record_slot_bytes(identity_, *chunks_);
  in_place_ = opens_again();
  if (in_place_) {
    location_.generation = options_.resume->location.generation;
    base_epoch_ = options_.resume->record.epoch;
    with.reuse = with.keep = true;
    previous_.reset();
  } else {
    if (previous_) {
      if (share_a_folder(*previous_, location_)) location_.generation = 1 - previous_->generation;
      // Held from here on: nobody else goes on with it, and nothing is written over it.
      if (base_version_ > 0) open_previous();
    }
    require_free(location_, options_);
  }
  with.generation = location_.generation;
  if (!options_.durable) remove_stale_record();
  store_ = std::make_unique<SsdStore>(location_.directories, identity_.store_bytes, with);
  if (in_place_) {
    require_newest(*options_.resume);
    remove_unfinished_move();
  } else {
    mark_owner();
  }
}

// A record without its stripes would keep others away for nothing.
void TrainingStore::remove_stale_record() const {
  const fs::path file = record_file(location_.directories[0], location_.generation);
  if (!fs::exists(file)) return;
  StoreFile held(file);  // throws where a run is at work with it
  held.set_keep(false);
}

void TrainingStore::open_previous() {
  SsdStoreOptions with;
  with.make_ring = options_.make_ring;
  old_ = open_store(options_.resume->record, previous_->directories, previous_->generation, with);
  require_newest(*options_.resume);
}

// Where this store was made from another one in the same place, and nobody lived to remove that.
void TrainingStore::remove_unfinished_move() {
  StoreLocation other{location_.directories, 1 - location_.generation};
  const fs::path file = record_file(other.directories[0], other.generation);
  if (!fs::exists(file)) return;
  const std::optional<CommitRecord> record = read_newest_record(file);
  if (!record || !same_training(record->identity.training, options_.training) ||
      record->version > base_version_) {
    return;
  }
  const auto& names = record->identity.directories;
  other.directories.assign(names.begin(), names.end());
  remove_files(other);
}

void TrainingStore::mark_owner() const {
  for (std::size_t i = 1; i < location_.directories.size(); ++i) {
    const fs::path file = owner_file(location_.directories[i], i, location_.generation);
    if (!options_.durable) {
      remove_file(file);
      continue;
    }
    const FileDescriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const std::string line = location_.directories[0].string() + "\n";
    if (!out.valid() ||
        ::write(out.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
        ::fsync(out.get()) != 0) {
      throw MachineError::from_errno("cannot write " + file.string(), errno);
    }
  }
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
    StateReader reader(in_place_ ? *store_ : *old_.store, record,
                       in_place_ ? *chunks_ : *old_.chunks);
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
  remove_files(*previous_);
  old_ = {};
  previous_.reset();
}

}  // namespace spillway
