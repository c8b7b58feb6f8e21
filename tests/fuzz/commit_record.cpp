// Commit records. The first byte says how the rest becomes a slot: as it is, or as a body that gets
// the magic, the length and the checksum that belong to it, so that mutations reach what reads the
// body.
#include "exec/store/commit_record.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "exec/run/training_record.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

namespace {

constexpr char magic[16] = "SPILLWAY COMMIT";

std::vector<std::byte> slot_around(fuzz::Bytes body) {
  const std::uint64_t length = body.size();
  std::vector<std::byte> slot(sizeof magic + 2 * sizeof(std::uint64_t) + body.size());
  std::byte* const after_sum = slot.data() + sizeof magic + sizeof(std::uint64_t);
  std::memcpy(slot.data(), magic, sizeof magic);
  std::memcpy(after_sum, &length, sizeof length);
  std::copy_n(reinterpret_cast<const std::byte*>(body.data()), body.size(),
              after_sum + sizeof length);
  const std::uint64_t sum = ChunkTable::checksum({after_sum, sizeof length + body.size()});
  std::memcpy(slot.data() + sizeof magic, &sum, sizeof sum);
  return slot;
}

// What belongs to the training in it is JSON of ours.
void read_training(const std::string& text) {
  TrainingRecord record;
  if (!fuzz::accepted([&] { record = TrainingRecord::parse(text); })) return;
  const std::string written = record.to_json();
  TrainingRecord again;
  fuzz::require(fuzz::accepted([&] { again = TrainingRecord::parse(written); }),
                "what to_json writes, parse reads");
  fuzz::require(again.to_json() == written, "a training read again is the same training");
  fuzz::require(fuzz::accepted([&] { require_same_numbers(record, again); }),
                "a training is the same as itself");
}

}  // namespace

SPILLWAY_FUZZ_TARGET(commit_record) {
  if (input.empty()) return;
  const fuzz::Bytes rest = input.subspan(1);
  // 't': the JSON of a training alone, as commit records carry it.
  if (input.front() == 't') return read_training(fuzz::text_of(rest));
  std::optional<CommitRecord> record;
  fuzz::accepted([&] {
    record = input.front() == 'b' ? decode_record(slot_around(rest))
                                  : decode_record(std::as_bytes(std::span(rest)));
  });
  if (!record) return;
  fuzz::require(record->chunks.size() == record->identity.parts.size(),
                "every part of the state has its chunks");
  read_training(record->identity.training);
}
