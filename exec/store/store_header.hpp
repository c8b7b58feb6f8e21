// The first bytes of every file of a store: whose it is. Without them a file is not Spillway's, and
// is neither written to, nor emptied, nor removed.
//
// Two slots of 4096 bytes, so that a torn write of one leaves the other; the later sequence number
// counts. In a slot, little-endian: "SPILLWAY STORE" and two zero bytes; XXH3 (64 bit) of all that
// follows; length of the body; body.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "exec/run/run_identity.hpp"
#include "exec/store/store_location.hpp"

namespace spillway {

inline constexpr std::uint64_t store_header_bytes = 8192;

struct StoreHeader {
  enum class Kind : std::uint32_t { stripe = 0, commits = 1 };

  std::uint64_t sequence = 0;  // counts how often the header was written
  RunIdentity run;
  std::uint64_t generation = 0;  // counts the stores that the run has had
  Kind kind = Kind::stripe;
  std::uint32_t index = 0;  // of the stripe; of the record file: 0
  std::uint32_t count = 0;  // stripes of the store
  bool durable = false;     // holds, or will hold, commits: not to be replaced lightly
  // Where the first stripe and the record are, when it was last written: absolute.
  std::string first_directory;
  // The file's own, to tell it from a copy.
  std::uint64_t inode = 0;
};

// A slot's bytes: exactly store_header_bytes / 2.
void encode_header(const StoreHeader& header, std::span<std::byte> slot);
// Nothing when the slot holds no whole header, or one of another format.
std::optional<StoreHeader> decode_header(std::span<const std::byte> slot);

// The newest whole header of an open file; nothing when there is none. Throws MachineError when the
// file cannot be read.
std::optional<StoreHeader> read_header(int descriptor, const std::filesystem::path& path);

// Writes the next header (its sequence is set here, its inode to the file's) and makes it durable.
// Throws MachineError.
void write_header(int descriptor, const std::filesystem::path& path, StoreHeader header);

// The header of the file of that path, opened without following links; nothing where there is no
// such file or it has none.
std::optional<StoreHeader> read_header(const std::filesystem::path& path);

}  // namespace spillway
