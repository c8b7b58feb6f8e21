// By which algorithms the GPU trains, as far as they decide the numbers: what is asked for now, or
// what the training that goes on has recorded.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>

#include "cli/train/train_options.hpp"
#include "exec/run/cuda_module.hpp"
#include "exec/run/training.hpp"

namespace spillway::cli {

// Throws InputError for options of `train` that say how a GPU computes, where the CPU trains.
void refuse_without_gpu(const CLI::App& command);

// How `gpu` is to compute the problem.
CudaOptions cuda_options(const CLI::App& command, const TrainOptions& options,
                         const Problem& problem, const CudaGpu& gpu,
                         const std::optional<ResumePoint>& point);

// The device, and what is recorded of it. Where it refuses the algorithms that are recorded, the
// error says by which option they are chosen anew.
void train_on(const CudaOptions& cuda, const Problem& problem, TrainingOptions& training);

}  // namespace spillway::cli
