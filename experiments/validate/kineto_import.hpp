// A PyTorch trace as lanes: what every lane did in every step, by a mapping.
//
// On one thread, events lie within each other (an operator calls others). At each moment the thread
// does what the first rule says that matches any of its open events; so an event that is mapped
// takes all of its time, with what it calls, but for what an earlier rule maps. Where several
// threads are on one lane at once, the first rule holds again: a lane does one thing at a time, and
// its time by kind adds up to its busy time.
#pragma once

#include <string>
#include <vector>

#include "experiments/validate/kineto_mapping.hpp"
#include "traces/kineto.hpp"
#include "traces/trace.hpp"

namespace spillway {

// Events that no rule takes, in the time when their threads did nothing that is mapped, and nothing
// within them was running.
struct UnmappedEvents {
  std::string name, category;
  std::size_t count = 0;  // in all steps that count
  double seconds = 0;     // of their own, a step
};

struct LaneTime {
  std::string name;
  double seconds = 0;  // busy, a step: the median over steps
};

struct KinetoImport {
  // The steps that count: a span a piece of time, lane by lane; the kinds are those of rules. Times
  // are from the start of the first of these steps.
  Trace trace;
  std::vector<double> step_seconds;          // of each step that counts
  std::size_t left_out = 0;                  // steps before these
  std::vector<LaneTime> lanes;               // of every lane that a rule has
  std::vector<LaneTime> kinds;               // of every kind, or sum of kinds, that a rule has
  double unmapped_seconds = 0;               // a step: some thread runs, and no lane does
  double idle_seconds = 0;                   // a step: nothing runs
  std::vector<UnmappedEvents> unmapped;      // most seconds first
  std::vector<std::size_t> events_of_rules;  // in steps that count, by rule
};

// Throws InputError: no event is a step, steps overlap, no step is left, or no event of the steps
// is mapped.
KinetoImport import_kineto(const KinetoTrace& trace, const KinetoMapping& mapping,
                           const std::string& origin);

}  // namespace spillway
