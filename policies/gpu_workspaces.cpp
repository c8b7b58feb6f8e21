#include "policies/gpu_workspaces.hpp"

#include <algorithm>

namespace spillway {

std::uint64_t gpu_workspace_bytes(const Problem& problem) {
  constexpr std::uint64_t mebi = std::uint64_t{1} << 20;
  constexpr std::uint64_t matrix_products = 32 * mebi;
  // Kernels that sum over rows leave partial sums of each column, wide tensors fewer of a column
  // than narrow ones; the norm of a gradient one number of 8 bytes for 2048 elements.
  constexpr std::uint64_t least_partials = 20 * mebi, partials_of_column = 1280;
  const ModelSpec& model = problem.model;
  const auto columns = static_cast<std::uint64_t>(std::max(model.ffn, 3 * model.hidden));
  const auto elements = static_cast<std::uint64_t>(
      std::max(unit_elements(model, 0), unit_elements(model, model.layers)));
  const auto tokens =
      static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence);
  constexpr std::uint64_t bytes_of_token = 24;  // tokens, targets, their order, losses
  const std::uint64_t bytes = matrix_products +
                              std::max(least_partials, partials_of_column * columns) +
                              elements / 256 + bytes_of_token * tokens + mebi / 16;
  return (bytes + 4095) / 4096 * 4096;
}

void leave_room_for_workspaces(Problem& problem) {
  Machine::Gpu& gpu = problem.machine.gpu;
  // Whatever micro-batch is chosen later.
  Problem largest = problem;
  largest.workload.micro_batch = problem.workload.batch;
  gpu.workspaces = gpu_workspace_bytes(largest);
  if (gpu.limit == 0) return;
  gpu.memory = gpu.limit > gpu.workspaces ? gpu.limit - gpu.workspaces : 1;
}

}  // namespace spillway
