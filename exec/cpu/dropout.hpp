// Dropout of the input of low-rank adapters: which values remain, the same on host and device.
//
// A value of the input of a group of matrices remains where a hash is below a threshold, and is
// then multiplied by the inverse of the share that remains; else it is zero. The hash is a function
// of the training's seed, the step, the layer, the group, the sequence's number in the step's
// batch, the token and the column: it does not depend on micro-batches, on recomputation or on the
// device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "exec/cpu/stochastic_rounding.hpp"

namespace spillway {

struct Dropout {
  std::uint32_t threshold;  // hashes below it: the value remains
  float factor;             // of what remains
};

// `share`: of the values that become zero, in (0, 1).
inline Dropout dropout_of(double share) {
  constexpr double hashes = 4294967296.0;  // 2^32
  return {static_cast<std::uint32_t>(std::min((1.0 - share) * hashes, hashes - 1)),
          static_cast<float>(1.0 / (1.0 - share))};
}

// Key of the input of one group (AdaptedMatrix::group) of one layer for one sequence of the step's
// batch. `step`: step_noise_key(seed, t) with t = 1 in the first step of a training. The keys of
// moments' rounding are those of units below 2^31.
SPILLWAY_HOST_DEVICE inline NoiseKey dropout_key(NoiseKey step, int layer, int group,
                                                 std::int64_t sequence) {
  constexpr std::uint32_t first = 0x80000000u, groups = 4;
  const std::uint32_t place =
      first + groups * static_cast<std::uint32_t>(layer) + static_cast<std::uint32_t>(group);
  return unit_noise_key(step, place, static_cast<std::uint32_t>(sequence));
}

// Key of one token of that sequence.
SPILLWAY_HOST_DEVICE inline NoiseKey dropout_row(NoiseKey sequence, std::int64_t token) {
  return unit_noise_key(sequence, static_cast<std::uint32_t>(token), 0);
}

// What remains of `value`, which is in this column of the token's row.
SPILLWAY_HOST_DEVICE inline float remaining(Dropout dropout, NoiseKey row, std::int64_t column,
                                            float value) {
  const std::uint32_t hash = mixed(mixed(static_cast<std::uint32_t>(column) ^ row.a) + row.b);
  return hash < dropout.threshold ? value * dropout.factor : 0.0f;
}

}  // namespace spillway
