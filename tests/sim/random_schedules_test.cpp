// What holds for every simulation: bounds below and above, scaling, and the same bytes again.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/result_json.hpp"
#include "sim/to_trace.hpp"
#include "tests/sim/random_problems.hpp"
#include "traces/perfetto.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Nanoseconds by which a window may look shorter than it is: both of its ends are rounded.
constexpr double rounding = 1;

template <class Check>
void for_random_schedules(std::uint64_t first_seed, int count, const Check& check) {
  for (std::uint64_t seed = first_seed; seed < first_seed + static_cast<std::uint64_t>(count);
       ++seed) {
    RandomProblems random(seed);
    const int steps = static_cast<int>(1 + random.below(8));
    const Schedule schedule = random.schedule(steps);
    INFO("seed " << seed << ", " << schedule.policy() << ", " << steps << " steps, "
                 << schedule.problem().model.layers << " layers, "
                 << schedule.problem().workload.micro_batches() << " micro-batches");
    check(schedule, random);
  }
}

std::string trace_bytes(const Schedule& schedule, const SimulationResult& result) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("spillway-properties-" + std::to_string(getpid()) + ".json");
  write_trace(to_trace(schedule, result), path.string());
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::filesystem::remove(path);
  return text.str();
}

}  // namespace

TEST_CASE("Random schedules: bound <= steady step, and the whole run <= everything in a row") {
  for_random_schedules(1000, 400, [](const Schedule& schedule, RandomProblems&) {
    const SimulationResult result = simulate(schedule);
    const SteadyWindow window = steady_window(result.step_ends_ns);
    const double window_ns = static_cast<double>(window.end_ns - window.begin_ns);
    CHECK(result.bound_seconds > 0);
    CHECK(result.bound_seconds * 1e9 * window.steps <= window_ns * (1 + 1e-9) + rounding);
    CHECK(result.efficiency <= 1);
    // Of the activities that work at a moment, the shares of their full rates add up to at least
    // one: either all have their full rate, or a resource is saturated, and no activity has a
    // smaller share of its full rate than of that resource.
    const CostedSchedule costed = cost_schedule(schedule);
    const FairSharing sharing(costed.graph.resources, costed.graph.demands);
    double serial_ns = 0;
    for (const Activity& activity : costed.graph.activities)
      serial_ns += uncontended_ns(activity, sharing);
    std::int64_t end_ns = 0;
    for (const SimulatedTask& task : result.tasks) end_ns = std::max(end_ns, task.end_ns);
    CHECK(static_cast<double>(end_ns) <= serial_ns * (1 + 1e-9) + rounding);
  });
}

TEST_CASE("Random schedules: the chain without sharing <= the critical path = the steady window") {
  for_random_schedules(2000, 400, [](const Schedule& schedule, RandomProblems&) {
    const SimulationResult result = simulate(schedule);
    const Explanation explanation = explain(schedule, result);
    const std::int64_t window_ns = explanation.window.end_ns - explanation.window.begin_ns;
    const CriticalPath& path = explanation.critical_path;
    CHECK(path.chain_ns <= static_cast<double>(window_ns) * (1 + 1e-9) + rounding);
    std::int64_t sum_ns = 0;
    for (const CriticalPart& part : path.parts) {
      CHECK(part.ns > 0);
      sum_ns += part.ns;
      double lost_ns = 0;
      for (const auto& [resource, ns] : part.lost_ns) lost_ns += ns;
      CHECK(lost_ns < static_cast<double>(part.ns) + rounding);
    }
    CHECK(sum_ns == window_ns);
  });
}

TEST_CASE("Random schedules: busy + idle = the window, and the stalls are all of idle, exactly") {
  for_random_schedules(3000, 400, [](const Schedule& schedule, RandomProblems&) {
    const SimulationResult result = simulate(schedule);
    const Explanation explanation = explain(schedule, result);
    const SteadyWindow& window = explanation.window;
    std::int64_t busy_ns = 0;
    for (TaskId t = 0; t < schedule.tasks().size(); ++t) {
      if (schedule.tasks()[t].lane != Lane::gpu_compute) continue;
      busy_ns += std::max<std::int64_t>(0, std::min(result.tasks[t].end_ns, window.end_ns) -
                                               std::max(result.tasks[t].start_ns, window.begin_ns));
    }
    CHECK(explanation.stalls.busy_ns == busy_ns);
    CHECK(explanation.stalls.idle_ns == window.end_ns - window.begin_ns - busy_ns);
    std::int64_t stalls_ns = 0;
    for (const Stall& stall : explanation.stalls.stalls) {
      CHECK(stall.ns > 0);
      CHECK(stall.running.lane != Lane::gpu_compute);
      stalls_ns += stall.ns;
    }
    CHECK(stalls_ns == explanation.stalls.idle_ns);
  });
}

TEST_CASE("Random schedules: twice the work, or half the rates, is twice the time") {
  for_random_schedules(4000, 200, [](const Schedule& schedule, RandomProblems&) {
    CostedSchedule costed = cost_schedule(schedule);
    const auto once = simulate_activities(costed.graph);
    for (Activity& activity : costed.graph.activities) {
      activity.amount *= 2;
      activity.latency_ns *= 2;
    }
    const auto twice = simulate_activities(costed.graph);
    std::int64_t worst = 0;
    for (std::size_t t = 0; t < once.size(); ++t)
      worst = std::max(worst, std::abs(twice[t].end_ns - 2 * once[t].end_ns));
    CHECK(worst <= 1);  // both are rounded to a nanosecond
    // And with the machine made slower instead.
    const SimulationResult before = simulate(schedule);
    const SimulationResult slow = simulate(twice_as_slow(schedule));
    const double steps = steady_window(before.step_ends_ns).steps;
    CHECK(std::abs(slow.step_seconds - 2 * before.step_seconds) * steps <= 2.5e-9);
    CHECK(slow.bound_seconds == Approx(2 * before.bound_seconds));
  });
}

TEST_CASE("Random schedules: simulating again gives the same bytes, as JSON and as a trace") {
  for_random_schedules(5000, 60, [](const Schedule& schedule, RandomProblems&) {
    const auto bytes = [&] {
      const SimulationResult result = simulate(schedule);
      const Explanation explanation = explain(schedule, result);
      return to_json(schedule, &result, 0, 0, &explanation).dump() + trace_bytes(schedule, result);
    };
    const std::string first = bytes();
    CHECK(first.size() > 1000);
    CHECK((first == bytes()));
  });
}
