// Headers of a store's files. After 'b' the body of a header, which gets the magic, the length and
// the checksum that belong to it; else a slot as it is.
#include "exec/store/store_header.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "exec/store/chunk_table.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(store_header) {
  if (input.empty()) return;
  constexpr std::size_t slot_bytes = store_header_bytes / 2;
  constexpr char magic[16] = "SPILLWAY STORE";
  constexpr std::size_t length_at = sizeof magic + sizeof(std::uint64_t),
                        body_at = length_at + sizeof(std::uint64_t);
  const fuzz::Bytes rest = input.subspan(1);
  std::vector<std::byte> slot(slot_bytes);
  const bool is_body = input.front() == 'b';
  const std::size_t count = std::min(rest.size(), slot_bytes - (is_body ? body_at : 0));
  std::memcpy(slot.data() + (is_body ? body_at : 0), rest.data(), count);
  if (is_body) {
    const std::uint64_t length = count;
    std::memcpy(slot.data(), magic, sizeof magic);
    std::memcpy(slot.data() + length_at, &length, sizeof length);
    const std::uint64_t sum =
        ChunkTable::checksum(std::span(slot).subspan(length_at, sizeof length + count));
    std::memcpy(slot.data() + sizeof magic, &sum, sizeof sum);
  }
  std::optional<StoreHeader> header;
  fuzz::require(fuzz::accepted([&] { header = decode_header(slot); }), "a header is whole or none");
  if (!header) return;
  fuzz::require(is_run_id(header->run.id), "a header names a run");
  std::vector<std::byte> written(slot_bytes);
  encode_header(*header, written);
  const std::optional<StoreHeader> again = decode_header(written);
  fuzz::require(again.has_value(), "what is written is read");
  std::vector<std::byte> twice(slot_bytes);
  encode_header(*again, twice);
  fuzz::require(written == twice, "a header written again is the same bytes");
}
