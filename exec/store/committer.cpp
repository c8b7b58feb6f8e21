#include "exec/store/committer.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/errors.hpp"

namespace spillway {

namespace {

// What is copied from memory goes to the store in runs of chunks of about this size.
constexpr std::uint64_t staging_bytes = std::uint64_t{8} << 20;

void write_record(SsdStore::Channel& channel, std::span<const std::byte> slot, std::int64_t epoch) {
  channel.sync();
  channel.write_record(static_cast<std::uint64_t>(epoch & 1) * slot.size(), slot.data(),
                       slot.size());
  channel.sync_record();
}

}  // namespace

std::uint64_t capture_memory(SsdStore::Channel& channel, std::span<const StatePart> parts,
                             const ChunkTable& chunks, Device& device, int copy, Arena& staging) {
  std::uint64_t written = 0;
  for (const StatePart& part : parts) {
    if (is_drives(part.tier)) continue;
    const std::byte* const host = device.host_memory().data();
    const std::uint64_t begin = part.address[static_cast<std::size_t>(copy)];
    for_chunk_runs(chunks, begin, part.bytes(), staging.size(),
                   [&](std::uint64_t at, std::uint64_t bytes) {
                     const std::uint64_t from = part.offset + (at - begin);
                     if (part.tier == Tier::gpu) {
                       device.download(from, {staging.data(), bytes});
                     } else {
                       std::copy_n(host + from, bytes, staging.data());
                     }
                     channel.write(at, staging.data(), bytes);
                   });
    written += part.bytes();
  }
  return written;
}

void commit_now(SsdStore::Channel& channel, const StoreIdentity& identity, const ChunkTable& chunks,
                std::int64_t version, std::int64_t epoch) {
  const Arena slot(record_slot_bytes(identity, chunks), "the commit record");
  encode_record(identity, chunks, version, epoch, slot.span());
  write_record(channel, slot.span(), epoch);
}

Committer::Committer(SsdStore& store, const StoreIdentity& identity, ChunkTable& chunks,
                     Device& device, VersionGate& gate, MayOverwrite may_overwrite,
                     CommittedByAll by_all)
    : store_(store),
      identity_(identity),
      chunks_(chunks),
      device_(device),
      gate_(gate),
      may_overwrite_(std::move(may_overwrite)),
      by_all_(std::move(by_all)),
      record_(record_slot_bytes(identity, chunks), "the commit record"),
      staging_(staging_bytes, "staging for commits"),
      committed_(gate.points().base_version),
      thread_([this] { main(); }) {}

Committer::~Committer() {
  closing_ = true;
  gate_.halt();  // wakes the thread
  thread_.join();
}

void Committer::on_change(std::function<void()> listener) {
  const std::lock_guard lock(listener_mutex_);
  listener_ = std::move(listener);
  if (listener_ && failed()) listener_();
}

void Committer::notify() {
  news_.fetch_add(1, std::memory_order_release);
  news_.notify_all();
  const std::lock_guard lock(listener_mutex_);
  if (listener_) listener_();
}

void Committer::main() {
  try {
    SsdStore::Channel channel(store_);
    std::atomic<std::uint32_t>& changes = gate_.changes();
    while (true) {
      const std::uint32_t seen = changes.load(std::memory_order_acquire);
      if (closing_.load()) return;
      const std::int64_t next = gate_.next_commit(committed());
      if (next > committed() && gate_.may_commit(next)) {
        commit(channel, next);
        continue;
      }
      changes.wait(seen, std::memory_order_acquire);
    }
  } catch (...) {
    error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
    notify();
  }
}

void Committer::commit(SsdStore::Channel& channel, std::int64_t version) {
  const std::int64_t epoch = gate_.points().epoch_of(version);
  const std::uint64_t captured = capture_memory(channel, identity_.parts, chunks_, device_,
                                                static_cast<int>(epoch & 1), staging_);
  store_.require_files();
  encode_record(identity_, chunks_, version, epoch, record_.span());
  write_record(channel, record_.span(), epoch);
  bytes_written_.fetch_add(captured + record_.size(), std::memory_order_relaxed);
  while (by_all_ && !by_all_(version)) {
    if (closing_.load() || gate_.halted()) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  committed_.store(version, std::memory_order_release);
  notify();
  // Other processes read it: nothing here could tell of their end.
  while (may_overwrite_ && !may_overwrite_(version) && !closing_.load() && !gate_.halted())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  gate_.committed(version);
}

void Committer::wait_for(std::int64_t version) {
  while (true) {
    const std::uint32_t seen = news_.load(std::memory_order_acquire);
    if (committed() >= version) return;
    if (failed()) std::rethrow_exception(error_);
    news_.wait(seen, std::memory_order_acquire);
  }
}

}  // namespace spillway
