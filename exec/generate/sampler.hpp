// Which token comes next, by its logits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace spillway {

struct Sampling {
  double temperature = 0.8;  // of the softmax; 0: always the likeliest token
  std::int64_t top_k = 0;    // only the k likeliest; 0: all
  double top_p = 0.95;       // only the likeliest that have so much of the probability together
  std::uint64_t seed = 1;

  // Throws InputError naming the setting that is out of its range.
  void check() const;
};

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling) : sampling_(sampling) {}

  // A function of seed, position and logits alone: tokens do not depend on what else is generated.
  // Equal logits: the lower token. (Nucleus sampling: Holtzman et al., ICLR 2020.)
  std::int32_t pick(std::span<const float> logits, std::int64_t position);

 private:
  Sampling sampling_;
  std::vector<std::pair<double, std::int32_t>> candidates_;
};

}  // namespace spillway
