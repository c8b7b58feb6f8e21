#include "policies/machine/gpu_workspaces.hpp"

#include <algorithm>

#include "policies/model/units.hpp"

namespace spillway {

std::uint64_t gpu_workspace_bytes(const Problem& problem) {
  constexpr std::uint64_t mebi = std::uint64_t{1} << 20;
  constexpr std::uint64_t matrix_products = 32 * mebi;
  // Norms' backward leaves up to 512 partial sums of each column, for four outputs; other kernels
  // that sum over rows less than least_partials. The norm of a gradient leaves one number of 8
  // bytes for 2048 elements; GELU's backward in a product one row.
  constexpr std::uint64_t least_partials = 12 * mebi, partials_of_column = 8192;
  const ModelSpec& model = problem.model;
  const auto columns = static_cast<std::uint64_t>(model.hidden),
             row = 4 * static_cast<std::uint64_t>(model.ffn);
  const auto elements = static_cast<std::uint64_t>(largest_trained_elements(model));
  const auto tokens =
      static_cast<std::uint64_t>(problem.workload.micro_batch * problem.workload.sequence);
  // A llama's cosines and sines of rotary positions, half as many columns each as a head has.
  const std::uint64_t rotary =
      model.architecture == Architecture::llama
          ? 4 * static_cast<std::uint64_t>(problem.workload.sequence * model.width_of_head())
          : 0;
  // Tokens, targets, their order, losses, and targets again while algorithms are tried.
  constexpr std::uint64_t bytes_of_token = 28;
  const std::uint64_t bytes = matrix_products +
                              std::max(least_partials, partials_of_column * columns) + row +
                              elements / 256 + bytes_of_token * tokens + rotary + mebi / 4;
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
