// AdamW's settings and how its learning rate changes from step to step.
#pragma once

#include <cstdint>
#include <string>

#include "exec/cpu/adam.hpp"

namespace spillway {

// What the learning rate does after warm-up; s is the share of the way to `decay_steps`:
//   constant  it stays
//   cosine    final + (1 - final) (1 + cos(pi s)) / 2  of its peak (Loshchilov and Hutter, ICLR
//   2017) linear    1 - (1 - final) s wsd       it stays, and falls in a straight line in the last
//   part of the way ("warm-up, stable,
//             decay": Hu et al., MiniCPM, 2024; Haegele et al., 2024, section 3.1)
enum class LearningRateShape : std::uint8_t { constant, cosine, linear, wsd };

const char* to_string(LearningRateShape shape);  // "cosine"
// Throws InputError that names the setting `learning_rate_schedule`.
LearningRateShape parse_learning_rate_shape(const std::string& text);

struct OptimizerSettings {
  double learning_rate = 1e-3;  // after warm-up
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01;
  std::int64_t warmup_steps = 0;  // of linear warm-up
  LearningRateShape shape = LearningRateShape::constant;
  std::int64_t decay_steps = 0;      // the step from which on the rate is the final one
  double final_learning_rate = 0.1;  // of its peak
  double decay_share = 0.2;          // wsd: of the steps after warm-up
  std::uint64_t seed = 0;  // of the rounding of moments in bf16 and of dropout: the training's

  double learning_rate_at(std::int64_t step) const;  // step counts from 0
  AdamStep at(std::int64_t step) const;
};

}  // namespace spillway
