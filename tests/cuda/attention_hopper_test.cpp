// Attention with Hopper's matrix instructions against fp64, with the bounds that the other kernels
// are held to.
#include <catch2/catch.hpp>

#include "tests/cuda/attention_run.hpp"

namespace spillway::cuda {
namespace {

AttentionCase hopper_case(std::int64_t sequences, std::int64_t tokens, std::int64_t heads,
                          std::int64_t head_size, std::int64_t gap = 0, double magnitude = 1.0) {
  AttentionCase c = attention_case(sequences, tokens, heads, head_size, gap, magnitude);
  c.sizes.kernels = AttentionKernels::wgmma;
  return c;
}

// Lengths around the sizes of tiles: 64 rows of a warpgroup, 128 keys, 128 and 192 queries.
std::vector<AttentionCase> cases() {
  std::vector<AttentionCase> all;
  const std::int64_t tokens[] = {1, 7, 63, 64, 65, 127, 128, 129, 193, 200, 257, 390};
  for (std::int64_t t = 0; t < 12; ++t)
    for (const std::int64_t head_size : {64, 128})
      all.push_back(hopper_case(1 + t % 2, tokens[t], 1 + t % 3, head_size, t % 4 * 5));
  return all;
}

TEST_CASE("Attention on Hopper is that of fp64 within its roundings") {
  for (const AttentionCase& c : cases()) check_forward<bf16>(c, Way::fast);
}

TEST_CASE("Attention's gradients on Hopper are those of fp64 within its roundings") {
  for (const AttentionCase& c : cases()) check_backward<bf16>(c, Way::fast);
}

}  // namespace
}  // namespace spillway::cuda
