// The runs of a training go from pause to pause, whatever the periods are.
#include "policies/common/training_schedules.hpp"

#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "tests/policies/schedules.hpp"

namespace spillway {
namespace {

Problem small_problem() {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("rtx4090-2ssd");
  problem.workload.batch = problem.workload.micro_batch = 1;
  problem.workload.sequence = 16;
  return problem;
}

TEST_CASE("runs of a training end at every pause and nowhere beyond") {
  std::mt19937_64 random(11);
  const auto draw = [&](std::int64_t most) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
  };
  for (int round = 0; round < 12; ++round) {
    TrainingCourse course;
    course.problem = small_problem();
    course.policy = round % 2 == 0 ? "resident" : "zero-offload";
    course.steps = 1 + draw(200);
    course.first = draw(course.steps - 1);
    course.evaluations = {draw(3) > 0, draw(40)};
    course.evaluation_batches = 1 + draw(12);
    course.samples = {draw(3) > 0, draw(40)};
    course.steps_per_run = static_cast<int>(draw(1) * (1 + draw(6)));
    CAPTURE(course.steps, course.first, course.evaluations.on, course.evaluations.every,
            course.samples.on, course.samples.every, course.steps_per_run);
    const TrainingSchedules schedules(course);
    std::set<std::int64_t> ends;
    for (std::int64_t version = course.first; version < course.steps;) {
      const Schedule& next = schedules.next(version);
      CHECK(next.homes().size() == schedules.usual().homes().size());
      version += next.steps();
      ends.insert(version);
    }
    CHECK(*ends.rbegin() == course.steps);
    for (std::int64_t version = course.first + 1; version <= course.steps; ++version)
      if (course.evaluations.at(version, course.steps) || course.samples.at(version, course.steps))
        CHECK(ends.contains(version));
    std::int64_t batches = 0;
    for (const auto& evaluation : schedules.evaluation()) CHECK(evaluation->evaluates());
    if (course.evaluations.on) {
      const std::int64_t at_once = schedules.evaluation().front()->steps();
      batches = course.evaluation_batches / at_once * at_once;
      if (batches < course.evaluation_batches) batches += schedules.evaluation().back()->steps();
      CHECK(batches == course.evaluation_batches);
    } else {
      CHECK(schedules.evaluation().empty());
    }
    CHECK(schedules.all().size() < 20);
  }
}

TEST_CASE("trainings of any length with pauses that share nothing have few schedules") {
  TrainingCourse course;
  course.problem = small_problem();
  course.policy = "resident";
  course.steps = std::int64_t{1} << 40;
  course.evaluations = {true, 101};
  course.evaluation_batches = 3;
  course.samples = {true, 97};
  const TrainingSchedules schedules(course);
  CHECK(schedules.all().size() < 12);
  std::int64_t version = 0;
  while (version < 97 * 101) version += schedules.next(version).steps();
  CHECK(version == 97 * 101);
  CHECK(schedules.peak(Tier::gpu) >= schedules.usual().use(Tier::gpu).peak_bytes);
}

}  // namespace
}  // namespace spillway
