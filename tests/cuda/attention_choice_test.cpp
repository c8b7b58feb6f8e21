// Which kernels of attention a device gets.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "base/errors.hpp"
#include "exec/cuda/attention_choice.hpp"
#include "exec/cuda/launch.hpp"

namespace spillway::cuda {
namespace {

bool on_hopper() {
  int device = 0, major = 0, minor = 0;
  SPILLWAY_CUDA(cudaGetDevice(&device));
  SPILLWAY_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  SPILLWAY_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
}

class Variable {
 public:
  explicit Variable(const char* value) { setenv("SPILLWAY_CUDA_ATTENTION", value, 1); }
  ~Variable() { unsetenv("SPILLWAY_CUDA_ATTENTION"); }
};

TEST_CASE("Hopper's kernels of attention pass their own check on a Hopper") {
  if (!on_hopper()) return;
  for (const std::int64_t head_size : {64, 128}) CHECK(check_hopper_attention(head_size) == "");
}

TEST_CASE("A Hopper gets its own kernels of attention for heads of 64 and 128") {
  const auto expected = on_hopper() ? AttentionKernels::wgmma : AttentionKernels::mma_sync;
  const AttentionChoice choice = choose_attention({128});
  CHECK(choice.kernels == expected);
  CHECK(choice.warning == "");
  CHECK(choose_attention({16, 96}).kernels == AttentionKernels::mma_sync);
}

TEST_CASE("SPILLWAY_CUDA_ATTENTION decides which kernels of attention there are") {
  {
    const Variable mma("mma");
    CHECK(choose_attention({64}).kernels == AttentionKernels::mma_sync);
  }
  {
    const Variable wgmma("wgmma");
    if (on_hopper()) {
      CHECK(choose_attention({64}).kernels == AttentionKernels::wgmma);
    } else {
      CHECK_THROWS_AS(choose_attention({64}), InputError);
    }
  }
  const Variable other("fast");
  CHECK_THROWS_WITH(choose_attention({64}), Catch::Contains("SPILLWAY_CUDA_ATTENTION=fast"));
}

}  // namespace
}  // namespace spillway::cuda
