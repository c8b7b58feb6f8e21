// Times the CPU backend's compute kernels at the shapes that policies use.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "experiments/sampler.hpp"
#include "policies/problem.hpp"

namespace spillway {

// Every kernel of one micro-batch of `problem` (fp32) with so many threads for matrix products,
// each on operands that are not in the caches. `before` is told what is measured next. Kernels per
// problem: kernels_per_problem.
std::vector<KernelTime> time_kernels(const Problem& problem, const SamplingRule& rule,
                                     const std::function<void(const std::string&)>& before,
                                     int threads = 1);

inline constexpr int kernels_per_problem = 8;

}  // namespace spillway
