// Event files are those that TensorBoard's own writer makes, byte for byte.
#include "experiments/watch/tensorboard.hpp"

#include <catch2/catch.hpp>

namespace spillway {
namespace {

// Written by tensorboard 2.21 (tensorboard.summary.writer.record_writer, event_pb2): the version, a
// session's start at 1700000000.25 s, and of step 300 at 1700000001.5 s train/loss = 2.3456 and
// gpu/power_watts = 350.
constexpr const char* reference =
    "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9"
    "0d000000000000003c37b8340900001040fc54d9413a0208018c8e54cd39000000000000008b0737"
    "f10900006040fc54d94110ac022a2b0a110a0a747261696e2f6c6f7373154f1e16400a160a0f6770"
    "752f706f7765725f7761747473150000af435aa903a2";

std::string in_hex(const std::string& bytes) {
  constexpr const char* digits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += digits[byte >> 4U];
    text += digits[byte & 15U];
  }
  return text;
}

}  // namespace

TEST_CASE("An event file is the one that TensorBoard writes") {
  CHECK(in_hex(tensorboard_head(1700000000.25) +
               tensorboard_scalars(1700000001.5, 300,
                                   {{"train/loss", 2.3456}, {"gpu/power_watts", 350}})) ==
        reference);
}

TEST_CASE("The first record of an event file is its version") {
  const std::string version = tensorboard_head(3).substr(0, tensorboard_version_bytes);
  CHECK(tensorboard_record(version.substr(12, version.size() - 16)) == version);
}

TEST_CASE("Checksums are masked CRC32C") {
  // The CRC32C of "123456789" is e3069283: rotated right by 15 bits, plus a282ead8.
  CHECK(masked_crc32c("123456789") == ((0xe3069283U >> 15U | 0xe3069283U << 17U) + 0xa282ead8U));
}

}  // namespace spillway
