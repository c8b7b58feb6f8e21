// A workload as a JSON object, a key for every field of workload_fields(): in traces, in commit
// records, and in what the program prints as JSON. Counts are numbers, all else is text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "policies/workload/problem.hpp"

namespace spillway {

nlohmann::ordered_json workload_json(const Workload& workload);

// Of an object that may have other keys, too. Throws InputError, `place` first, where a field is
// missing or has a value it cannot have, json::exception where `json` is no object. `hint`: what to
// do then.
Workload workload_of_json(const nlohmann::ordered_json& json, const std::string& place,
                          const std::string& hint);

}  // namespace spillway
