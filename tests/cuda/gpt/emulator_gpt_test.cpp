// What only the emulated CUDA can show of GptCuda and Matmul: which calls a step makes, what
// failures become, and that no order of threads or streams changes a bit.
#include <algorithm>
#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "tests/cuda/model/model_step.hpp"
#include "tests/emulator/emulator.hpp"

using namespace spillway;
using namespace spillway::cuda;
using Catch::Matchers::Contains;

namespace {

// The emulated machine as new, before and after a test.
struct Fresh {
  Fresh() { emulator::reset(); }
  ~Fresh() { emulator::reset(); }
};

struct Case {
  Problem problem = in_precision_of<bf16>(gpt_problem(37, 2, 16, 2, 10, 4, 2), 2);
  DeviceArray<std::byte> workspace{model_workspace_bytes(problem)};
  ModelStep<bf16> step{problem, workspace, random_parameters(problem.model, 1),
                       random_tokens(problem, 2), random_tokens(problem, 3)};
};

// The text and hint of what a product throws when the call of this name returns `status`.
std::pair<std::string, std::string> failure(const std::string& call, int status) {
  const Fresh fresh;
  const TestStream stream;
  const DeviceArray<std::byte> workspace(Matmul::workspace_bytes);
  const DeviceArray<bf16> x(4 * 8), w(16 * 8), y(4 * 16);
  emulator::fail(call, 1, static_cast<cudaError_t>(status));
  try {
    Matmul matmul(workspace.data());
    matmul.linear<bf16>(x.data(), w.data(), nullptr, nullptr, y.data(), 4, 8, 16, stream);
  } catch (const MachineError& error) {
    return {error.what(), error.hint()};
  }
  return {};
}

}  // namespace

TEST_CASE("GptCuda: after one step, the next only launches kernels, products and fills") {
  // No allocation, no object of cuBLASLt, no heuristics, and nothing that makes the host wait.
  const Fresh fresh;
  Case test;
  test.step.enqueue();
  const ModelStepResult first = test.step.result();
  emulator::reset_counts();
  test.step.enqueue();
  const std::vector<std::string> may = {
      "cublasLtMatmul",         "cublasLtMatmulDescSetAttribute",
      "cudaLaunchKernelExC",    "cudaLaunchKernelEx",
      "cudaFuncSetAttribute",   "cudaGetDevice",
      "cudaDeviceGetAttribute", "cudaMemsetAsync",
      "cudaMemcpyAsync",  // of the test
  };
  for (const auto& [name, count] : emulator::counts()) {
    // What the stream has run so far is no call: how much that is depends on its thread.
    if (name.starts_with("kernel ") || name.starts_with("product by algorithm ")) continue;
    INFO(name << ": " << count);
    CHECK(std::find(may.begin(), may.end(), name) != may.end());
  }
  CHECK(emulator::count("cublasLtMatmul") > 0);
  CHECK(emulator::synchronizations() == 0);
  CHECK(same_bits(test.step.result(), first));
}

TEST_CASE("GptCuda: the order in which threads and blocks run changes no bit") {
  const Fresh fresh;
  Case test;
  test.step.enqueue();
  const ModelStepResult expected = test.step.result();
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    INFO("seed " << seed);
    emulator::seed(seed);
    test.step.enqueue();
    CHECK(same_bits(test.step.result(), expected));
  }
}

TEST_CASE("Matmul: failures say which product, which call and what to try") {
  constexpr int not_initialized = 1, alloc_failed = 3, execution_failed = 13, not_supported = 15;
  const auto [execution, try_driver] = failure("cublasLtMatmul", execution_failed);
  CHECK_THAT(execution, Contains("y = x w^T (bf16 to bf16; 8 x 16 by 8 x 4"));
  CHECK_THAT(execution, Contains("cublasLtMatmul: CUBLAS_STATUS_EXECUTION_FAILED"));
  CHECK_THAT(try_driver, Contains("driver"));
  const auto [heuristics, hint] = failure("cublasLtMatmulAlgoGetHeuristic", not_supported);
  CHECK_THAT(heuristics, Contains("cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED"));
  CHECK_THAT(failure("cublasLtMatmul", alloc_failed).second, Contains("gpu.memory"));
  CHECK_THAT(failure("cublasLtCreate", not_initialized).first,
             Contains("cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"));
}

TEST_CASE("Matmul: a shape that failed once is tried again") {
  const Fresh fresh;
  const TestStream stream;
  const DeviceArray<std::byte> workspace(Matmul::workspace_bytes);
  const DeviceArray<bf16> x(random_normal<bf16>(32, 1.0f, 1)), w(random_normal<bf16>(128, 1.0f, 2));
  const DeviceArray<bf16> y(64);
  Matmul matmul(workspace.data());
  const auto product = [&] {
    matmul.linear<bf16>(x.data(), w.data(), nullptr, nullptr, y.data(), 4, 8, 16, stream);
  };
  emulator::fail("cublasLtMatmulAlgoGetHeuristic", 1, static_cast<cudaError_t>(15));
  CHECK_THROWS_AS(product(), MachineError);
  CHECK(matmul.shapes() == 0);
  CHECK_NOTHROW(product());
  CHECK(matmul.shapes() == 1);
}
