// Two explanations of a step side by side: where the one spends time that the other does not.
#pragma once

#include <optional>
#include <vector>

#include "sim/explanation.hpp"

namespace spillway {

// Seconds of a steady step that go to one thing, of plan a and of plan b; 0: it does not occur.
struct TimeDifference {
  TaskClass of;
  std::optional<Wait> wait;  // of stalls: why the GPU had to wait for it
  double a = 0, b = 0;
  double gain() const { return a - b; }
};

// The parts of both critical paths. The sums of `a` and of `b` are the times of the two steps. What
// differs most comes first.
std::vector<TimeDifference> critical_differences(const Explanation& a, const Explanation& b);

// What the GPU waits for. The sums of `a` and of `b` are the times it is idle in the two steps.
std::vector<TimeDifference> stall_differences(const Explanation& a, const Explanation& b);

}  // namespace spillway
