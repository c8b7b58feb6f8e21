#include "exec/cpu/rotary_table.hpp"

#include <cmath>
#include <numbers>

namespace spillway {

namespace {

double scaled(double frequency, const ModelSpec& model) {
  switch (model.rope_scaling) {
    case RopeScaling::none:
      return frequency;
    case RopeScaling::linear:
      return frequency / model.rope_factor;
    case RopeScaling::llama3:
      break;
  }
  // How often the pair turns over the original positions.
  const double turns =
      static_cast<double>(model.rope_original_positions) * frequency / (2 * std::numbers::pi);
  const double low = model.rope_low_frequency_factor, high = model.rope_high_frequency_factor;
  if (turns < low) return frequency / model.rope_factor;
  if (turns > high) return frequency;
  const double kept = (turns - low) / (high - low);
  return (1 - kept) * frequency / model.rope_factor + kept * frequency;
}

}  // namespace

std::vector<double> rotary_frequencies(const ModelSpec& model) {
  const std::int64_t width = model.width_of_head();
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const double exponent = 2 * static_cast<double>(i) / static_cast<double>(width);
    frequencies.push_back(scaled(std::pow(model.rope_theta, -exponent), model));
  }
  return frequencies;
}

RotaryTable rotary_table(const ModelSpec& model, std::int64_t tokens) {
  RotaryTable table;
  const std::vector<double> frequencies = rotary_frequencies(model);
  for (std::int64_t position = 0; position < tokens; ++position) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosines.push_back(static_cast<float>(std::cos(angle)));
      table.sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

}  // namespace spillway
