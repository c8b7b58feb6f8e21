// The JSON object of `spillway tune --json`; every key is explained in docs/metrics.md.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/tune/tune.hpp"

namespace spillway {

nlohmann::ordered_json to_json(const TuneResult& result, const TuneOptions& options);

}  // namespace spillway
