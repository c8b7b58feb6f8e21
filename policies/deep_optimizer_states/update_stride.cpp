#include "policies/deep_optimizer_states/update_stride.hpp"

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

constexpr double gpu_adam_bytes = 28;  // of GPU memory per parameter, with fp32 moments
constexpr double largest_stride = 1e6;

}  // namespace

UpdateRates update_rates(const Problem& problem, bool double_staging) {
  const Machine& machine = problem.machine;
  const auto state_bytes = static_cast<double>(problem.state_bytes());
  UpdateRates rates;
  rates.cpu = machine.host.adam_params_per_second;
  rates.gpu = machine.gpu.adam_params_per_second > 0
                  ? machine.gpu.adam_params_per_second
                  : machine.gpu.memory_bandwidth / gpu_adam_bytes;
  rates.cpu /= problem.adam_share_of_fp32();
  rates.gpu /= problem.adam_share_of_fp32();
  const Machine::Pcie& pcie = machine.pcie;
  if (pcie.h2d <= 0 || pcie.d2h <= 0) return rates;
  const double in = state_bytes / pcie.h2d, out = state_bytes / pcie.d2h;
  rates.pcie_seconds = double_staging ? std::max(in, out) : in + out;
  if (pcie.total > 0)
    rates.pcie_seconds = std::max(rates.pcie_seconds, 2 * state_bytes / pcie.total);
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
