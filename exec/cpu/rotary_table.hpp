// Cosines and sines of the rotary embedding (Su et al., "RoFormer", 2021) of a sequence's
// positions.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

// The angle by which pair i of a head's elements turns from one position to the next, for the
// head_width / 2 pairs: theta^(-2 i / head width), scaled by the model's rope_scaling as
// `transformers` scales it. llama3: frequencies whose wavelength exceeds the original positions /
// low frequency factor are divided by the factor, those below original positions / high frequency
// factor are kept, those in between are interpolated.
std::vector<double> rotary_frequencies(const ModelSpec& model);

struct RotaryTable {
  std::vector<float> cosines, sines;  // (T, head_width / 2)
};
// Computed in double and rounded.
RotaryTable rotary_table(const ModelSpec& model, std::int64_t tokens);

}  // namespace spillway
