// Schedules of problems that differ in how fast the machine is: built once where that changes
// nothing about them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "policies/common/miniature.hpp"
#include "policies/common/settler.hpp"

namespace spillway {

class ScheduleReuse {
 public:
  // What build_schedule() builds; the schedule that was built last, where that is the same one.
  Schedule build(const Problem& problem, const std::string& policy, int steps);

  // What find_miniatures() finds, and what build_miniature() builds of what miniatures() has found
  // last; what was found and built for the problem before, where that is the same.
  std::optional<Miniatures> miniatures(const Problem& problem, const std::string& policy,
                                       int steps);
  Schedule miniature(const Problem& problem, std::int64_t layers);

 private:
  // What a schedule follows from.
  struct Origin {
    Problem problem;
    std::string policy;  // as it was given
    int steps;
  };
  struct Built {
    Origin origin;
    Settler::Grounds grounds;
    Schedule schedule;
  };
  struct Found {
    Origin origin;
    std::string plan;  // of the policy as it was given, as text
    std::optional<Settler::Grounds> grounds;
    std::optional<Miniatures> miniatures;
    std::map<std::int64_t, Schedule> built;  // by layers
  };
  static bool is_alike(const Origin& one, const Origin& other);

  std::optional<Built> last_;
  std::optional<Found> found_;
};

}  // namespace spillway
