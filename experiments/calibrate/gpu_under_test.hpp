// The GPU that is calibrated or held to its limits: what the CUDA module makes, or what a test puts
// in its place.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "exec/run/gpu_bench.hpp"
#include "exec/run/host_place.hpp"
#include "experiments/calibrate/kernel_bench.hpp"

namespace spillway {

struct GpuUnderTest {
  GpuInfo info;
  // Bytes of its memory that training takes beside what the schedule plans.
  std::function<std::uint64_t(const Problem& problem)> reserved_bytes;
  MakeDevice make_device;
  std::function<std::unique_ptr<GpuBench>(const GpuBenchOptions& options)> make_bench;
  HostPlace place = {};  // beside the GPU, as training has it
};

// GPU number `gpu` as nvidia-smi counts, or the first that can be used, with so many threads for
// the optimizer on the CPU. Throws InputError, with CUDA's reason, where there is none.
GpuUnderTest open_gpu(std::optional<int> gpu, int threads);

}  // namespace spillway
