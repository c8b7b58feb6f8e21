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

// What the backend computes in unless told otherwise, and whether it can compute in that at all.
Precision usual_precision(Backend backend);
bool computes_in(Backend backend, Precision precision);

// Bytes of scratch that a layer's backward takes for the gradients of one sequence of T tokens,
// beside the tensors it recomputes. With C channels, F of them in the feed-forward, NH heads, in
// elements of `element_bytes`:
//
//   both   T max(F, 3 C)     gradient of fc and then, in its place, of qkv
//          T C               one gradient of width C
//   cpu    2 min(R, T) T     attention's scores and their gradient, for R queries at a time
//   cuda   T NH, in fp32     attention's output times its gradient, summed over each head
//
// F and 3 C stand for ModelSpec::fc_width() and qkv_width().
std::uint64_t gradient_scratch_bytes(Backend backend, const ModelSpec& model, std::int64_t sequence,
                                     std::uint64_t element_bytes);
// R: queries whose scores the CPU backend holds at a time.
inline constexpr std::int64_t attention_chunk_rows = 64;

}  // namespace spillway
