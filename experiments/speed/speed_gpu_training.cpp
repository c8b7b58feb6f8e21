// Resident training on a GPU, through Training itself, held against what the GPU's tensor cores
// give: model FLOPs utilization.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <random>

#include "base/errors.hpp"
#include "base/rounding.hpp"
#include "exec/run/arena.hpp"
#include "exec/run/available_memory.hpp"
#include "exec/run/training.hpp"
#include "experiments/calibrate/scratch_folder.hpp"
#include "experiments/speed/speed_gpu.hpp"
#include "experiments/train/train_device.hpp"

namespace spillway {

namespace {

// Steps that are issued task by task, captured into graphs, or replayed first.
constexpr std::size_t warm_up_steps = 8;
constexpr std::size_t text_bytes = std::size_t{4} << 20;

Problem problem_of(const GpuUnderTest& gpu, const GpuTrainingShape& shape,
                   std::int64_t micro_batch) {
  Problem problem;
  problem.model = shape.model;
  Workload& workload = problem.workload;
  workload.batch = workload.micro_batch = workload.sequences_at_once = micro_batch;
  workload.sequence = shape.sequence;
  workload.precision = Precision::bf16;
  problem.validate();
  Machine& machine = problem.machine;
  machine.name = "this machine";
  machine.host.memory = round_down(available_memory() / 2, buffer_alignment);
  machine.gpu.memory = gpu_tier_bytes(gpu.info.free_memory, gpu.reserved_bytes(problem));
  return problem;
}

std::optional<Problem> fitting(const GpuUnderTest& gpu, const GpuTrainingShape& shape) {
  for (const std::int64_t micro_batch : shape.micro_batches) {
    Problem problem = problem_of(gpu, shape, micro_batch);
    if (build_schedule(problem, "resident", 2).fits()) return problem;
  }
  return std::nullopt;
}

// Seconds of the steps that count.
std::vector<double> train(const GpuUnderTest& gpu, const Problem& problem, int steps,
                          const std::filesystem::path& text) {
  TrainingOptions options;
  options.problem = problem;
  options.policy = "resident";
  options.backend = TrainingRecord::cuda_backend;
  options.steps = steps;
  options.data = {text};
  options.binary_data = true;
  options.make_device = [&](const Problem& of, std::uint64_t gpu_bytes, std::uint64_t host_bytes) {
    return gpu.make_device(of, gpu_bytes, host_bytes);
  };
  Training training(options);
  std::vector<double> seconds;
  training.run([&](const StepResult& step) { seconds.push_back(step.seconds); }, nullptr);
  SPILLWAY_ASSERT(seconds.size() > warm_up_steps);
  seconds.erase(seconds.begin(), seconds.begin() + warm_up_steps);
  return seconds;
}

void write_text(const std::filesystem::path& path) {
  std::mt19937_64 random(1);
  std::string bytes(text_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random() % 256);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace

// The targets are the lower ends of what docs/cuda.md counts on; scripts/gpu_check/verdicts.py has
// them, too, and a test holds them together.
std::vector<GpuTrainingShape> gpu_training_shapes(bool quick) {
  std::vector<GpuTrainingShape> shapes = {
      {load_model("gpt2-124m", {}), 1024, {64, 32, 16, 8, 4}, quick ? 20 : 60, 0.40}};
  if (!quick) shapes.push_back({load_model("gpt2-1.5b", {}), 1024, {32, 16, 8, 4, 2, 1}, 24, 0.46});
  return shapes;
}

std::vector<SpeedFigure> gpu_training_figures(const GpuUnderTest& gpu, const GpuBenchOptions& bench,
                                              const std::vector<GpuTrainingShape>& shapes,
                                              const std::filesystem::path& folder) {
  const GpuTiming peak_timing = gpu.make_bench(bench)->matmul_peak();
  const double peak = peak_timing.flops / median(peak_timing.seconds);
  const double datasheet = datasheet_flops(gpu.info.name);
  const ScratchFolder scratch(folder);
  const std::filesystem::path text = scratch.path() / "text";
  write_text(text);
  std::vector<SpeedFigure> figures;
  for (const GpuTrainingShape& shape : shapes) {
    SpeedFigure figure;
    figure.name = "gpu/training/" + shape.model.name;
    figure.unit = "TFLOP/s";
    const std::optional<Problem> problem = fitting(gpu, shape);
    if (!problem) {
      figure.what = fmt::format("resident training, T = {}", shape.sequence);
      figure.note = fmt::format("not measured: it does not fit in the memory of {}", gpu.info.name);
      figures.push_back(std::move(figure));
      continue;
    }
    const Workload& workload = problem->workload;
    const double flops = training_flops_per_token(shape.model, shape.sequence) *
                         static_cast<double>(workload.tokens_per_step());
    const std::vector<double> seconds = train(gpu, *problem, shape.steps, text);
    const double step = median(seconds);
    figure.what = fmt::format("resident training in bf16, {} sequences of {} tokens a step",
                              workload.batch, shape.sequence);
    figure.value = flops / step / 1e12;
    const auto against = [&](double rate, const std::string& what) {
      figure.roofline_what = what;
      figure.roofline = rate / 1e12;
      figure.ratios.clear();
      for (const double one : seconds) figure.ratios.push_back(flops / one / rate);
    };
    const std::string measured = "the largest measured rate of a matrix product";
    figure.target = shape.target;
    figure.note = fmt::format("{:.1f} ms a step, {:.0f} tokens/s; FLOPs: 6 N + 6 L C T a token",
                              1e3 * step, static_cast<double>(workload.tokens_per_step()) / step);
    if (datasheet > 0) {
      against(datasheet, "dense bf16 of the datasheet: MFU");
      figures.push_back(figure);
      figure.name += "/measured-peak";
      figure.target = 0;
    }
    against(peak, measured);
    figures.push_back(std::move(figure));
  }
  return figures;
}

}  // namespace spillway
