// A whole GPT-2 in fp64, written from its equations with plain loops over whole matrices: what the
// backends' logits, loss and gradients are held to. It shares no code with either of them.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/exec/cpu/model_fixture.hpp"

namespace spillway {

struct Fp64Step {
  std::vector<double> logits;                  // (B T, V)
  std::vector<double> token_losses;            // (B T)
  double loss = 0;                             // their mean
  std::vector<std::vector<double>> gradients;  // of the loss, by unit; the token table's two uses
                                               // are added up
};

// One step over the whole batch; tokens and targets (B T).
Fp64Step run_fp64_step(const Problem& problem, const Units& parameters,
                       const std::vector<std::int32_t>& tokens,
                       const std::vector<std::int32_t>& targets);

}  // namespace spillway
