// docs/validation.md: the testbed's rows and what they say, for people.
#pragma once

#include <string>
#include <vector>

#include "experiments/testbed/testbed_grid.hpp"
#include "experiments/testbed/testbed_summary.hpp"

namespace spillway {

// The circumstances of the run, as told beside its figures.
struct TestbedCircumstances {
  std::string command;    // that makes the table again
  std::string processor;  // "2 cores of AMD EPYC 9R14"
  std::string system;     // "Linux 6.18; threads at real-time priority"
  std::string load;       // "load average 0.3 at the start, 1.1 at the end"
  Machine machine;        // as calibrated
};

std::string testbed_markdown(const std::vector<TestbedRegime>& regimes,
                             const std::vector<TestbedRow>& rows,
                             const TestbedCircumstances& circumstances);

// Processor and system of this computer, and how the command begins where priorities are set; load
// and machine are left empty.
TestbedCircumstances these_circumstances();
double load_average();  // of the last minute

}  // namespace spillway
