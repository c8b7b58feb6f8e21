// Settings that the ZeRO policies share, named as in DeepSpeed.
#pragma once

#include <string>
#include <vector>

#include "policies/common/options.hpp"
#include "policies/movement/plan.hpp"
#include "policies/movement/step.hpp"

namespace spillway {

std::vector<PolicyOption> zero_settings(const std::string& checkpoints);
// ZeRO-3's way with parameters, gradients and activations. `most_in_host`: tensors read from the
// SSD.
Plan zero_plan(const OptionReader& read, int most_in_host);
// Micro-batch by micro-batch forward and backward, then the whole optimizer.
void zero_step(Step& step);

}  // namespace spillway
