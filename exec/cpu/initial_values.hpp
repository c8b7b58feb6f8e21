// Initial weights of a model, from a counter-based generator: an element's value depends on the
// seed, its unit and its place in the unit only (counted among adapters, or without these), not on
// the order or the pieces in which units are filled.
#pragma once

#include <cstdint>

#include "policies/model/model.hpp"

namespace spillway {

// Writes elements [first_element, first_element + elements) of `unit` to `values`: matrices
// and tables N(0, 0.02), projections into the residual stream (the second of attention and of the
// feed-forward) N(0, 0.02 / sqrt(2 L)) as in GPT-2 (Radford et al., 2019), norm weights 1, biases
// and padding 0. Of an adapter A is uniform between +-1 / sqrt(in) and B is 0; the model itself has
// the values that it has without adapters.
void initial_values(const ModelSpec& model, std::int64_t unit, std::uint64_t seed,
                    std::int64_t first_element, std::int64_t elements, float* values);

// The whole unit: unit_elements(model, unit) values.
void initial_values(const ModelSpec& model, std::int64_t unit, std::uint64_t seed, float* values);

}  // namespace spillway
