// Schedules of problems that differ in how fast the machine is, or in drives that have room to
// spare: built once where that changes nothing about them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "policies/common/miniature.hpp"
#include "policies/common/settler.hpp"

namespace spillway {

class ScheduleReuse {
 public:
  // What build_schedule() builds; one of the last schedules that were built, where it is the same.
  Schedule build(const Problem& problem, const std::string& policy, int steps);

  // What find_miniatures() finds, and what build_miniature() builds of what miniatures() has found
  // last; what was found and built for one of the last problems, where it is the same.
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
  void keep_few();

  std::deque<Built> built_;  // the last one first
  std::deque<Found> found_;  // the last one that miniatures() has told first
};

}  // namespace spillway
