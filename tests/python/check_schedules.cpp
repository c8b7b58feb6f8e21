// spillway_schedule_checks: what tests/policies asks of any schedule, asked of one from Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "python/result.hpp"
#include "tests/policies/dataflow.hpp"
#include "tests/policies/races.hpp"

NB_MODULE(spillway_schedule_checks, module) {
  using namespace spillway;
  module.def("find_error", [](const python::Result& result) -> std::string {
    const Schedule& schedule = result.schedule();
    for (const auto find : {test::find_home_error, test::find_overlap, test::find_race,
                            test::find_vain_write, test::find_state_write_error}) {
      if (std::string error = find(schedule); !error.empty()) return error;
    }
    return test::find_dataflow_error(schedule);
  });
}
