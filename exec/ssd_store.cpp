#include "exec/ssd_store.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/errors.hpp"

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

constexpr const char* stem(int generation) { return generation == 0 ? "" : "-b"; }

}  // namespace

std::filesystem::path store_file(const std::filesystem::path& directory, std::size_t index,
                                 int generation) {
  return directory / fmt::format("spillway-store-{}{}.bin", index, stem(generation));
}

std::filesystem::path record_file(const std::filesystem::path& first_directory, int generation) {
  return first_directory / fmt::format("spillway-commit{}.bin", stem(generation));
}

SsdStore::SsdStore(const std::vector<std::filesystem::path>& directories, std::uint64_t bytes,
                   Options options)
    : options_(options), bytes_((bytes + io_alignment - 1) / io_alignment * io_alignment) {
  validate(options_);
  if (directories.empty()) {
    throw InputError("the SSD store has no directory", "name at least one with --ssd DIR[,DIR]");
  }
  striping_ = {options_.stripe_bytes, static_cast<std::uint32_t>(directories.size())};
  Plan plan;
  for (std::uint32_t i = 0; i < directories.size(); ++i) {
    plan.emplace_back(store_file(directories[i], i, options_.generation),
                      striping_.file_bytes(i, bytes_));
  }
  if (options_.record_bytes > 0) {
    plan.emplace_back(record_file(directories[0], options_.generation), options_.record_bytes);
  }
  if (options_.reuse) {
    for (const auto& [path, size] : plan) {
      if (!std::filesystem::exists(path)) {
        throw InputError(
            "there is no SSD store to go on with: " + path.string() + " is missing",
            "check that its drive is mounted; the SSD directories of the run are needed, all "
            "and in the same order");
      }
    }
  } else {
    require_free_space(plan);
  }
  files_.reserve(plan.size());
  for (const auto& [path, size] : plan) files_.emplace_back(path);
  options_.reuse ? open_again(plan) : reserve(plan);
  use_direct();
  for (StoreFile& file : files_) file.set_keep(options_.keep);
}

SsdStore::~SsdStore() {
  while (!files_.empty()) files_.pop_back();
}

// From here to the end of the constructor a failure removes the files: half a store is of no use.
void SsdStore::reserve(const Plan& plan) {
  for (StoreFile& file : files_) file.set_keep(false);
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i].allocate(plan[i].second);
}

void SsdStore::open_again(const Plan& plan) {
  for (std::size_t i = 0; i < files_.size(); ++i) files_[i].require_size(plan[i].second);
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

SsdStore::Channel::Channel(const SsdStore& store)
    : store_bytes_(store.bytes_),
      stripe_files_(store.striping_.files),
      record_bytes_(store.options_.record_bytes),
      thread_(std::this_thread::get_id()),
      ring_(store.options_.make_ring(descriptors(store.files_), store.options_.queue_depth)),
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

void SsdStore::Channel::read_record(std::uint64_t offset, std::byte* to, std::uint64_t bytes) {
  check(0, 0);
  SPILLWAY_ASSERT(offset <= record_bytes_ && bytes <= record_bytes_ - offset);
  transfer_.transfer_in_file(IoKind::read, stripe_files_, offset, to, bytes);
}

void SsdStore::Channel::write_record(std::uint64_t offset, const std::byte* from,
                                     std::uint64_t bytes) {
  check(0, 0);
  SPILLWAY_ASSERT(offset <= record_bytes_ && bytes <= record_bytes_ - offset);
  transfer_.transfer_in_file(IoKind::write, stripe_files_, offset, const_cast<std::byte*>(from),
                             bytes);
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
