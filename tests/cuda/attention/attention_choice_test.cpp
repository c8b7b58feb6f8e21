// Which kernels of attention a device gets.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/errors.hpp"
#include "exec/cuda/attention/attention_choice.hpp"
#include "exec/run/cuda_module.hpp"

namespace spillway::cuda {
namespace {

TEST_CASE("Hopper's kernels of attention pass their own check on a Hopper", "[hopper]") {
  if (!is_hopper()) return;
  for (const std::int64_t head_size : {64, 128}) CHECK(check_hopper_attention(head_size) == "");
}

TEST_CASE("Hopper's kernels of attention are for a Hopper, and heads of 64 and 128",
          "[attention]") {
  CHECK(choose_attention("mma", {64}) == AttentionKernels::mma_sync);
  CHECK(choose_attention("mma", {40}) == AttentionKernels::mma_sync);
  CHECK_THROWS_AS(choose_attention("wgmma", {96}), InputError);
  CHECK_THROWS_AS(choose_attention("wgmma", {128}, 1024), InputError);
  CHECK(choose_attention("mma", {128}, 1024) == AttentionKernels::mma_sync);
  if (is_hopper()) {
    CHECK(choose_attention("wgmma", {128}) == AttentionKernels::wgmma);
  } else {
    CHECK_THROWS_AS(choose_attention("wgmma", {128}), InputError);
  }
}

TEST_CASE("SPILLWAY_CUDA_ATTENTION decides which kernels of attention there are", "[attention]") {
  unsetenv("SPILLWAY_CUDA_ATTENTION");
  CHECK(cuda_attention() == "mma");
  for (const char* value : {"mma", "wgmma"}) {
    setenv("SPILLWAY_CUDA_ATTENTION", value, 1);
    CHECK(cuda_attention() == value);
  }
  setenv("SPILLWAY_CUDA_ATTENTION", "fast", 1);
  CHECK_THROWS_WITH(cuda_attention(), Catch::Contains("SPILLWAY_CUDA_ATTENTION=fast"));
  unsetenv("SPILLWAY_CUDA_ATTENTION");
}

}  // namespace
}  // namespace spillway::cuda
