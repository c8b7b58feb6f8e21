// What training on a GPU takes of its memory beside the schedule: known by shape, so that a limit
// of GPU memory means the same to every command, with and without a GPU.
#pragma once

#include <cstdint>

#include "policies/workload/problem.hpp"

namespace spillway {

// Bytes of the CUDA backend's workspaces (exec/cuda/device/cuda_device.hpp takes exactly these):
// matrix products, partial sums of kernels, the text and losses of a micro-batch. It grows by 28
// bytes per token of a micro-batch; else by the model's width alone.
std::uint64_t gpu_workspace_bytes(const Problem& problem);

// Sets machine.gpu.workspaces, those of the largest micro-batch that there can be, and with a
// machine.gpu.limit machine.gpu.memory to what that leaves for the schedule: one byte where it
// leaves nothing, so that the schedule does not fit and its error says what would.
void leave_room_for_workspaces(Problem& problem);

}  // namespace spillway
