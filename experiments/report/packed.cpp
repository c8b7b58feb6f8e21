#include "experiments/report/packed.hpp"

#include <zlib.h>

#include "base/errors.hpp"

namespace spillway {

void NumberColumn::add(std::uint64_t number) {
  while (number >= 0x80) {
    bytes_ += static_cast<char>(0x80 | (number & 0x7f));
    number >>= 7;
  }
  bytes_ += static_cast<char>(number);
}

void NumberColumn::add_signed(std::int64_t number) {
  const auto bits = static_cast<std::uint64_t>(number);
  add(number < 0 ? ~(bits << 1) : bits << 1);
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](std::size_t k) {
      return i + k < bytes.size()
                 ? static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i + k]))
                 : 0u;
    };
    const std::uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (std::size_t k = 0; k < 4; ++k) {
      const bool is_there = i + k <= bytes.size();
      text += is_there ? digits[three >> (18 - 6 * k) & 0x3f] : '=';
    }
  }
  return text;
}

std::string packed(std::string_view bytes) {
  constexpr int level = 6;  // higher ones take far longer for a few per cent
  uLongf size = ::compressBound(static_cast<uLong>(bytes.size()));
  std::string compressed(size, '\0');
  const int status = ::compress2(reinterpret_cast<Bytef*>(compressed.data()), &size,
                                 reinterpret_cast<const Bytef*>(bytes.data()),
                                 static_cast<uLong>(bytes.size()), level);
  SPILLWAY_ASSERT(status == Z_OK);
  compressed.resize(size);
  return base64(compressed);
}

}  // namespace spillway
