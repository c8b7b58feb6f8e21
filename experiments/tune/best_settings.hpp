// The fastest settings of one policy that are found: its options over their domains, and the
// micro-batch.
//
// A climb, one option at a time: it begins from the policy as given at every micro-batch and from
// variants that are known to help (seeds.hpp); each option then goes over samples of its domain at
// the best micro-batch so far and at the one beside it that makes room, or that uses room; what
// gains is kept; again, with numbers in finer steps, until nothing gains.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/tune/front.hpp"
#include "experiments/tune/pricer.hpp"

namespace spillway {

struct SettingsSearch {
  std::uint64_t effort = 300;       // settings that are priced at most
  std::uint64_t tasks = 4'000'000;  // emitted and simulated for them at most, once one fits
  bool choose_micro_batch = true;
  // Options that keep the value they have, beside those that the policy's text gives.
  std::vector<std::string> held;
  std::function<void(std::uint64_t explored)> progress;  // may be empty
};

// The best few that fit, the fastest first, of those the policy as given among them at its fastest
// micro-batch if that fits. Empty: nothing fits that was tried. What the pricer does not allow is
// not tried. Throws InputError where the policy is wrong.
std::vector<PricedTrial> best_settings(Pricer& pricer, const std::string& policy,
                                       const SettingsSearch& search);

}  // namespace spillway
