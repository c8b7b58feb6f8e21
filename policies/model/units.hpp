// The units of a model, and where each tensor of a unit lies inside its flat buffers.
//
// Units 0 .. L-1 are the layers and unit L is the embedding. Where the head is tied to the token
// table, unit L has the final norm, too, and the head reads that unit; where the head has a matrix
// of its own, unit L+1 is the head, with the final norm. A unit's parameters, gradient and
// optimizer state are flat arrays of elements in the order listed here ([out, in] matrices, as in
// llm.c), padded to `element_alignment` so that any cut on that grid is 4096-byte aligned in 16-bit
// and in 32-bit form.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

inline constexpr std::int64_t element_alignment = 2048;  // elements
inline constexpr std::uint64_t buffer_alignment = 4096;  // bytes, every buffer in every tier

std::int64_t unit_count(const ModelSpec& model);      // L + 1, or L + 2 with an untied head
std::int64_t embedding_unit(const ModelSpec& model);  // L
std::int64_t head_unit(const ModelSpec& model);       // L if the head is tied, else L + 1

struct TensorLayout {
  // As Hugging Face's GPT-2 and Llama name it, of a layer without the prefix: "attn.c_attn.weight".
  std::string_view name;
  std::int64_t rows = 0;     // out features, or 1
  std::int64_t columns = 0;  // in features, or the vector length
  std::int64_t offset = 0;   // first element in the flat unit
  bool decay = false;        // weight decay applies (matrices and tables, not norms and biases)
  std::int64_t elements() const { return rows * columns; }
};

// The tensors of a unit, in flat order. Matrices that read the same input follow one another, so
// that one product computes them: queries, keys and values; gate and up.
std::vector<TensorLayout> unit_layout(const ModelSpec& model, std::int64_t unit);

// First element of the tensor of that name, which the layout has.
std::int64_t offset_of(const std::vector<TensorLayout>& layout, std::string_view name);

// Elements of a unit: of its tensors alone, and padded to element_alignment.
std::int64_t unit_parameters(const ModelSpec& model, std::int64_t unit);
std::int64_t unit_elements(const ModelSpec& model, std::int64_t unit);

// Of all units after the layers, together; and of the largest unit.
std::int64_t outer_elements(const ModelSpec& model);
std::int64_t largest_unit_elements(const ModelSpec& model);

// "layer 3", "the embedding" or "the head".
std::string unit_name(const ModelSpec& model, std::int64_t unit);

}  // namespace spillway
