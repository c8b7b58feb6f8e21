// The GPU that is calibrated or held to its limits: what the CUDA module makes, or what a test puts
// in its place.
#pragma once

#include <functional>
#include <memory>

#include "exec/gpu_bench.hpp"
#include "experiments/kernel_bench.hpp"

namespace spillway {

struct GpuUnderTest {
  GpuInfo info;
  // Bytes of its memory that training takes beside what the schedule plans.
  std::function<std::uint64_t(const Problem& problem)> reserved_bytes;
  MakeDevice make_device;
  std::function<std::unique_ptr<GpuBench>(const GpuBenchOptions& options)> make_bench;
};

// GPU number `device`, with so many threads for the optimizer on the CPU. Throws MachineError where
// there is no GPU or no CUDA module, InputError where there is none of that number.
GpuUnderTest open_gpu(int device, int threads);

}  // namespace spillway
