// The schedules that a whole training runs, in the order of its steps: the usual one again and
// again, shorter ones up to the steps after which it pauses, and those of its evaluations. All have
// their state in the same places. Nothing is allocated for them here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "policies/common/policy.hpp"
#include "policies/schedule/schedule.hpp"

namespace spillway {

// When something is done between two steps: before the first step, after every `every`-th, and
// after the last one.
struct Pauses {
  bool on = false;
  std::int64_t every = 0;  // steps; 0: only before the first and after the last

  bool at(std::int64_t version, std::int64_t steps) const {
    return on && (version == 0 || version == steps || (every > 0 && version % every == 0));
  }
};

struct TrainingCourse {
  Problem problem;
  std::string policy;
  // A policy that is not built in, instead of `policy`: a fresh object each time it is called.
  std::function<std::unique_ptr<Policy>()> make_policy;
  std::int64_t first = 0;  // the step that it begins with, and those of the whole training
  std::int64_t steps = 0;
  int steps_per_run = 0;    // of the usual schedule; 0: chosen
  Pauses evaluations = {};  // of so many batches
  std::int64_t evaluation_batches = 0;
  Pauses samples = {};
};

class TrainingSchedules {
 public:
  // Steps of the usual schedule: as many as make about tasks_per_run tasks, within these bounds.
  // Between two runs all lanes come to rest once.
  static constexpr int fewest_steps_per_run = 10, most_steps_per_run = 100;
  static constexpr std::size_t tasks_per_run = 100'000;

  // Throws FitError where one of them does not fit, InputError.
  explicit TrainingSchedules(TrainingCourse course);

  const Schedule& usual() const { return *usual_; }
  // What runs next where `version` steps are done, up to the next pause or the end at most.
  const Schedule& next(std::int64_t version) const;
  // Of an evaluation: of several batches, which is run again and again, and, where some are left,
  // of those. Empty: nothing is evaluated.
  const std::vector<std::unique_ptr<Schedule>>& evaluation() const { return evaluation_; }
  std::vector<const Schedule*> all() const;
  // The highest peak that one of them has.
  std::uint64_t peak(Tier tier) const;

  const TrainingCourse& course() const { return course_; }

 private:
  Schedule build(const std::string& policy, int steps) const;
  Schedule build_usual(std::int64_t most) const;
  std::int64_t next_pause(std::int64_t version) const;
  void build_shorter();
  void build_evaluation();

  TrainingCourse course_;
  std::unique_ptr<Schedule> usual_;
  std::map<std::int64_t, std::unique_ptr<Schedule>> shorter_;  // by length
  std::vector<std::unique_ptr<Schedule>> evaluation_;
};

}  // namespace spillway
