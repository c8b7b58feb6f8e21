// The units of a model, and where each tensor of a unit lies inside its flat buffers.
//
// Units 0 .. L-1 are the layers and unit L is the embedding. Where the head is tied to the token
// table, unit L has the final norm, too, and the head reads that unit; where the head has a matrix
// of its own, unit L+1 is the head, with the final norm. A unit's parameters are a flat array of
// elements in the order listed here ([out, in] matrices, as in llm.c): first the trained tensors,
// then the frozen ones, each of the two parts padded to `element_alignment` so that any cut on that
// grid is 4096-byte aligned in 16-bit and in 32-bit form. The unit's gradient and optimizer state
// are flat arrays of its first part alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

inline constexpr std::int64_t element_alignment = 2048;       // elements
inline constexpr std::string_view all_linear = "all-linear";  // of lora_targets: every matrix
inline constexpr std::uint64_t buffer_alignment = 4096;       // bytes, every buffer in every tier

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
  bool trained = true;       // has a gradient and optimizer state; else its values never change
  std::int64_t elements() const { return rows * columns; }
};

// The tensors of a unit, in flat order. Matrices that read the same input follow one another, so
// that one product computes them: queries, keys and values; gate and up.
std::vector<TensorLayout> unit_layout(const ModelSpec& model, std::int64_t unit);

// First element of the tensor of that name, which the layout has.
std::int64_t offset_of(const std::vector<TensorLayout>& layout, std::string_view name);

// The matrices of a layer that have adapters, in flat order, and their adapters in the same unit.
// Those of one `group` have the same input; their A follow one another, so that one product
// computes them, and their B follow these, in order.
struct AdaptedMatrix {
  std::string_view name;  // of the matrix
  std::string_view a_name, b_name;
  std::int64_t rows = 0, columns = 0;     // of the matrix: out, in
  std::int64_t matrix = 0, a = 0, b = 0;  // first elements in the unit
  int group = 0;
};
std::vector<AdaptedMatrix> adapted_matrices(const ModelSpec& model);

// Of the group with the most: matrices times rank; and the columns of the widest input. 0 without
// adapters.
struct AdapterWidths {
  std::int64_t ranks = 0, input = 0;
};
AdapterWidths adapter_widths(const ModelSpec& model);

// The names that lora_targets may have, without layer and ".weight" and shortest first: of a llama
// "q_proj" .. "down_proj"; of a GPT "c_attn", "c_fc", and "c_proj", which are two, or
// "attn.c_proj" and "mlp.c_proj", as PEFT takes them.
std::vector<std::string> lora_targets(
    const ModelSpec& model);  // the parts of ModelSpec::lora_targets
std::vector<std::string> lora_target_names(const ModelSpec& model);

// Elements of a unit: of its tensors alone; of all, padded as above; of the first part, which is
// trained, 0 where all is frozen.
std::int64_t unit_parameters(const ModelSpec& model, std::int64_t unit);
std::int64_t unit_elements(const ModelSpec& model, std::int64_t unit);
std::int64_t trained_elements(const ModelSpec& model, std::int64_t unit);

// Of all units after the layers, together; and of the largest unit.
std::int64_t outer_elements(const ModelSpec& model);
std::int64_t largest_unit_elements(const ModelSpec& model);
// The same of the trained parts.
std::int64_t outer_trained_elements(const ModelSpec& model);
std::int64_t largest_trained_elements(const ModelSpec& model);

// "layer 3", "the embedding" or "the head".
std::string unit_name(const ModelSpec& model, std::int64_t unit);

}  // namespace spillway
