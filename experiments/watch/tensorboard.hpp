// TensorBoard's event files, written by hand: a file is a sequence of records, each of which holds
// an `Event` as protocol buffers encode it.
//
//   record   uint64 length | uint32 masked CRC32C of the length | data | uint32 masked CRC32C of it
//            (all little-endian; masked: rotated right by 15 bits, plus 0xa282ead8)
//   Event    1: double wall_time   2: int64 step   3: string file_version   5: Summary summary
//            7: SessionLog session_log
//   Summary  1: repeated Value value; Value is 1: string tag   2: float simple_value
//   SessionLog 1: enum status, of which START is 1
//
// Source: tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto and
// tensorflow/core/framework/summary.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace spillway {

struct TaggedNumber {
  std::string_view tag;
  double value = 0;  // kept as a float
};

// Of `data`, with its length and both checksums.
std::string tensorboard_record(std::string_view data);

// What a file begins with: the version of the format, and that a session starts at step 0, at which
// TensorBoard forgets what files of an earlier name have told of the run.
std::string tensorboard_head(double wall_time);
// Bytes of the version: a file of these alone tells nothing.
inline constexpr std::uint64_t tensorboard_version_bytes = 40;
// A record with the scalars of a step; `wall_time` in seconds since 1970.
std::string tensorboard_scalars(double wall_time, std::int64_t step,
                                const std::vector<TaggedNumber>& scalars);

std::uint32_t masked_crc32c(std::string_view bytes);

}  // namespace spillway
