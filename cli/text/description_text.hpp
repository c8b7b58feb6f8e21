// One machine, model or policy in full, as text and as JSON (docs/metrics.md).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policies/common/policy.hpp"
#include "policies/machine/machine_account.hpp"
#include "policies/model/model.hpp"

namespace spillway::cli {

// Every key with its value, whether it is given, derived or assumed, and by whom or why.
std::string machine_text(const MachineAccount& account);
nlohmann::ordered_json machine_json(const MachineAccount& account);

// What it is, its paper, and every setting with type, domain, default and meaning.
std::string policy_text(const PolicyInfo& info);
nlohmann::ordered_json policy_json(const PolicyInfo& info);

// "whole number", "number", "choice", "switch" (on or off) or "text", of a domain as it describes
// itself.
std::string type_of(const TextDomain& domain);

// Shape, parameters by unit, FLOPs of a token in sequences of so many, tensors and operators.
std::string model_text(const ModelSpec& model, std::int64_t sequence);
nlohmann::ordered_json model_json(const ModelSpec& model, std::int64_t sequence);

}  // namespace spillway::cli
