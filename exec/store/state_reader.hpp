// Reads committed optimizer state back, whatever the placement it was committed under: element by
// element, with every chunk's checksum compared.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/run/arena.hpp"
#include "exec/store/commit_record.hpp"
#include "exec/store/ssd_store.hpp"

namespace spillway {

// Used on one thread, that of its construction.
class StateReader {
 public:
  // `store` holds the state of `record` and checks against `chunks`, which knows the record's sums
  // (adopt_checksums). All outlive the reader.
  StateReader(const SsdStore& store, const CommitRecord& record, const ChunkTable& chunks);

  // Elements [first, first + count) of a unit's master weights (moment 0), first (1) or second (2)
  // moments, which are widened where they are kept in bf16.
  void read(std::int64_t unit, int moment, std::uint64_t first, std::uint64_t count, float* to);

 private:
  const std::byte* load(std::size_t part, std::uint64_t from, std::uint64_t& bytes);

  const CommitRecord& record_;
  const ChunkTable& chunks_;
  SsdStore::Channel channel_;
  Arena piece_;
  std::uint64_t piece_begin_ = 0, piece_end_ = 0;  // in the store
};

// The store that a record describes, opened as it is. `directories`: where its stripes are now;
// `options.run`: whose they are. `chunks`: filled with the record's checksums. Throws InputError,
// MachineError.
struct OpenStore {
  std::unique_ptr<ChunkTable> chunks;
  std::unique_ptr<SsdStore> store;
};
OpenStore open_store(const CommitRecord& record,
                     const std::vector<std::filesystem::path>& directories,
                     std::uint64_t generation, const SsdStoreOptions& options);

// Sets the checksums of the record's parts; false (and nothing set) where the table is cut
// differently.
bool adopt_checksums(const CommitRecord& record, ChunkTable& chunks);

}  // namespace spillway
