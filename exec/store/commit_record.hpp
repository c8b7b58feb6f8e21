// The record that makes a step count: which version of the optimizer state is whole, where its
// parts lie, the checksum of every chunk of them, and what else a resumed training needs.
//
// A file of a header (exec/store/store_header.hpp) and two slots of equal size; commits take turns
// (slot = epoch mod 2), so that a torn write never hurts the record before. In a slot,
// little-endian:
//
//   "SPILLWAY COMMIT" and a zero byte; XXH3 (64 bit) of all that follows; length of the body; body
//
// A slot whose checksum does not match does not count; of two that do, the later epoch does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/store/chunk_table.hpp"
#include "exec/store/store_layout.hpp"

namespace spillway {

// What does not change from commit to commit.
struct StoreIdentity {
  std::string training;  // JSON: model, workload, data, seed, optimizer, policy
  // Where the stripes were when it was committed, in their order: absolute. They may have been
  // moved.
  std::vector<std::string> directories;
  std::uint64_t stripe_bytes = 0;
  std::uint64_t store_bytes = 0;
  // Which directories have which addresses, where drives are of several sets.
  std::vector<FileSet> sets = {};
  std::vector<StatePart> parts;
};

struct CommitRecord {
  StoreIdentity identity;
  std::int64_t version = 0;  // updates applied: the next step of training
  std::int64_t epoch = 0;
  // Of the committed copy, part by part, ascending: where each chunk ends in the store, and its
  // sum.
  struct Chunk {
    std::uint64_t end = 0;
    std::uint64_t sum = 0;
    bool operator==(const Chunk&) const = default;
  };
  std::vector<std::vector<Chunk>> chunks;

  int copy() const { return static_cast<int>(epoch & 1); }
};

// Bytes of one slot that holds any record of this store: a multiple of 4096.
std::uint64_t record_slot_bytes(const StoreIdentity& identity, const ChunkTable& chunks);

// Writes the record of `version` into `slot` (record_slot_bytes long), the sums taken from the
// table, without allocating. At version 0 there is no state to refer to: it follows from the seed.
void encode_record(const StoreIdentity& identity, const ChunkTable& chunks, std::int64_t version,
                   std::int64_t epoch, std::span<std::byte> slot);

// Nothing when the slot holds no whole record, or one that contradicts itself.
std::optional<CommitRecord> decode_record(std::span<const std::byte> slot);

// The whole records of a file, the newest first: at most two. Throws MachineError when the file
// cannot be read, InputError when it does not exist, is a link or no regular file, or its records
// are of another version of Spillway.
std::vector<CommitRecord> read_records(const std::filesystem::path& file);
// The newest of them; nothing when there is none.
std::optional<CommitRecord> read_newest_record(const std::filesystem::path& file);

}  // namespace spillway
