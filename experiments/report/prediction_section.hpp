// Predicted against measured, as `spillway validate` has it: a section of a page.
#pragma once

#include <string>

#include "experiments/report/trace_study.hpp"

namespace spillway {

// Empty where there is none.
std::string prediction_html(const TraceStudy& study);

}  // namespace spillway
