// What the backend takes of the GPU beside the schedule is what planning counts with.
#include <catch2/catch.hpp>

#include "exec/cuda/device/cuda_device.hpp"
#include "policies/machine/gpu_workspaces.hpp"

using namespace spillway;

TEST_CASE("The CUDA backend needs no more workspaces than are planned, whatever the model") {
  // reserved_bytes() asserts that its parts fit into what it returns.
  for (const char* const model :
       {"gpt-tiny", "gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1.5b", "gpt-6b", "gpt-13b",
        "gpt-30b", "gpt-65b", "gpt-175b", "gpt-412b"}) {
    for (const Precision precision : {Precision::bf16, Precision::fp32}) {
      for (const std::int64_t micro_batch : {1, 64}) {
        INFO(model << " " << micro_batch);
        Problem problem;
        problem.model = load_model(model);
        problem.workload.batch = problem.workload.micro_batch = micro_batch;
        problem.workload.precision = precision;
        CHECK(cuda::CudaDevice::reserved_bytes(problem) == gpu_workspace_bytes(problem));
      }
    }
  }
}
