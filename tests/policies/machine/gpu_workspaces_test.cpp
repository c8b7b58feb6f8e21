#include "policies/machine/gpu_workspaces.hpp"

#include <catch2/catch.hpp>

#include "policies/model/units.hpp"

using namespace spillway;

namespace {

Problem problem_of(const char* model, std::int64_t batch, std::int64_t micro_batch) {
  Problem problem;
  problem.model = load_model(model);
  problem.workload.batch = batch;
  problem.workload.micro_batch = micro_batch;
  problem.workload.sequence = 1024;
  return problem;
}

}  // namespace

TEST_CASE("Workspaces grow by 28 bytes a token of the micro-batch, and not with layers") {
  const std::uint64_t one = gpu_workspace_bytes(problem_of("gpt2-124m", 64, 1));
  const std::uint64_t many = gpu_workspace_bytes(problem_of("gpt2-124m", 64, 64));
  CHECK(many - one == 63 * 1024 * 28 / 4096 * 4096);
  Problem deeper = problem_of("gpt2-124m", 64, 1);
  deeper.model.layers = 1000;
  CHECK(gpu_workspace_bytes(deeper) == one);
  // Less than 1 % of the smallest GPU a model of the kind is trained on.
  CHECK(one < 60'000'000);
  CHECK(gpu_workspace_bytes(problem_of("gpt-175b", 1, 1)) < 200'000'000);
}

TEST_CASE("A limit of all GPU memory leaves the schedule what workspaces do not take") {
  Problem problem = problem_of("gpt2-124m", 8, 2);
  problem.machine.gpu.memory = 24'000'000'000;
  leave_room_for_workspaces(problem);
  CHECK(problem.machine.gpu.memory == 24'000'000'000);  // a limit of the schedule stays
  const std::uint64_t workspaces = problem.machine.gpu.workspaces;
  CHECK(workspaces == gpu_workspace_bytes(problem_of("gpt2-124m", 8, 8)));  // of any micro-batch

  problem.machine.gpu.limit = 24'000'000'000;
  leave_room_for_workspaces(problem);
  CHECK(problem.machine.gpu.memory == 24'000'000'000 - workspaces);
  problem.machine.gpu.limit = workspaces;
  leave_room_for_workspaces(problem);
  CHECK(problem.machine.gpu.memory == 1);
}
