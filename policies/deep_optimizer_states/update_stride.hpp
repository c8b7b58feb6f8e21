// Which sub-groups the GPU updates when optimizer states rest in host memory: one in k.
//
// Maurya et al., "Deep Optimizer States", Middleware 2024 (arXiv 2410.21316). While the CPU updates
// k - 1 sub-groups, the state of one crosses PCIe to the GPU and back; per parameter of a cycle of
// k that takes max((k - 1) / U_c, B + 1 / U_g), with Adam's rates U_c and U_g and B the seconds
// that one parameter's state takes over PCIe. Both sides are equal at k = 1 + U_c (B + 1 / U_g).
#pragma once

#include "policies/cost/costs.hpp"

namespace spillway {

struct UpdateRates {
  double cpu = 0;           // U_c, parameters/s
  double gpu = 0;           // U_g, parameters/s
  double pcie_seconds = 0;  // B, per parameter
};

// The rates of a problem as they cost. S bytes of state a parameter go each way (12; 8 with
// 16-bit moments): one after the other through a single staging buffer, 2 S / bandwidth where both
// ways are alike; at the same time with two, S / bandwidth (unless the ways share the link). A rate
// that the machine does not give is 0.
UpdateRates update_rates(const Problem& problem, const Costs& costs, bool double_staging);

double ideal_stride(const UpdateRates& rates);                          // k, not rounded
double seconds_per_parameter(const UpdateRates& rates, double stride);  // of the whole update
// The whole stride, at least 2, with the least seconds per parameter; 2 where a rate is not known.
int best_stride(const UpdateRates& rates);

}  // namespace spillway
