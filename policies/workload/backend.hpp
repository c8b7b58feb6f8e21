// Which backend trains, and what its kernels need. Whatever differs between the backends is stated
// here; Problem::backend() says which one a problem is for.
#pragma once

#include <cstdint>

#include "policies/workload/precision.hpp"

namespace spillway {

struct ModelSpec;

enum class Backend : std::uint8_t {
  cpu,  // exec/cpu: OpenBLAS; its GPU memory is an arena of host memory
  cuda  // exec/cuda: cuBLASLt and own kernels
};
const char* to_string(Backend backend);  // "cpu"

// What the backend computes in unless told otherwise.
Precision usual_precision(Backend backend);

// Bytes of scratch that a layer's backward takes for the gradients of one sequence of T tokens,
// beside the tensors it recomputes. With C channels, A columns of attention, NH heads, in elements
// of `element_bytes`:
//
//   both   T max(fc, qkv)    gradient of what the feed-forward's first product makes (a GPT's fc, a
//                            llama's gate and up) and then, in its place, of qkv
//          T max(C, A)       one gradient of the width of the residual stream, or of attention
//   cpu    2 min(R, T) T     attention's scores and their gradient, for R queries at a time
//   cuda   T NH, in fp32     attention's output times its gradient, summed over each head
//
// fc and qkv stand for ModelSpec::fc_width() and qkv_width().
std::uint64_t gradient_scratch_bytes(Backend backend, const ModelSpec& model, std::int64_t sequence,
                                     std::uint64_t element_bytes);
// R: queries whose scores the CPU backend holds at a time.
inline constexpr std::int64_t attention_chunk_rows = 64;

}  // namespace spillway
