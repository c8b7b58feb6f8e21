// The answers to questions, as text for people.
#pragma once

#include <string>
#include <vector>

#include "experiments/questions/cheapest_machine.hpp"
#include "experiments/questions/robustness.hpp"
#include "experiments/questions/smallest_batch.hpp"

namespace spillway::cli {

// `problem` is what was asked about.
std::string answer_text(const Problem& problem, const SmallestBatch& batch);
std::string answer_text(const Problem& problem, const CheapestMachine& machine,
                        const PriceList& list);
// "8950", "49.90": a price, without its currency.
std::string price_text(double price);
// Without an exponent.
std::string plain_digits(double number);
// "3.63 years", "7.8 days".
std::string life_text(double years);
std::string tiers_text(const std::vector<Tier>& tiers);
std::string robustness_text(const Robustness& robustness);

}  // namespace spillway::cli
