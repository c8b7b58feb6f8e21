// What a page says of traces: a summary, and sections with tables.
#pragma once

#include <vector>

#include "experiments/report/facts.hpp"
#include "experiments/report/html.hpp"
#include "experiments/report/trace_study.hpp"

namespace spillway {

Facts facts_of(const TraceStudy& study);

// Of one trace, or of several beside each other: timeline, work, memory, stalls, critical path,
// predicted against measured, assumptions; each where there is something to tell. `tasks`: on
// the timelines, all together.
std::vector<Section> trace_sections(const std::vector<TraceStudy>& studies, std::size_t tasks);

}  // namespace spillway
