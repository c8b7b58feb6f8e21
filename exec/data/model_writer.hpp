// Writes a model's weights as transformers reads them: safetensors with its names and layouts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/directory.hpp"
#include "base/new_file.hpp"
#include "exec/data/element_type.hpp"
#include "exec/data/transposed_matrix.hpp"
#include "policies/model/model.hpp"

namespace spillway {

// `count` weights of a unit from element `first` on.
using WeightValues =
    std::function<void(std::int64_t unit, std::uint64_t first, std::uint64_t count, float* to)>;

// What a written file replaces: weights that Spillway wrote.
const ReplaceOnly& only_an_export();

// All adapters, by PEFT's names. `frozen_hash`: WeightsSeal::data of the weights that they were
// trained beside, for Checkpoint::frozen_hash(); 0: drawn from a seed.
void write_adapter(const FilePlace& place, const ModelSpec& model, const WeightValues& values,
                   ElementType type, std::uint64_t frozen_hash);
inline constexpr const char* frozen_hash_key = "frozen_weights";  // of the file's metadata

struct WeightFiles {
  ElementType type = ElementType::f32;
  // Of a file; a tensor that is larger has a file of its own. One file: model.safetensors; more:
  // model-00001-of-00003.safetensors and the index of transformers.
  std::uint64_t most_bytes = std::uint64_t{5} << 30;
  // Told the bytes written so far and in all; may be empty.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress;
  // Memory for a strip of a matrix that is written transposed: where it holds all of the matrix,
  // the matrix is read once.
  std::int64_t strip_bytes = TransposedMatrix::usual_strip_bytes;
};

// Into a folder. Returns the number of files of weights. Throws as write_safetensors().
std::size_t write_weights(const Directory& folder, const ModelSpec& model,
                          const WeightValues& values, const WeightFiles& files);

// Whether write_weights() may give a file this name.
bool is_weights_name(const std::string& name);
// Removes the weights in a folder that write_weights() wrote, the index first. Throws InputError
// where others lie there, MachineError where they cannot be removed.
void remove_weights(const Directory& folder);

}  // namespace spillway
