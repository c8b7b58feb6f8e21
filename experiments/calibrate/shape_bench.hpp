// Measures how fast a GPU is by the shape of its work: products of layers by tokens and hidden size
// ([[gpu.by_shape]]), large products (gpu.product_gain), attention (gpu.attention_flops).
#pragma once

#include <functional>
#include <string>

#include "exec/run/gpu_bench.hpp"
#include "experiments/calibrate/gpu_under_test.hpp"
#include "policies/machine/machine.hpp"

namespace spillway {

// Fills in these keys of a machine whose gpu.flops is known, in bf16. `next` is told what comes,
// shape_figures times. Shapes that the GPU's free memory has no room for are left out.
void measure_shapes(const GpuUnderTest& gpu, const GpuBenchOptions& bench, Machine& machine,
                    const std::function<void(const std::string&)>& next);

inline constexpr int shape_figures = 3;

// gpu.attention_flops by timings of GpuBench::attention(), forward and backward of each shape: the
// median over shapes, each as much as heads and sequences of the key's definition are faster. 0
// where none is there in both ways.
double attention_flops_of(const std::vector<GpuTiming>& timings);

}  // namespace spillway
