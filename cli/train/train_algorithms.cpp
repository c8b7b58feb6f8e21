#include "cli/train/train_algorithms.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "cli/train/train_checks.hpp"
#include "exec/run/training_record.hpp"

namespace spillway::cli {

void refuse_without_gpu(const CLI::App& command) {
  for (const char* option : {"--tune-matmul", "--retune-matmul", "--gelu-backward"}) {
    if (command.count(option) == 0) continue;
    throw InputError(fmt::format("{}: the CPU backend has no choice of algorithms", option),
                     "leave it out, or train on a GPU: --device cuda");
  }
}

CudaOptions cuda_options(const CLI::App& command, const TrainOptions& options,
                         const Problem& problem, const CudaGpu& gpu,
                         const std::optional<ResumePoint>& point) {
  CudaOptions cuda;
  cuda.device = gpu.id;
  cuda.threads = options.threads;
  cuda.attention = attention_to_train_with(point);
  cuda.tunes_products = options.tune_matmul == "on";
  // Measured in bf16.
  const bool measured = problem.workload.precision == Precision::bf16;
  cuda.gelu_backward = options.gelu_backward != "auto" ? options.gelu_backward
                       : measured                      ? problem.machine.gpu.gelu_backward
                                                       : TrainingRecord::usual_gelu_backward;
  if (!point) return cuda;
  const TrainingRecord record = TrainingRecord::parse(point->record.identity.training);
  if (command.count("--tune-matmul") == 0) cuda.tunes_products = record.tunes_products;
  if (options.gelu_backward == "auto") cuda.gelu_backward = record.gelu_backward;
  if (!options.retune_matmul) cuda.recorded_algorithms = record.algorithms;
  return cuda;
}

void train_on(const CudaOptions& cuda, const Problem& problem, TrainingOptions& training) {
  training.backend = TrainingRecord::cuda_backend;
  training.attention = cuda.attention;
  training.gelu_backward = cuda.gelu_backward;
  training.tunes_products = cuda.tunes_products;
  training.make_device = [problem, cuda](std::uint64_t gpu_bytes, std::uint64_t host_bytes) {
    try {
      return make_cuda_device(problem, gpu_bytes, host_bytes, cuda);
    } catch (const RecordedAlgorithmsRefused& error) {
      throw InputError(error.what(), error.hint() +
                                         ", or choose algorithms anew, after which numbers agree "
                                         "to rounding only: --retune-matmul");
    }
  };
}

}  // namespace spillway::cli
