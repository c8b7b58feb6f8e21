#include "exec/run/optimizer_settings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "base/errors.hpp"
#include "base/suggest.hpp"

namespace spillway {

namespace {

struct Shape {
  LearningRateShape shape;
  const char* name;
};
constexpr std::array<Shape, 4> shapes = {{{LearningRateShape::constant, "constant"},
                                          {LearningRateShape::cosine, "cosine"},
                                          {LearningRateShape::linear, "linear"},
                                          {LearningRateShape::wsd, "wsd"}}};

}  // namespace

const char* to_string(LearningRateShape shape) {
  for (const Shape& one : shapes)
    if (one.shape == shape) return one.name;
  SPILLWAY_ASSERT(false);
}

LearningRateShape parse_learning_rate_shape(const std::string& text) {
  std::vector<std::string> names;
  for (const Shape& one : shapes) {
    if (text == one.name) return one.shape;
    names.emplace_back(one.name);
  }
  throw InputError(Setting{"learning_rate_schedule", text} + " is no schedule of learning rates",
                   unknown_name_hint(text, names));
}

double OptimizerSettings::learning_rate_at(std::int64_t step) const {
  if (step < warmup_steps)
    return learning_rate * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps));
  if (decay_steps <= warmup_steps) return learning_rate;
  const double way = std::min(1.0, static_cast<double>(step - warmup_steps) /
                                       static_cast<double>(decay_steps - warmup_steps));
  const double falls = 1 - final_learning_rate;
  switch (shape) {
    case LearningRateShape::constant:
      return learning_rate;
    case LearningRateShape::cosine:
      return learning_rate *
             (final_learning_rate + falls * 0.5 * (1 + std::cos(std::numbers::pi * way)));
    case LearningRateShape::linear:
      return learning_rate * (1 - falls * way);
    case LearningRateShape::wsd:
      return learning_rate * (1 - falls * std::max(0.0, (way - (1 - decay_share)) / decay_share));
  }
  SPILLWAY_ASSERT(false);
}

AdamStep OptimizerSettings::at(std::int64_t step) const {
  AdamStep adam{static_cast<float>(learning_rate_at(step)),
                static_cast<float>(beta1),
                static_cast<float>(beta2),
                static_cast<float>(epsilon),
                static_cast<float>(weight_decay),
                step + 1};
  adam.seed = seed;
  return adam;
}

}  // namespace spillway
