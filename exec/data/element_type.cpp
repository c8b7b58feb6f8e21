#include "exec/data/element_type.hpp"

#include <bit>
#include <cstring>

#include "base/errors.hpp"
#include "exec/cpu/bf16.hpp"

namespace spillway {

namespace {

// IEEE half precision: the bits moved into place, and the exponent's bias set right by a product,
// which is exact for subnormal numbers, too.
float from_half(std::uint16_t half) {
  const std::uint32_t magnitude = std::uint32_t{half} & 0x7fff, sign = std::uint32_t{half} >> 15;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = (magnitude << 13) | 0x7f800000;  // infinity and NaN
  const std::uint32_t bits = magnitude >= 0x7c00 ? special : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(bits | sign << 31);
}

template <class Convert>
void widen_each(const std::byte* from, std::uint64_t count, float* to, const Convert& convert) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, from + sizeof bits * i, sizeof bits);
    to[i] = convert(bits);
  }
}

}  // namespace

std::optional<ElementType> element_type_of(std::string_view name) {
  for (const ElementType type : {ElementType::f32, ElementType::f16, ElementType::bf16})
    if (name == name_of(type)) return type;
  return std::nullopt;
}

const char* name_of(ElementType type) {
  return type == ElementType::f32 ? "F32" : type == ElementType::f16 ? "F16" : "BF16";
}

void widen(ElementType type, const std::byte* from, std::uint64_t count, float* to) {
  if (type == ElementType::f32) {
    std::memcpy(to, from, count * sizeof(float));
  } else if (type == ElementType::f16) {
    widen_each(from, count, to, from_half);
  } else {
    widen_each(from, count, to,
               [](std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); });
  }
}

void narrow(ElementType type, const float* from, std::uint64_t count, std::byte* to) {
  SPILLWAY_ASSERT(type != ElementType::f16);
  if (type == ElementType::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const bf16 rounded = to_bf16(from[i]);
    std::memcpy(to + sizeof rounded * i, &rounded, sizeof rounded);
  }
}

}  // namespace spillway
