#include "exec/store/ssd_store.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/rounding.hpp"

namespace spillway {

namespace {

void validate(const SsdStoreOptions& options) {
  if (options.stripe_bytes == 0 || options.stripe_bytes % io_alignment != 0 ||
      options.stripe_bytes > (std::uint64_t{1} << 30)) {
    throw InputError(fmt::format("a stripe of {} bytes is not possible", options.stripe_bytes),
                     "choose a multiple of 4096 up to 1 GiB; 1 MiB suits most drives");
  }
  if (options.queue_depth == 0 || options.queue_depth > 4096) {
    throw InputError(fmt::format("a queue depth of {} is not possible", options.queue_depth),
                     "choose 1 to 4096; 32 suits most drives");
  }
}

std::vector<int> descriptors(const std::vector<StoreFile>& files) {
  std::vector<int> result;
  for (const StoreFile& file : files) result.push_back(file.descriptor());
  return result;
}

std::vector<std::string> names(const std::vector<StoreFile>& files) {
  std::vector<std::string> result;
  for (const StoreFile& file : files) result.push_back(file.path().string());
  return result;
}

constexpr const char* stem(std::uint64_t generation) { return generation % 2 == 0 ? "" : "-b"; }

}  // namespace

std::string stripe_name(std::size_t index, std::uint64_t generation) {
  return fmt::format("spillway-store-{}{}.bin", index, stem(generation));
}

std::string record_name(std::uint64_t generation) {
  return fmt::format("spillway-commit{}.bin", stem(generation));
}

std::filesystem::path store_file(const std::filesystem::path& directory, std::size_t index,
                                 std::uint64_t generation) {
  return directory / stripe_name(index, generation);
}

std::filesystem::path record_file(const std::filesystem::path& first_directory,
                                  std::uint64_t generation) {
  return first_directory / record_name(generation);
}

void require_no_commits(const std::filesystem::path& file, const StoreHeader* header) {
  if (header == nullptr) {
    throw InputError(
        fmt::format("{} is not a file of this version's: it is left as it is", file.string()),
        "move it away, or name other SSD directories");
  }
  if (!header->durable) return;
  throw InputError(
      fmt::format("{} belongs to the training of {}", file.string(), to_text(header->run.home)),
      "name other SSD directories, or remove that training's store (`spillway store "
      "remove`)");
}

SsdStore::SsdStore(const std::vector<std::filesystem::path>& directories, std::uint64_t bytes,
                   Options options)
    : options_(options), bytes_(round_up(bytes, io_alignment)) {
  validate(options_);
  if (directories.empty()) {
    throw InputError("the SSD store has no directory",
                     "name at least one: " + Setting{"ssd", "DIR[,DIR]"});
  }
  striping_ = {options_.stripe_bytes, static_cast<std::uint32_t>(directories.size()),
               store_header_bytes, options_.sets};
  std::size_t of_sets = 0;
  for (const FileSet& set : options_.sets) of_sets += set.files;
  SPILLWAY_ASSERT(options_.sets.empty() || of_sets == directories.size());
  Plan plan;
  for (std::uint32_t i = 0; i < directories.size(); ++i) {
    plan.push_back({Directory(directories[i]), stripe_name(i, options_.generation),
                    striping_.file_bytes(i, bytes_)});
  }
  first_directory_ = plan.front().directory.path().string();
  if (options_.record_bytes > 0) {
    plan.push_back(
        {plan.front().directory, record_name(options_.generation), options_.record_bytes});
  }
  if (!options_.reuse) require_free_space(plan);
  files_.reserve(plan.size());
  for (const PlannedFile& file : plan) {
    files_.emplace_back(file.directory, file.name,
                        options_.read_only ? StoreFile::Open::to_read
                        : options_.reuse   ? StoreFile::Open::existing
                                           : StoreFile::Open::or_new);
  }
  options_.reuse ? open_again(plan) : reserve(plan);
  use_direct();
  for (StoreFile& file : files_) file.set_keep(options_.keep);
}

std::uint64_t SsdStore::size_of(int set) const {
  if (striping_.sets.empty()) return set == 0 ? bytes_ : 0;
  const auto at = static_cast<std::size_t>(set);
  if (at >= striping_.sets.size()) return 0;
  return (at + 1 < striping_.sets.size() ? striping_.sets[at + 1].from : bytes_) -
         striping_.sets[at].from;
}

SsdStore::~SsdStore() {
  while (!files_.empty()) files_.pop_back();
}

StoreHeader SsdStore::header_of(std::size_t file) const {
  StoreHeader header;
  const bool is_record = file == striping_.files;
  header.run = options_.run;
  header.generation = options_.generation;
  header.kind = is_record ? StoreHeader::Kind::commits : StoreHeader::Kind::stripe;
  header.index = is_record ? 0 : static_cast<std::uint32_t>(file);
  header.count = striping_.files;
  header.durable = options_.durable;
  header.first_directory = first_directory_;
  return header;
}

void SsdStore::reserve(const Plan& plan) {
  // First all are looked at: nothing is written to any before.
  for (const StoreFile& file : files_) {
    if (file.is_empty()) continue;
    const std::optional<StoreHeader> header = file.header();
    const auto& require =
        options_.require_replaceable ? options_.require_replaceable : require_no_commits;
    require(file.path(), header ? &*header : nullptr);
    if (!header) require_no_commits(file.path(), nullptr);
  }
  // From here to the end of the constructor a failure removes the files: half a store is of no use.
  for (StoreFile& file : files_) file.set_keep(false);
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i].allocate(plan[i].bytes, header_of(i));
}

void SsdStore::open_again(const Plan& plan) {
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const std::optional<StoreHeader> found = files_[i].header();
    const StoreHeader wanted = header_of(i);
    const auto refuse = [&](const std::string& what) {
      throw InputError(fmt::format("{} {}", files_[i].path().string(), what),
                       "name the SSD directories of the run, all and in the same order");
    };
    if (!found) refuse("is not a file of a store of this version's");
    if (found->run.id != wanted.run.id)
      refuse(fmt::format("belongs to another training, of {}", to_text(found->run.home)));
    if (found->generation != wanted.generation)
      refuse(fmt::format("is of the run's store number {}, and number {} is wanted",
                         found->generation, wanted.generation));
    if (found->kind != wanted.kind || found->index != wanted.index || found->count != wanted.count)
      refuse(fmt::format("is stripe {} of {}, and stripe {} of {} is wanted", found->index + 1,
                         found->count, wanted.index + 1, wanted.count));
    files_[i].require_size(plan[i].bytes);
  }
}

void SsdStore::set_keep(bool keep) {
  options_.keep = keep;
  for (StoreFile& file : files_) file.set_keep(keep);
}

void SsdStore::require_files() const {
  for (const StoreFile& file : files_) file.require_linked();
}

void SsdStore::use_direct() {
  if (!options_.direct) return;
  for (StoreFile& file : files_) {
    if (const auto reason = file.try_direct()) {
      warnings_.push_back(fmt::format(
          "{}: unbuffered I/O is not possible ({}); using the page cache, so transfers take memory "
          "and measured speeds are not the drive's",
          file.path().string(), *reason));
    }
  }
}

std::vector<std::filesystem::path> SsdStore::files() const {
  std::vector<std::filesystem::path> result;
  for (const StoreFile& file : files_) result.push_back(file.path());
  return result;
}

SsdStore::Channel::Channel(const SsdStore& store, const RingFactory& make_ring)
    : store_bytes_(store.bytes_),
      stripe_files_(store.striping_.files),
      record_bytes_(store.options_.record_bytes),
      thread_(std::this_thread::get_id()),
      ring_(make_ring(descriptors(store.files_), store.options_.queue_depth)),
      transfer_(*ring_, store.options_.queue_depth, store.striping_, names(store.files_),
                store.options_.chunks) {}

void SsdStore::Channel::check(std::uint64_t offset, std::uint64_t bytes) const {
  SPILLWAY_ASSERT(std::this_thread::get_id() == thread_, "a channel belongs to one thread");
  SPILLWAY_ASSERT(
      offset <= store_bytes_ && bytes <= store_bytes_ - offset,
      fmt::format("offset {} + {} bytes in a store of {}", offset, bytes, store_bytes_));
}

void SsdStore::Channel::read(std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  check(offset, bytes);
  transfer_.transfer(IoKind::read, offset, to, bytes);
  bytes_read_.fetch_add(bytes, std::memory_order_relaxed);
}

void SsdStore::Channel::write(std::uint64_t offset, const std::byte* from, std::uint64_t bytes) {
  check(offset, bytes);
  // A request carries one pointer for both directions; a write only reads through it.
  transfer_.transfer(IoKind::write, offset, const_cast<std::byte*>(from), bytes);
  bytes_written_.fetch_add(bytes, std::memory_order_relaxed);
}

void SsdStore::Channel::sync() {
  check(0, 0);
  transfer_.sync();
}

void SsdStore::Channel::write_record(std::uint64_t offset, const std::byte* from,
                                     std::uint64_t bytes) {
  check(0, 0);
  SPILLWAY_ASSERT(offset <= record_bytes_ && bytes <= record_bytes_ - offset);
  transfer_.transfer_in_file(IoKind::write, stripe_files_, store_header_bytes + offset,
                             const_cast<std::byte*>(from), bytes);
}

void SsdStore::Channel::sync_record() {
  check(0, 0);
  SPILLWAY_ASSERT(record_bytes_ > 0);
  transfer_.sync(stripe_files_, 1);
}

void SsdStore::Channel::register_memory(std::span<std::byte> memory) {
  check(0, 0);
  ring_->register_memory(memory);
}

}  // namespace spillway
