#include "policies/deep_optimizer_states/update_stride.hpp"

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

constexpr double largest_stride = 1e6;

}  // namespace

UpdateRates update_rates(const Problem& problem, const Costs& costs, bool double_staging) {
  UpdateRates rates;
  rates.cpu = costs.updates_per_second(Lane::cpu_optimizer);
  rates.gpu = costs.updates_per_second(Lane::gpu_compute);
  const LinkRates links = costs.links();
  if (links.h2d <= 0 || links.d2h <= 0) return rates;
  const auto bytes = static_cast<double>(problem.state_bytes());
  rates.pcie_seconds = double_staging ? links.seconds(bytes, bytes)
                                      : links.seconds(bytes, 0) + links.seconds(0, bytes);
  return rates;
}

double ideal_stride(const UpdateRates& rates) {
  return 1 + rates.cpu * (rates.pcie_seconds + 1 / rates.gpu);
}

double seconds_per_parameter(const UpdateRates& rates, double stride) {
  const double on_cpu = (stride - 1) / rates.cpu;
  const double on_gpu = rates.pcie_seconds + 1 / rates.gpu;
  return std::max(on_cpu, on_gpu) / stride;
}

int best_stride(const UpdateRates& rates) {
  if (rates.cpu <= 0 || rates.gpu <= 0 || rates.pcie_seconds <= 0) return 2;
  const double below = std::clamp(std::floor(ideal_stride(rates)), 2.0, largest_stride);
  const bool next = seconds_per_parameter(rates, below + 1) < seconds_per_parameter(rates, below);
  return static_cast<int>(below) + (next ? 1 : 0);
}

}  // namespace spillway
