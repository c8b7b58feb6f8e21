#include "experiments/watch/tensorboard.hpp"

#include <bit>
#include <boost/crc.hpp>

namespace spillway {

namespace {

// How protocol buffers encode a field: its number and one of these, then the value.
enum class Wire : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <class Number>
void append_little_endian(std::string& text, Number value) {
  for (std::size_t i = 0; i < sizeof(value); ++i)
    text.push_back(static_cast<char>(static_cast<std::uint8_t>(value >> (8 * i))));
}

void append_varint(std::string& text, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7U) text.push_back(static_cast<char>((value & 0x7fU) | 0x80U));
  text.push_back(static_cast<char>(value));
}

void append_key(std::string& text, unsigned field, Wire wire) {
  append_varint(text, (field << 3U) | static_cast<unsigned>(wire));
}

void append_bytes(std::string& text, unsigned field, std::string_view value) {
  append_key(text, field, Wire::bytes);
  append_varint(text, value.size());
  text += value;
}

void append_double(std::string& text, unsigned field, double value) {
  append_key(text, field, Wire::fixed64);
  append_little_endian(text, std::bit_cast<std::uint64_t>(value));
}

void append_float(std::string& text, unsigned field, double value) {
  append_key(text, field, Wire::fixed32);
  append_little_endian(text, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return std::rotr(static_cast<std::uint32_t>(crc.checksum()), 15) + 0xa282ead8U;
}

std::string tensorboard_record(std::string_view data) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(data.size()));
  append_little_endian(record, masked_crc32c(record));
  record += data;
  append_little_endian(record, masked_crc32c(data));
  return record;
}

std::string tensorboard_head(double wall_time) {
  std::string version, session, start;
  append_double(version, 1, wall_time);
  append_bytes(version, 3, "brain.Event:2");
  append_key(session, 1, Wire::varint);
  append_varint(session, 1);
  append_double(start, 1, wall_time);
  append_bytes(start, 7, session);
  return tensorboard_record(version) + tensorboard_record(start);
}

std::string tensorboard_scalars(double wall_time, std::int64_t step,
                                const std::vector<Scalar>& scalars) {
  std::string event, summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes(value, 1, scalar.tag);
    append_float(value, 2, scalar.value);
    append_bytes(summary, 1, value);
  }
  append_double(event, 1, wall_time);
  append_key(event, 2, Wire::varint);
  append_varint(event, static_cast<std::uint64_t>(step));
  append_bytes(event, 5, summary);
  return tensorboard_record(event);
}

}  // namespace spillway
