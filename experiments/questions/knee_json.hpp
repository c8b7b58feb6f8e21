// The answer of `knee` as JSON (docs/metrics.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/questions/knee.hpp"

namespace spillway {

nlohmann::ordered_json to_json(const Knees& knees);

}  // namespace spillway
