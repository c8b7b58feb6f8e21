#include "tests/policies/dataflow.hpp"

#include "tests/policies/symbolic_run.hpp"

namespace spillway::test {

std::string find_dataflow_error(const Schedule& schedule, bool forward_again) {
  try {
    SymbolicRun(schedule, forward_again).run();
  } catch (const Violation& violation) {
    return violation.text;
  }
  return "";
}

}  // namespace spillway::test
