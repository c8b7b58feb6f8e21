// The types that elements of weights have in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace spillway {

enum class ElementType : std::uint8_t { f32, f16, bf16 };

// As safetensors names it: "BF16"; nothing for a type that weights cannot have here.
std::optional<ElementType> element_type_of(std::string_view name);
const char* name_of(ElementType type);
constexpr std::uint64_t bytes_of(ElementType type) { return type == ElementType::f32 ? 4 : 2; }

// `count` elements, which need not be aligned, as fp32: exact.
void widen(ElementType type, const std::byte* from, std::uint64_t count, float* to);
// The way back, to f32 or bf16, rounded to nearest even.
void narrow(ElementType type, const float* from, std::uint64_t count, std::byte* to);

}  // namespace spillway
