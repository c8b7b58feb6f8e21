// Training on the CUDA backend, for tests: of a GPU where there is one, else emulated.
#pragma once

#include <string>
#include <vector>

#include "exec/cuda/device/cuda_device.hpp"
#include "exec/run/training.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {

// How a training computes on the CUDA backend.
struct CudaChoices {
  std::string attention = "mma", gelu_backward = "kernel";
  bool tunes_products = true;
};

// The same training on the CUDA backend, as the problem is now: its precision is kept. Where it is
// to go on from a commit, with the algorithms that are recorded there.
inline TrainingOptions on_cuda(TrainingOptions options, const CudaChoices& choices = {}) {
  options.problem.machine.gpu.is_cpu = false;
  options.backend = TrainingRecord::cuda_backend;
  options.attention = choices.attention;
  options.gelu_backward = choices.gelu_backward;
  options.tunes_products = choices.tunes_products;
  cuda::CudaDeviceOptions device{0, options.threads, choices.attention, choices.gelu_backward,
                                 choices.tunes_products};
  if (options.resume) {
    device.recorded_algorithms =
        TrainingRecord::parse(options.resume->record.identity.training).algorithms;
  }
  options.make_device = [device](const Problem& problem, std::uint64_t gpu_bytes,
                                 std::uint64_t host_bytes) {
    return std::make_unique<cuda::CudaDevice>(problem, gpu_bytes, host_bytes, device);
  };
  return options;
}

inline TrainingOptions in_bf16(TrainingOptions options, const CudaChoices& choices = {}) {
  options.problem.workload.precision = Precision::bf16;
  return on_cuda(options, choices);
}

struct Trained {
  Losses losses;
  std::vector<double> norms;
  TrainingResult result;
};

inline Trained train(const TrainingOptions& options, Trace* trace = nullptr) {
  Training training(options);
  Trained trained;
  trained.result = training.run(
      [&](const StepResult& step) {
        trained.losses.of_step.push_back(step.loss);
        trained.norms.push_back(step.gradient_norm);
      },
      trace);
  trained.losses.weights_hash = trained.result.weights_hash;
  // What the plan says is what is used; what lies beyond in host memory was never written.
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    INFO(options.policy << " " << to_string(tier));
    CHECK(training.highest_use(tier) <= training.schedule().use(tier).peak_bytes);
  }
  CHECK(training.highest_written(Tier::host) <= training.schedule().use(Tier::host).peak_bytes);
  return trained;
}

}  // namespace spillway::test
