#include "experiments/train/train_algorithms.hpp"

#include "base/errors.hpp"
#include "exec/run/training_record.hpp"
#include "experiments/train/train_checks.hpp"

namespace spillway {

void refuse_without_gpu(const GivenSettings& given, bool retunes) {
  for (const char* setting : {"tune_matmul", "retune_matmul", "gelu_backward"}) {
    if (!given.contains(setting) && !(retunes && setting == std::string("retune_matmul"))) continue;
    throw InputError(Setting{setting} + ": the CPU backend has no choice of algorithms",
                     "leave it out, or train on a GPU: " + Setting{"device", "cuda"});
  }
}

CudaOptions cuda_options(const TrainSettings& settings, const GivenSettings& given, bool retunes,
                         const Problem& problem, const CudaGpu& gpu,
                         const std::optional<ResumePoint>& point) {
  CudaOptions cuda;
  cuda.device = gpu.id;
  cuda.threads = settings.threads;
  cuda.attention = attention_to_train_with(point);
  cuda.tunes_products = settings.tune_matmul == "on";
  // Calibration measures it in bf16 alone, what a GPU computes in unless told otherwise.
  const bool measured = problem.workload.precision == usual_precision(Backend::cuda);
  cuda.gelu_backward = settings.gelu_backward != "auto" ? settings.gelu_backward
                       : measured                       ? problem.machine.gpu.gelu_backward
                                                        : TrainingRecord::usual_gelu_backward;
  if (!point) return cuda;
  const TrainingRecord record = TrainingRecord::parse(point->record.identity.training);
  if (!given.contains("tune_matmul")) cuda.tunes_products = record.tunes_products;
  if (settings.gelu_backward == "auto") cuda.gelu_backward = record.gelu_backward;
  if (!retunes) cuda.recorded_algorithms = record.algorithms;
  return cuda;
}

void train_on(const CudaOptions& cuda, TrainingOptions& training) {
  training.backend = TrainingRecord::cuda_backend;
  training.attention = cuda.attention;
  training.gelu_backward = cuda.gelu_backward;
  training.tunes_products = cuda.tunes_products;
  training.make_device = [cuda](const Problem& problem, std::uint64_t gpu_bytes,
                                std::uint64_t host_bytes) {
    try {
      return make_cuda_device(problem, gpu_bytes, host_bytes, cuda);
    } catch (const RecordedAlgorithmsRefused& error) {
      throw InputError(error.message(),
                       error.advice() +
                           ", or choose algorithms anew, after which numbers agree "
                           "to rounding only: " +
                           Setting{"retune_matmul"});
    }
  };
}

}  // namespace spillway
