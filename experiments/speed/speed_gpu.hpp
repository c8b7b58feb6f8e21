// What the CUDA backend reaches of what the GPU allows: `spillway bench gpu`.
//
// Kernels that memory bounds against a copy, matrix products against bare cuBLASLt, attention
// against the largest rate of a product, training against the datasheet and against that rate.
// Formulas: docs/speed.md.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/calibrate/gpu_under_test.hpp"
#include "experiments/speed/speed_figures.hpp"

namespace spillway {

// Dense bf16 FLOP/s with fp32 sums, as the datasheet of the GPU of this name (as the driver gives
// it) has it; 0: not known here. By the whole name, for variants of a GPU differ in speed.
double datasheet_flops(const std::string& gpu);

// FLOPs that training one token counts for model FLOPs utilization, attention by its causal half,
// as llm.c counts them: 6 N + 6 L C T with N parameters. PaLM (Chowdhery et al., 2022, appendix B)
// counts attention in full: 6 N + 12 L C T.
double training_flops_per_token(const ModelSpec& model, std::int64_t sequence);

// A resident training: steps of one micro-batch, the first of these that fits in memory.
struct GpuTrainingShape {
  ModelSpec model;
  std::int64_t sequence = 1024;
  std::vector<std::int64_t> micro_batches;  // largest first
  int steps = 40;                           // of which the first ones do not count
  double target = 0;                        // least share of the datasheet's rate
};
std::vector<GpuTrainingShape> gpu_training_shapes(bool quick);

// Each measures what it holds figures against, too.
std::vector<SpeedFigure> gpu_memory_figures(const GpuUnderTest& gpu, const GpuBenchOptions& bench);
std::vector<SpeedFigure> gpu_matmul_figures(const GpuUnderTest& gpu, const GpuBenchOptions& bench);
std::vector<SpeedFigure> gpu_attention_figures(const GpuUnderTest& gpu,
                                               const GpuBenchOptions& bench);
// Through Training, as `spillway train` does it. `folder`: where the text lies meanwhile. A shape
// that fits at no micro-batch makes a figure whose note says so. Against the datasheet's rate, and
// under a second name, without a target, against the measured one; where the datasheet is not
// known, the target is of the measured one.
std::vector<SpeedFigure> gpu_training_figures(const GpuUnderTest& gpu, const GpuBenchOptions& bench,
                                              const std::vector<GpuTrainingShape>& shapes,
                                              const std::filesystem::path& folder);

// The tests `gpu/memory`, `gpu/matmul`, `gpu/attention`, `gpu/training` on GPU FigureOptions::gpu:
// all on request only, and InputError where there is none.
std::vector<FigureTest> gpu_figure_tests();

}  // namespace spillway
