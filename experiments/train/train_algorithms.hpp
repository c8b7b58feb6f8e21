// By which algorithms the GPU trains, as far as they decide the numbers: what is asked for now, or
// what the training that goes on has recorded.
#pragma once

#include <optional>

#include "exec/run/cuda_module.hpp"
#include "exec/run/training.hpp"
#include "experiments/train/train_settings.hpp"

namespace spillway {

// Throws InputError for settings that say how a GPU computes, where the CPU trains. `retunes`: its
// matrix products are to be tuned anew.
void refuse_without_gpu(const GivenSettings& given, bool retunes);

// How `gpu` is to compute the problem. `given`: the settings that were not left to the program.
CudaOptions cuda_options(const TrainSettings& settings, const GivenSettings& given, bool retunes,
                         const Problem& problem, const CudaGpu& gpu,
                         const std::optional<ResumePoint>& point);

// The device, and what is recorded of it. Where it refuses the algorithms that are recorded, the
// error says by which setting they are chosen anew.
void train_on(const CudaOptions& cuda, TrainingOptions& training);

}  // namespace spillway
