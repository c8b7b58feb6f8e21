// Predicted against measured, as `spillway validate` has it: a section of a page.
#pragma once

#include <string>

#include "experiments/report/trace_study.hpp"

namespace spillway {

// Whether there is a prediction that the trace is not itself.
bool is_held_against_prediction(const TraceStudy& study);

// Empty where there is none.
std::string prediction_html(const TraceStudy& study);

}  // namespace spillway
