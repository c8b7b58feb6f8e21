// The cheapest machine of a price list that trains a model fast enough.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/problem_request.hpp"
#include "experiments/questions/planner.hpp"
#include "experiments/questions/price_list.hpp"

namespace spillway {

// The fastest plan on one machine that grants the wish, or the fastest of all.
struct MachinePoint {
  PricedMachine machine;
  std::string name;
  bool left_out = false;  // there is no such machine
  bool fits = false;      // else nothing below is there
  std::string policy, bound_by;
  std::int64_t micro_batch = 0;
  double step_seconds = 0, tokens_per_second = 0;
  double efficiency = 0;              // the bound's share of the step
  std::optional<double> drive_years;  // nothing: not known, or no wear
};

struct MachineWish {
  double tokens_per_second = 0;
  double drive_years = 0;  // that drives of known endurance last at the least, day and night
};

// What the machine lacks on which the model lacks least.
struct MachineShortage {
  std::string name;        // of the machine
  std::vector<Tier> full;  // tiers that are too small
};

struct CheapestMachine {
  MachineWish wish;
  std::vector<MachinePoint> fast_enough;      // the cheapest first; of these a few
  std::optional<MachinePoint> fastest_below;  // of the machines tried that are cheaper, or of all
  std::size_t machines = 0, tried = 0;        // that the list makes; that were simulated
  std::size_t left_out = 0;                   // of the machines looked at: no machine file is so
  std::string why_left_out;                   // the first of these, and what is wrong with it
  std::optional<MachineShortage> shortage;    // where the model fits on none that was tried
  std::optional<Candidate> plan;              // of the cheapest
};

inline constexpr std::size_t most_runners_up = 4;
// A machine is not simulated where one with the same GPU and drives, no less memory and no fewer of
// the drives has less than this share of the throughput that is wanted.
inline constexpr double ruled_out_below = 0.9;

// `request` says what is trained; it may name another base machine than the list, and its overrides
// hold on every machine. Throws InputError where they set what a part sets, or where none of the
// machines can be.
CheapestMachine cheapest_machine(const ProblemRequest& request, const Planner& planner,
                                 const PriceList& list, const MachineWish& wish,
                                 const std::function<void(const std::string&)>& say = {});

}  // namespace spillway
