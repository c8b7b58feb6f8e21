// Measures this computer for the simulator: kernels by shape, copies, the SSD, the optimizer.
//
// Every figure is the median of at least ten samples; the samples are kept in the machine file with
// their spread. Nothing overlaps while a figure is taken, except where overlap is what is measured
// (both copy directions, mixed reads and writes, the optimizer beside copies): calibrate without
// overlap, validate with it.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exec/io/io_choice.hpp"
#include "experiments/calibrate/gpu_under_test.hpp"
#include "policies/workload/problem.hpp"

namespace spillway {

// How much time and memory the figures of a GPU are taken with; less in tests.
struct GpuCalibrationSizes {
  // The GPU is kept busy with each kernel for so long before its times count.
  double load_seconds = 0.1;
  // Copied to the GPU before the optimizer and short tasks; 0: three times its L2 cache.
  std::uint64_t cache_bytes = 0;
  // Of each side that copies go between, and that the optimizer works on: more than any CPU's
  // caches.
  std::uint64_t link_bytes = std::uint64_t{1} << 30;
  std::uint64_t largest_copy = std::uint64_t{256} << 20;
  GpuBenchSize shapes = GpuBenchSize::full;  // of products and attention
};

struct CalibrationOptions {
  // Whose kernels are measured, at each of these micro-batches.
  ModelSpec model;
  std::int64_t sequence = 256;
  std::vector<std::int64_t> micro_batches;
  std::vector<std::filesystem::path> ssd;    // directories of the ssd tier; one drive each
  std::vector<std::uint32_t> ssd_sets = {};  // of each set of drives how many; empty: one set
  IoChoice io = usual_io();                  // how they are read and written
  int threads = 1;  // of matrix products and of the optimizer, as training will have
  int samples = 11;
  double most_seconds_per_figure = 3;  // a slow figure is given fewer samples, but never under ten
  // Seconds in the place of minutes: few samples (`samples` and most_seconds_per_figure do not
  // count), smaller test files; on the CPU kernels of as many micro-batches, from the smallest up,
  // as a few seconds allow, at smaller shapes where even one would take longer. A drive that cannot
  // be measured is left out, with a note.
  bool brief = false;
  Precision precision = Precision::fp32;
  // What to measure in the place of the CPU backend; and how it will train:
  std::optional<GpuUnderTest> gpu;
  std::int64_t sequences_at_once = 0;  // 0: as training has them
  GpuCalibrationSizes gpu_sizes = {};
};

// Called before each figure: what is measured, and how many of how many are done.
using CalibrationProgress = std::function<void(const std::string& what, int done, int all)>;

// Told in a line what is left out, before anything is measured.
using CalibrationNote = std::function<void(const std::string& text)>;

// Micro-batches that the memory of a GPU, or of its host, has no room for are left out, with a
// note. Throws MachineError when something cannot be measured (no room on the SSD, no I/O),
// FitError where no micro-batch fits, InputError for what the backend does not compute.
Machine calibrate(const CalibrationOptions& options, const CalibrationProgress& progress,
                  const CalibrationNote& note = {});

}  // namespace spillway
