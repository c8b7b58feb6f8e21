// Schedules of problems that differ in how fast the machine is: built once where that changes
// nothing about them.
#pragma once

#include <optional>
#include <string>

#include "policies/common/settler.hpp"

namespace spillway {

class ScheduleReuse {
 public:
  // What build_schedule() builds; the schedule that was built last, where that is the same one.
  Schedule build(const Problem& problem, const std::string& policy, int steps);

 private:
  struct Built {
    Schedule schedule;
    std::string policy;  // as it was given
    Settler::Grounds grounds;
  };
  std::optional<Built> last_;
};

}  // namespace spillway
