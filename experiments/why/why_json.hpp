// The difference of two plans as JSON (docs/metrics.md).
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "experiments/why/why.hpp"

namespace spillway {

nlohmann::ordered_json to_json(const Why& why);

}  // namespace spillway
