// Which kernels of attention a device gets: those that every GPU from 8.0 on can run, or, where
// they are asked for, those with Hopper's own matrix instructions, once they have proved right on
// it.
//
// They are not the default: their first run on a real GPU is still to come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/cuda/attention/attention.hpp"

namespace spillway::cuda {

// The kernels that compute bf16 of these sizes: those that `sizes` asks for; mma.sync where
// Hopper's lack its head size (they have 64 and 128), a sliding window or borders. (Gradients
// of keys and values of grouped heads of 128 are mma.sync's in any case: hopper_computes_keys().)
AttentionKernels kernels_for(const AttentionSizes& sizes);

// For attention of bf16 with heads of these sizes, with a sliding window of `window` tokens if not
// 0, on the current device. `wanted`: "mma" or "wgmma". For the latter a small text goes through
// both kinds, forward and backward: they must agree within roundings, and a sequence must have the
// same bits wherever it lies. That needs some 150 MB of GPU memory, once. Throws InputError where
// the device, a size of head or a window is not one for them, MachineError where they do not pass.
AttentionKernels choose_attention(const std::string& wanted,
                                  const std::vector<std::int64_t>& head_sizes,
                                  std::int64_t window = 0);

// Whether the current device has compute capability 9.0.
bool is_hopper();

// "wgmma" or "mma.sync".
const char* name_of(AttentionKernels kernels);

// What is wrong with Hopper's kernels for heads of this size (64 or 128) on the current device;
// empty when nothing is. Throws MachineError where CUDA fails: the device is of no use then.
std::string check_hopper_attention(std::int64_t head_size);

}  // namespace spillway::cuda
