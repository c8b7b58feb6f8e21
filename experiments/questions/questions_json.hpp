// The answers to questions as JSON (docs/questions.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/questions/assumptions.hpp"
#include "experiments/questions/cheapest_machine.hpp"
#include "experiments/questions/fit_table.hpp"
#include "experiments/questions/robustness.hpp"
#include "experiments/questions/smallest_batch.hpp"

namespace spillway {

nlohmann::ordered_json to_json(const FitTable& table);
nlohmann::ordered_json to_json(const SmallestBatch& batch);
nlohmann::ordered_json to_json(const CheapestMachine& machine, const PriceList& list);
nlohmann::ordered_json to_json(const Robustness& robustness);
nlohmann::ordered_json to_json(const AssumptionEffects& effects);
// The same where their effects were not looked for: they are null.
nlohmann::ordered_json to_json(const std::vector<AssumedValue>& assumed);

}  // namespace spillway
