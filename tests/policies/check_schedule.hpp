// All that is asked of any schedule, in one call.
#pragma once

#include <catch2/catch.hpp>

#include "policies/schedule/program.hpp"
#include "tests/policies/dataflow.hpp"
#include "tests/policies/races.hpp"

namespace spillway::test {

inline void check_schedule(const Schedule& schedule) {
  CHECK(find_home_error(schedule) == "");
  CHECK(find_overlap(schedule) == "");
  CHECK(find_race(schedule) == "");
  CHECK(find_dataflow_error(schedule) == "");
  CHECK(find_vain_write(schedule) == "");
  for (const Tier tier : memories_of(schedule.problem().machine)) {
    CHECK(schedule.use(tier).peak_bytes >= schedule.use(tier).live_peak_bytes);
  }
}

}  // namespace spillway::test
