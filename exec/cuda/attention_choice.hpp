// Which kernels of attention a device gets: those with Hopper's own matrix instructions where the
// GPU is one and they prove right on it, else those that every GPU from 8.0 on can run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exec/cuda/attention.hpp"

namespace spillway::cuda {

struct AttentionChoice {
  AttentionKernels kernels = AttentionKernels::mma_sync;
  std::string warning;  // why Hopper's were not taken although they could be; else empty
};

// For attention of bf16 with heads of these sizes on the current device. Where the device has
// compute capability 9.0 and a size is one that Hopper's kernels compute, a small text goes through
// both kinds, forward and backward: if they agree within roundings, and a sequence has the same
// bits wherever it lies, Hopper's are taken. That needs some 150 MB of GPU memory for some 20 ms,
// and has to come before any other use of the device: where a kernel fails on it, the device is
// reset.
//
// SPILLWAY_CUDA_ATTENTION=mma or =wgmma decides instead; nothing is checked then. Throws InputError
// when it says something else, or wgmma where the GPU has none; MachineError when the device cannot
// be used after a failure.
AttentionChoice choose_attention(const std::vector<std::int64_t>& head_sizes);

// "wgmma" or "mma.sync".
const char* name_of(AttentionKernels kernels);

// What is wrong with Hopper's kernels for heads of this size (64 or 128) on the current device;
// empty when nothing is. Throws MachineError where CUDA fails.
std::string check_hopper_attention(std::int64_t head_size);

}  // namespace spillway::cuda
