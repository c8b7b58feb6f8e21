// A training of another program held against a simulated schedule, as a report and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "experiments/validate/validate_kineto.hpp"

namespace spillway::cli {

std::string report_of(const KinetoValidation& validation, const KinetoMapping& mapping,
                      const std::string& path);

// docs/metrics.md
nlohmann::ordered_json kineto_json(const KinetoValidation& validation,
                                   const KinetoMapping& mapping);

}  // namespace spillway::cli
