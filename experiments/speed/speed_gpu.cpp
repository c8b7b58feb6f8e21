#include "experiments/speed/speed_gpu.hpp"

#include <fmt/format.h>

#include <string_view>

#include "base/errors.hpp"
#include "exec/run/cuda_module.hpp"

namespace spillway {

namespace {

constexpr double least_of_copy = 0.85, least_of_bare = 0.90, least_of_peak = 0.50;

std::vector<double> rates(double amount, const std::vector<double>& seconds) {
  std::vector<double> all;
  for (const double one : seconds) all.push_back(amount / one);
  return all;
}

// Without a roofline yet.
SpeedFigure figure_of(const GpuTiming& timing) {
  SpeedFigure figure;
  figure.name = "gpu/" + timing.name;
  figure.what = timing.what;
  const bool by_flops = timing.flops > 0;
  figure.unit = by_flops ? "TFLOP/s" : "GB/s";
  const double amount = by_flops ? timing.flops / 1e12 : timing.bytes / 1e9;
  figure.value = median(rates(amount, timing.seconds));
  if (!timing.reference_seconds.empty()) {
    figure.roofline_what = timing.reference;
    figure.roofline = median(rates(amount, timing.reference_seconds));
    for (std::size_t round = 0; round < timing.seconds.size(); ++round)
      figure.ratios.push_back(timing.reference_seconds[round] / timing.seconds[round]);
  }
  if (!timing.best_seconds.empty()) {
    figure.best_of_eight = median(rates(amount, timing.best_seconds));
    figure.best_of_eight_what = timing.best;
    std::vector<double> ratios;
    for (std::size_t round = 0; round < timing.seconds.size(); ++round)
      ratios.push_back(timing.best_seconds[round] / timing.seconds[round]);
    figure.best_of_eight_ratio = median(ratios);
  }
  return figure;
}

// The ways to compute GELU's backward, against the usual one. They round otherwise, so there is no
// target: `spillway calibrate` chooses among them.
void add_gelu_figures(GpuBench& measured, const GpuBenchOptions& bench,
                      std::vector<SpeedFigure>& figures) {
  std::vector<GeluShape> shapes = {{16 * 1024, 768, 4 * 768}, {16 * 1024, 1600, 4 * 1600}};
  if (bench.size == GpuBenchSize::quick) shapes.erase(shapes.begin());
  if (bench.size == GpuBenchSize::tiny) shapes = {{16, 32, 128}};
  for (const GeluShape& shape : shapes) {
    for (const GpuTiming& timing : measured.gelu_backward(shape)) {
      SpeedFigure& figure = figures.emplace_back(figure_of(timing));
      figure.name = fmt::format("gpu/matmul/gelu-backward-{}-c{}", timing.name, shape.hidden);
    }
  }
}

void hold_to(SpeedFigure& figure, const GpuTiming& timing, const SpeedFigure& roofline,
             double target) {
  figure.roofline_what = fmt::format("{} ({})", roofline.name, roofline.what);
  figure.roofline = roofline.value;
  const double amount = timing.flops > 0 ? timing.flops / 1e12 : timing.bytes / 1e9;
  for (const double rate : rates(amount, timing.seconds))
    figure.ratios.push_back(rate / roofline.value);
  figure.target = target;
}

void require_gpu() {
  const CudaDevices devices = find_cuda_devices();
  if (!devices.gpus.empty()) return;
  throw InputError("bench gpu: there is no CUDA GPU here: " + devices.text,
                   "`spillway bench` without names measures what needs none");
}

GpuBenchOptions bench_options(const FigureOptions& options) {
  GpuBenchOptions bench;
  bench.size = options.quick ? GpuBenchSize::quick : GpuBenchSize::full;
  bench.rounds = options.rounds;
  return bench;
}

}  // namespace

double datasheet_flops(const std::string& gpu) {
  struct Known {
    const char* name;
    double flops;
  };
  // As in scripts/gpu_check/machine.py; a test holds them together.
  static constexpr Known known[] = {{"B200", 2250e12},
                                    {"GH200 120GB", 989.5e12},
                                    {"GH200 480GB", 989.5e12},
                                    {"GH200 144G HBM3e", 989.5e12},
                                    {"H200", 989.5e12},
                                    {"H200 NVL", 835.5e12},
                                    {"H100 80GB HBM3", 989.5e12},
                                    {"H100 NVL", 835.5e12},
                                    {"H100 PCIe", 756e12},
                                    {"A100-SXM4-40GB", 312e12},
                                    {"A100-SXM4-80GB", 312e12},
                                    {"A100-PCIE-40GB", 312e12},
                                    {"A100 80GB PCIe", 312e12},
                                    {"L40S", 362e12},
                                    {"L4", 121e12},
                                    {"GeForce RTX 4090", 165.2e12}};
  constexpr std::string_view maker = "NVIDIA ";
  const std::string_view whole = gpu;
  const std::string_view name =
      whole.substr(0, maker.size()) == maker ? whole.substr(maker.size()) : whole;
  for (const Known& one : known) {
    if (name == one.name) return one.flops;
  }
  return 0;
}

double training_flops_per_token(const ModelSpec& model, std::int64_t sequence) {
  return 6 * static_cast<double>(model.parameters()) + 6 * static_cast<double>(model.layers) *
                                                           static_cast<double>(model.hidden) *
                                                           static_cast<double>(sequence);
}

std::vector<SpeedFigure> gpu_memory_figures(const GpuUnderTest& gpu, const GpuBenchOptions& bench) {
  const auto measured = gpu.make_bench(bench);
  std::vector<SpeedFigure> figures = {figure_of(measured->copy())};
  figures.front().note = "every byte read and written: what memory gives";
  for (const GpuTiming& timing : measured->memory_bound()) {
    SpeedFigure& figure = figures.emplace_back(figure_of(timing));
    hold_to(figure, timing, figures.front(), least_of_copy);
  }
  return figures;
}

std::vector<SpeedFigure> gpu_matmul_figures(const GpuUnderTest& gpu, const GpuBenchOptions& bench) {
  const auto measured = gpu.make_bench(bench);
  std::vector<SpeedFigure> figures = {figure_of(measured->matmul_peak())};
  const double datasheet = datasheet_flops(gpu.info.name);
  if (datasheet > 0) {
    figures.front().note =
        fmt::format("{:.0f} % of the datasheet's {:.1f} TFLOP/s",
                    100 * figures.front().value * 1e12 / datasheet, datasheet / 1e12);
  }
  for (const GpuTiming& timing : measured->matmuls())
    figures.emplace_back(figure_of(timing)).target = least_of_bare;
  add_gelu_figures(*measured, bench, figures);
  return figures;
}

std::vector<SpeedFigure> gpu_attention_figures(const GpuUnderTest& gpu,
                                               const GpuBenchOptions& bench) {
  const auto measured = gpu.make_bench(bench);
  const SpeedFigure peak = figure_of(measured->matmul_peak());
  std::vector<SpeedFigure> figures;
  for (const GpuTiming& timing : measured->attention()) {
    SpeedFigure own = figure_of(timing);
    SpeedFigure& figure = figures.emplace_back(own);
    figure.note = timing.note;
    if (!own.ratios.empty())
      figure.note = fmt::format("{:.2f} times as fast as {}", own.ratio(), timing.reference);
    figure.ratios.clear();
    hold_to(figure, timing, peak, least_of_peak);
  }
  return figures;
}

std::vector<FigureTest> gpu_figure_tests() {
  const auto test = [](const char* name, const char* what, auto measure) {
    FigureTest one;
    one.name = name;
    one.what = what;
    one.on_request = true;
    one.run = [measure](const FigureOptions& options) {
      require_gpu();
      return measure(open_gpu(options.gpu, 1), bench_options(options), options);
    };
    return one;
  };
  using Gpu = GpuUnderTest;
  using Bench = GpuBenchOptions;
  return {
      test("gpu/memory", "kernels of the CUDA backend that memory bounds, against a copy",
           [](const Gpu& gpu, const Bench& bench, const FigureOptions&) {
             return gpu_memory_figures(gpu, bench);
           }),
      test("gpu/matmul", "its matrix products, against bare cuBLASLt",
           [](const Gpu& gpu, const Bench& bench, const FigureOptions&) {
             return gpu_matmul_figures(gpu, bench);
           }),
      test("gpu/attention", "its attention, against the largest rate of a matrix product",
           [](const Gpu& gpu, const Bench& bench, const FigureOptions&) {
             return gpu_attention_figures(gpu, bench);
           }),
      test("gpu/training", "resident training on it: model FLOPs utilization",
           [](const Gpu& gpu, const Bench& bench, const FigureOptions& options) {
             return gpu_training_figures(gpu, bench, gpu_training_shapes(options.quick),
                                         options.ssd.front());
           }),
  };
}

}  // namespace spillway
