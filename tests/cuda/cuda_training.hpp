// Training on the CUDA backend, for tests: of a GPU where there is one, else emulated.
#pragma once

#include <string>
#include <vector>

#include "exec/cuda/cuda_device.hpp"
#include "exec/training.hpp"
#include "tests/exec/training_support.hpp"

namespace spillway::test {

// The same training on the CUDA backend, as the problem is now: its precision is kept.
inline TrainingOptions on_cuda(TrainingOptions options, const std::string& attention = "mma") {
  options.problem.machine.gpu.is_cpu = false;
  options.attention = attention;
  options.make_device = [problem = options.problem, threads = options.threads, attention](
                            std::uint64_t gpu_bytes, std::uint64_t host_bytes) {
    return std::make_unique<cuda::CudaDevice>(problem, gpu_bytes, host_bytes,
                                              cuda::CudaDeviceOptions{0, threads, attention});
  };
  return options;
}

inline TrainingOptions in_bf16(TrainingOptions options, const std::string& attention = "mma") {
  options.problem.workload.precision = Precision::bf16;
  return on_cuda(options, attention);
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
