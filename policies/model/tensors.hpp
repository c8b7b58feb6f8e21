// The granularity of DeepSpeed's ZeRO: parameters move tensor by tensor, and its optimizer takes
// whole tensors.
//
// A tensor here is one weight matrix of a layer together with the norms and biases that follow it
// (0.02 % of a layer of 13B), cut on the element grid. The embedding unit is one tensor in a GPT,
// whose head is tied, and two in a llama.
#pragma once

#include <cstdint>
#include <vector>

#include "policies/model/model.hpp"

namespace spillway {

struct TensorRange {
  int unit = 0;
  std::uint64_t first = 0;  // element in the unit
  std::uint64_t elements = 0;
};

// The tensors of a unit in flat order; they cover it once. A GPT's layer has four (qkv, attention
// projection, up, down), a llama's seven; those that share all their cells of the element grid with
// the one before are part of it.
std::vector<TensorRange> unit_tensors(const ModelSpec& model, int unit);

std::uint64_t largest_tensor(const ModelSpec& model);  // of the layers, in elements

}  // namespace spillway
