#include "exec/store/training_store.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "exec/ranks/shards_at_rest.hpp"
#include "exec/run/frozen_origin.hpp"
#include "exec/run/training_record.hpp"
#include "policies/model/units.hpp"

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
  const ResumePoint now = point.is_older ? find_commit(point.location, point.record.version)
                                         : find_resume_point(point.location);
  if (now.record.epoch == point.record.epoch && now.record.version == point.record.version) return;
  throw MachineError(fmt::format("another run has committed step {} to {} meanwhile",
                                 now.record.version, point.location.directories[0].string()),
                     "let one run at a time go on with it; to go on from that step, " +
                         Setting{"resume"} + " again");
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

// Steps committed to the store that a stripe or a record belongs to; nothing where that cannot be
// seen, because its first directory is not there.
std::optional<std::int64_t> steps_committed(const fs::path& file, const StoreHeader& header) {
  const fs::path first = header.kind == StoreHeader::Kind::commits || header.index == 0
                             ? file.parent_path()
                             : fs::path(header.first_directory);
  const auto belongs = [&](const fs::path& other) {
    std::error_code ignored;
    if (!fs::exists(other, ignored)) return false;
    const std::optional<StoreHeader> found = read_header(other);
    return found && found->run.id == header.run.id && found->generation == header.generation;
  };
  const fs::path records = record_file(first, header.generation);
  if (belongs(records)) {
    const std::optional<CommitRecord> record = read_newest_record(records);
    return record ? record->version : 0;
  }
  // Its record is the first of a store's files to be removed and the last to be made, its first
  // stripe the other way round.
  if (file == store_file(first, 0, header.generation)) return 0;
  if (belongs(store_file(first, 0, header.generation))) return 0;
  return {};
}

// Whether the elements of all units that are trained, of several ranks a shard of each, are in the
// parts, once each, as wide as the training has them.
bool covers(const std::vector<StatePart>& parts, const TrainingRecord& training) {
  const ModelSpec model = training.own_model();
  const auto ranks = static_cast<int>(training.workload.ranks);
  std::size_t i = 0;
  for (std::int64_t unit = 0; unit < unit_count(model); ++unit) {
    const auto elements = static_cast<std::uint64_t>(trained_elements(model, unit));
    if (elements == 0) continue;
    std::uint64_t at = i < parts.size() && ranks > 1 ? parts[i].first_element : 0;
    const std::uint64_t begin = at;
    for (; i < parts.size() && parts[i].unit == unit; ++i) {
      if (parts[i].first_element != at || parts[i].elements == 0 ||
          parts[i].moments != training.workload.moments)
        return false;
      at += parts[i].elements;
    }
    if (ranks > 1 ? at == begin || at > elements : at != elements) return false;
  }
  return i == parts.size();
}

}  // namespace

std::vector<fs::path> files_of(const StoreLocation& location) {
  std::vector<fs::path> files;
  const auto add = [&](const fs::path& file) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(file, ignored))) files.push_back(file);
  };
  if (location.directories.empty()) return files;
  add(record_file(location.directories[0], location.generation));
  for (std::size_t i = location.directories.size(); i > 0; --i)
    add(store_file(location.directories[i - 1], i - 1, location.generation));
  return files;
}

bool remove_store_file(const fs::path& path, const StoreHeader& header) {
  try {
    StoreFile file(Directory(path.parent_path()), path.filename().string(),
                   StoreFile::Open::existing);
    const std::optional<StoreHeader> now = file.header();
    if (!now || now->run.id != header.run.id || now->generation != header.generation) return false;
    file.set_keep(false);
    return true;
  } catch (const InputError&) {
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(path, ignored))) throw;
    return false;  // somebody else removed it meanwhile
  }
}

std::vector<fs::path> remove_files(const StoreLocation& location, const RunId& run) {
  std::vector<fs::path> removed;
  for (const fs::path& path : files_of(location)) {
    const std::optional<StoreHeader> header = read_header(path);
    if (!header || header->run.id != run || header->generation != location.generation) continue;
    if (remove_store_file(path, *header)) removed.push_back(path);
  }
  return removed;
}

namespace {

ResumePoint point_of(const StoreLocation& location, CommitRecord record) {
  const fs::path file = record_file(location.directories[0], location.generation);
  const std::optional<StoreHeader> header = read_header(file);
  const TrainingRecord training = TrainingRecord::parse(record.identity.training);
  if (!header || !covers(record.identity.parts, training)) {
    throw InputError(fmt::format("{} does not describe the state of the model {} that it names",
                                 file.string(), training.model.name),
                     "the file is damaged: restore it from a backup");
  }
  return {location, std::move(record), header->run};
}

// The newest first, at least one.
std::vector<CommitRecord> records_of(const StoreLocation& location) {
  SPILLWAY_ASSERT(!location.directories.empty());
  const fs::path file = record_file(location.directories[0], location.generation);
  std::vector<CommitRecord> records = read_records(file);
  if (records.empty() || !read_header(file)) {
    throw InputError(fmt::format("{} holds no whole commit record", file.string()),
                     "the training ended before its first commit, or the file is damaged: start "
                     "the training again");
  }
  return records;
}

}  // namespace

ResumePoint find_resume_point(const StoreLocation& location) {
  return point_of(location, std::move(records_of(location).front()));
}

ResumePoint find_commit(const StoreLocation& location, std::int64_t step) {
  std::string steps;
  for (CommitRecord& record : records_of(location)) {
    if (record.version == step) return point_of(location, std::move(record));
    if (record.version > 0)
      steps += fmt::format("{}{}", steps.empty() ? "" : " and ", record.version);
  }
  throw InputError(
      Setting{"step", std::to_string(step)} +
          Message(fmt::format(": the store in {} holds the state of {}",
                              location.directories[0].string(),
                              steps.empty() ? "no step yet" : "step " + steps + " only")),
      "a store holds the last two commits: leave it out for the newest");
}

TrainingStore::TrainingStore(std::span<const Schedule* const> schedules,
                             TrainingStoreOptions options)
    : options_(std::move(options)) {
  const StoreLayout layout(schedules, options_.durable, options_.frozen);
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
        Setting{"ssd", "DIR[,DIR]"} + ": directories on the drives to use");
  }
  for (int set = 1; set < most_drive_sets; ++set) {
    if (schedules[0]->use(drives_tier(set)).peak_bytes == 0 ||
        static_cast<std::size_t>(set) < options_.sets.size())
      continue;
    throw InputError(
        fmt::format("policy {} uses the {} tier, but no directory is given for it",
                    schedules[0]->policy(), drive_set_name(set)),
        Setting{drive_set_name(set), "DIR[,DIR]"} + ": directories on the drives of that set");
  }
  location_.directories = absolute(options_.directories);
  for (const fs::path& directory : location_.directories) {
    identity_.directories.push_back(directory.string());
  }
  if (options_.sets.size() > 1) {
    for (std::size_t set = 0; set < options_.sets.size(); ++set)
      identity_.sets.push_back({layout.begins()[set], options_.sets[set]});
  }
  chunks_ =
      std::make_unique<ChunkTable>(boundaries_, identity_.stripe_bytes, identity_.store_bytes);
  create();
}

void TrainingStore::set_training(std::string text) {
  SPILLWAY_ASSERT(text.size() == identity_.training.size());
  identity_.training = std::move(text);
}

// Whether the committed state lies exactly where this training wants it.
bool TrainingStore::opens_again() {
  if (!options_.resume || !options_.durable) return false;
  const StoreLocation& location = options_.resume->location;
  const CommitRecord& record = options_.resume->record;
  const StoreIdentity& old = record.identity;
  std::error_code error;
  if (options_.resume->only_read() || record.version == 0 ||
      absolute(location.directories) != location_.directories ||
      old.stripe_bytes != identity_.stripe_bytes || old.sets != identity_.sets ||
      old.store_bytes != identity_.store_bytes || old.parts != identity_.parts ||
      store_header_bytes + record_slot_bytes(identity_, *chunks_) * 2 !=
          fs::file_size(record_file(location.directories[0], location.generation), error)) {
    return false;
  }
  return adopt_checksums(record, *chunks_);
}

void TrainingStore::create() {
  in_place_ = opens_again();
  if (options_.agree_in_place && !options_.agree_in_place(in_place_) && in_place_) {
    in_place_ = false;
    chunks_ =  // without the sums of the store there was
        std::make_unique<ChunkTable>(boundaries_, identity_.stripe_bytes, identity_.store_bytes);
  }
  SsdStoreOptions with;
  with.chunks = chunks_.get();
  with.make_ring = options_.make_ring;
  with.stripe_bytes = identity_.stripe_bytes;
  with.sets = identity_.sets;
  if (options_.durable) with.record_bytes = 2 * record_slot_bytes(identity_, *chunks_);
  with.run = options_.run;
  with.durable = options_.durable;
  with.require_replaceable = [this](const fs::path& file, const StoreHeader* header) {
    require_replaceable(file, header);
  };
  if (in_place_) {
    location_.generation = options_.resume->location.generation;
    base_epoch_ = options_.resume->record.epoch;
    with.reuse = with.keep = true;
    previous_.reset();
  } else {
    if (previous_) {
      if (options_.resume->foreign) {
        if (share_a_folder(*previous_, location_)) {
          throw InputError(
              fmt::format("{} has the store of {}, which this run is a copy of",
                          previous_->directories[0].string(), to_text(options_.resume->run.home)),
              "a copy needs SSD directories of its own: name others with " + Setting{"ssd"});
        }
      } else {
        location_.generation = previous_->generation + 1;
      }
      // Held from here on: nobody else goes on with it, and nothing is written over it.
      if (base_version_ > 0) open_previous();
    }
    require_alone();
  }
  with.generation = location_.generation;
  if (!options_.durable) remove_stale_record();
  store_ = std::make_unique<SsdStore>(location_.directories, identity_.store_bytes, with);
  if (in_place_) {
    require_newest(*options_.resume);
    remove_unfinished_move();
  }
}

// Called by the store for each file that is in its way.
void TrainingStore::require_replaceable(const fs::path& file, const StoreHeader* header) const {
  if (header == nullptr) require_no_commits(file, header);
  if (options_.overwrite || !header->durable) return;
  const std::optional<std::int64_t> steps = steps_committed(file, *header);
  if (steps == 0) return;  // nothing that could be lost
  const Relation owner = relation(header->run.home, options_.run.home, header->run.id);
  if (header->run.id == options_.run.id && owner != Relation::copied &&
      owner != Relation::unknown) {
    if (header->generation <= location_.generation) return;  // an earlier store of this run
    throw InputError(
        fmt::format("{} is of a later store of this run than its folder knows of", file.string()),
        "was the run's folder put back from a backup without its SSD directories? Name other " +
            Setting{"ssd"} + " directories, or " + Setting{"overwrite"} +
            " it if it is of no use any more");
  }
  if (!steps) {
    throw InputError(
        fmt::format("{} belongs to another training, of {}, whose first SSD directory is {}",
                    file.string(), to_text(header->run.home), header->first_directory),
        "that directory is not there: is its drive mounted? Name other " + Setting{"ssd"} +
            " directories, or " + Setting{"overwrite"} + " it if it is of no use any more");
  }
  if (header->index > 0) {
    throw InputError(fmt::format("{} belongs to another training, whose first SSD directory is {}",
                                 file.string(), header->first_directory),
                     "remove that training's store (`spillway store remove`), name other " +
                         Setting{"ssd"} + " directories, or " + Setting{"overwrite"} +
                         " it if it is of no use any more");
  }
  throw InputError(fmt::format("{} holds another training, committed at step {} (of {})",
                               file.parent_path().string(), *steps, to_text(header->run.home)),
                   "go on with it (" + Setting{"resume"} + " with its " + Setting{"run"} +
                       "), remove it (`spillway store remove`), or name other " + Setting{"ssd"} +
                       " directories");
}

// Refuses directories with another training's store under the name that this one does not use.
void TrainingStore::require_alone() const {
  for (std::size_t i = 0; i < location_.directories.size(); ++i) {
    const fs::path file = store_file(location_.directories[i], i, location_.generation + 1);
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(file, ignored))) continue;
    const std::optional<StoreHeader> header = read_header(file);
    if (header && header->run.id != options_.run.id) require_replaceable(file, &*header);
  }
}

// A record without its stripes would keep others away for nothing.
void TrainingStore::remove_stale_record() const {
  const fs::path path = record_file(location_.directories[0], location_.generation);
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return;
  StoreFile file(Directory(path.parent_path()), path.filename().string(),
                 StoreFile::Open::existing);
  if (!file.is_empty()) {
    const std::optional<StoreHeader> header = file.header();
    require_replaceable(path, header ? &*header : nullptr);
  }
  file.set_keep(false);
}

void TrainingStore::open_previous() {
  SsdStoreOptions with;
  with.make_ring = options_.make_ring;
  with.run = options_.resume->run;
  with.read_only = options_.resume->of_other_ranks;
  old_ = open_store(options_.resume->record, previous_->directories, previous_->generation, with);
  require_newest(*options_.resume);
}

// Where this store was made from another one in the same place, or another one from this, and
// nobody lived to remove what was left over. Only in the directories of this store: where a record
// says that others are may be another run's place by now.
void TrainingStore::remove_unfinished_move() const {
  for (const std::uint64_t generation : {location_.generation - 1, location_.generation + 1}) {
    const StoreLocation other{location_.directories, generation};
    const fs::path file = record_file(other.directories[0], generation);
    std::error_code ignored;
    if (fs::exists(fs::symlink_status(file, ignored))) {
      const std::optional<CommitRecord> record = read_newest_record(file);
      if (record && record->version > base_version_) return;
    }
    remove_files(other, options_.run.id);
  }
}

StateAtRest TrainingStore::at_rest(const Schedule& schedule, Device& device) {
  return {schedule, device, store_.get(), chunks_.get(), identity_.parts, options_.frozen};
}

void TrainingStore::fill(const Schedule& schedule, Device& device, const StateValues& initial,
                         const std::function<void()>& begun) {
  ModelAccess access(at_rest(schedule, device), static_cast<int>(base_epoch_ & 1));
  if (base_version_ == 0) {
    access.write(initial);
    if (begun) begun();
    if (options_.durable) access.commit(identity_, 0, 0);
  } else {
    const CommitRecord& record = options_.resume->record;
    if (in_place_) {
      // The run before may have been killed with its last record in the drive's cache only; what
      // the record before that refers to is overwritten from here on.
      SsdStore::Channel channel(*store_);
      channel.sync();
      channel.sync_record();
      if (options_.resume->is_older) {
        // A commit that does not count, and whose state is overwritten from here on.
        const Arena nothing(record_slot_bytes(identity_, *chunks_), "an empty commit record");
        std::fill(nothing.span().begin(), nothing.span().end(), std::byte{0});
        channel.write_record(
            static_cast<std::uint64_t>((base_epoch_ + 1) & 1) * nothing.span().size(),
            nothing.data(), nothing.span().size());
        channel.sync_record();
      }
    }
    StateReader reader(in_place_ ? *store_ : *old_.store, record,
                       in_place_ ? *chunks_ : *old_.chunks);
    // A rank may keep more of the weights than it updates.
    ShardsAtRest all(*options_.resume, reader, options_.make_ring);
    const auto committed = [&](std::int64_t unit, int moment, std::uint64_t first,
                               std::uint64_t count,
                               float* to) { all.read(unit, moment, first, count, to); };
    access.write(
        with_frozen(schedule.problem().model, committed, initial),
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
  if (options_.resume->only_read()) {
    old_ = {};
  } else if (old_.store) {
    old_.store->set_keep(false);
    old_ = {};
  } else {
    remove_files(*previous_, options_.run.id);
  }
  previous_.reset();
}

}  // namespace spillway
