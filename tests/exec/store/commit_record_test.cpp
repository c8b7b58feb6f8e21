// Commit records whose checksum is right and whose body is not: files that somebody else wrote.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "base/errors.hpp"
#include "exec/store/commit_record.hpp"

namespace spillway::test {
namespace {

constexpr std::size_t checksum_at = 16, length_at = 24, body_at = 32;

StoreIdentity identity() {
  StoreIdentity identity;
  identity.training = R"({"numbers":{}})";
  identity.directories = {"/mnt/a", "/mnt/b"};
  identity.stripe_bytes = 8192;
  identity.store_bytes = 24576;
  identity.parts = {{0, 0, 1024, Tier::ssd, 0, {0, 12288}}};
  return identity;
}

std::vector<std::byte> slot() {
  ChunkTable chunks({4096, 12288}, 8192, 24576);
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk) chunks.set(chunk, chunk + 1);
  std::vector<std::byte> slot(record_slot_bytes(identity(), chunks));
  encode_record(identity(), chunks, 9, 5, slot);
  return slot;
}

std::uint64_t body_bytes(std::span<const std::byte> slot) {
  std::uint64_t length = 0;
  std::memcpy(&length, slot.data() + length_at, sizeof length);
  return length;
}

// Gives the slot the length and the checksum that belong to a body of so many bytes.
void seal(std::vector<std::byte>& slot, std::uint64_t length) {
  std::memcpy(slot.data() + length_at, &length, sizeof length);
  const std::uint64_t sum =
      ChunkTable::checksum(std::span(slot).subspan(length_at, sizeof length + length));
  std::memcpy(slot.data() + checksum_at, &sum, sizeof sum);
}

// Decodes it; a format of a later version is an answer, too.
std::optional<CommitRecord> decode(std::span<const std::byte> slot) {
  try {
    return decode_record(slot);
  } catch (const InputError&) {
    return {};
  }
}

// Everything in a record comes from the body, so it is not much larger than that.
void check_size(const CommitRecord& record, std::uint64_t body) {
  const StoreIdentity& identity = record.identity;
  std::size_t bytes =
      identity.training.size() + 8 * identity.directories.size() + 32 * identity.parts.size();
  for (const auto& chunks : record.chunks) bytes += 16 * chunks.size();
  CHECK(bytes <= body);
}

TEST_CASE("a record with huge counts and a right checksum is no record, and takes no memory") {
  const std::vector<std::byte> whole = slot();
  const std::uint64_t body = body_bytes(whole);
  REQUIRE(decode(whole));
  for (const std::byte fill : {std::byte{0xff}, std::byte{0x7f}, std::byte{0x40}}) {
    for (std::uint64_t at = 0; at + 8 <= body; ++at) {
      std::vector<std::byte> changed = whole;
      std::fill_n(changed.begin() + static_cast<std::ptrdiff_t>(body_at + at), 8, fill);
      seal(changed, body);
      INFO("eight bytes of " << static_cast<int>(fill) << " at byte " << at << " of the body");
      if (const auto record = decode(changed)) check_size(*record, body);
    }
  }
}

TEST_CASE("a record that ends early and has a right checksum is no record") {
  const std::vector<std::byte> whole = slot();
  for (std::uint64_t body = 0; body < body_bytes(whole); ++body) {
    std::vector<std::byte> cut = whole;
    seal(cut, body);
    INFO("the body ends after " << body << " bytes");
    CHECK_FALSE(decode(cut));
  }
}

TEST_CASE("a record of a memory that there is not is no record") {
  const std::vector<std::byte> whole = slot();
  const std::uint64_t body = body_bytes(whole);
  const auto tier_at = [&] {
    // unit, first element, elements, tier, offset, two addresses, number of chunks, two chunks
    return body_at + body - (2 * 16 + 8 + 16 + 8 + 1);
  }();
  REQUIRE(whole[tier_at] == static_cast<std::byte>(Tier::ssd));
  std::vector<std::byte> changed = whole;
  changed[tier_at] = std::byte{tier_count};
  seal(changed, body);
  CHECK_FALSE(decode(changed));
}

TEST_CASE("records of random bodies with a right checksum end in an answer") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector<std::byte> whole = slot();
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> changed = whole;
    for (auto changes = 1 + random() % 4; changes > 0; --changes) {
      changed[body_at + random() % body_bytes(whole)] = static_cast<std::byte>(random());
    }
    seal(changed, body_bytes(whole));
    if (const auto record = decode(changed)) check_size(*record, body_bytes(whole));
  }
}

}  // namespace
}  // namespace spillway::test
