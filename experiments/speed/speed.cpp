#include "experiments/speed/speed.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/calibrate/statistics.hpp"
#include "policies/common/policy.hpp"
#include "sim/costed_schedule.hpp"
#include "sim/simulate.hpp"
#include "sim/workloads.hpp"

namespace spillway {

namespace {

constexpr int samples_wanted = 7;
// The system counts user time by interrupts or by switches; below this it is too coarse.
constexpr double shortest_sample = 0.05;

std::uint64_t graph_bytes(const ActivityGraph& graph) {
  return graph.activities.size() * sizeof(Activity) +
         (graph.successor_offsets.size() + graph.successors.size() +
          graph.predecessor_counts.size()) *
             sizeof(std::uint32_t);
}

SpeedRun run_engine(const ActivityGraph& graph) {
  EngineCounts counts;
  const auto times = run_events(graph, &counts);
  SPILLWAY_ASSERT(times.size() == graph.activities.size());
  return {times.size(), graph_bytes(graph) + counts.memory_bytes, counts.operations()};
}

SpeedTest engine_test(const std::string& name, const std::string& what, std::uint32_t size,
                      ActivityGraph (*make)(std::uint32_t size)) {
  SpeedTest test;
  const std::string count =
      size >= 1000000 ? fmt::format("{}m", size / 1000000) : fmt::format("{}k", size / 1000);
  test.name = fmt::format("engine/{}/{}", name, count);
  test.what = what;
  test.unit = "tasks";
  test.on_request = size > 1000000;
  test.prepare = [make, size]() -> std::function<SpeedRun()> {
    return [graph = make(size)] { return run_engine(graph); };
  };
  return test;
}

// gpt-65b in 16 micro-batches of 8 sequences, on one A100 with drives.
Problem problem_65b() {
  Problem problem;
  problem.model = load_model("gpt-65b", {});
  problem.machine = load_machine("a100-80gb", {});
  problem.workload.batch = 128;
  problem.workload.micro_batch = 8;
  return problem;
}

constexpr int steps_65b = 6;

Schedule schedule_65b(const std::string& policy) {
  return build_schedule(problem_65b(), policy, steps_65b);
}

SpeedTest schedule_test(const std::string& policy) {
  return {"schedule/" + policy,
          fmt::format("build the schedule of gpt-65b, 16 micro-batches, {} steps", steps_65b),
          "tasks",
          [policy]() -> std::function<SpeedRun()> {
            return [policy] { return SpeedRun{schedule_65b(policy).tasks().size(), 0, 0}; };
          },
          false};
}

// A schedule that does not fit in memory can be priced all the same.
SpeedTest simulate_test(const std::string& policy) {
  return {"simulate/" + policy, "price and simulate that schedule, with its steady state", "tasks",
          [policy]() -> std::function<SpeedRun()> {
            return [schedule = schedule_65b(policy)] {
              return SpeedRun{simulate(schedule).tasks.size(), 0, 0};
            };
          },
          false};
}

SpeedTest schedule_events_test(const std::string& policy) {
  return {"engine/" + policy, "events of that schedule alone, costs known", "tasks",
          [policy]() -> std::function<SpeedRun()> {
            // The costs name their tasks through the schedule, so they keep it.
            return
                [costed = cost_schedule(schedule_65b(policy))] { return run_engine(costed.graph); };
          },
          false};
}

SpeedTest end_to_end_test(const std::string& policy) {
  return {"end-to-end/" + policy, "build that schedule and simulate it", "tasks",
          [policy]() -> std::function<SpeedRun()> {
            return [policy] { return SpeedRun{simulate(schedule_65b(policy)).tasks.size(), 0, 0}; };
          },
          false};
}

void add_engine_tests(std::vector<SpeedTest>& tests, std::uint32_t size) {
  tests.push_back(engine_test("dag", "tasks on four resources, first ready first served", size,
                              workloads::four_resource_dag));
  const auto add = [&](const char* name, const char* what, ActivityGraph (*make)(std::uint32_t)) {
    tests.push_back(engine_test(name, what, size, make));
  };
  add("one-link-1", "flows over one link, one at a time",
      [](std::uint32_t n) { return workloads::one_link(1, n); });
  add("one-link-8", "flows over one link, 8 at once",
      [](std::uint32_t n) { return workloads::one_link(8, n); });
  add("one-link-64", "flows over one link, 64 at once",
      [](std::uint32_t n) { return workloads::one_link(64, n); });
  add("five-routes-5", "max-min shared flows over five routes, 5 at once",
      [](std::uint32_t n) { return workloads::five_routes(5, n); });
  add("five-routes-20", "max-min shared flows over five routes, 20 at once",
      [](std::uint32_t n) { return workloads::five_routes(20, n); });
  add("five-routes-64", "max-min shared flows over five routes, 64 at once",
      [](std::uint32_t n) { return workloads::five_routes(64, n); });
}

bool matches(const std::string& test, const std::string& name) {
  return test == name || test.rfind(name + "/", 0) == 0;
}

}  // namespace

std::vector<SpeedTest> speed_tests() {
  std::vector<SpeedTest> tests;
  for (const std::uint32_t size : {10000U, 100000U, 1000000U, 10000000U})
    add_engine_tests(tests, size);
  const std::vector<std::string> policies = {"greedysnake", "zero-infinity", "fuyou"};
  for (const auto make : {schedule_test, schedule_events_test, simulate_test, end_to_end_test}) {
    for (const std::string& policy : policies) tests.push_back(make(policy));
  }
  return tests;
}

std::vector<SpeedTest> find_speed_tests(const std::vector<std::string>& names,
                                        const std::vector<std::string>& others) {
  std::vector<SpeedTest> all = speed_tests(), found;
  if (names.empty()) {
    std::erase_if(all, [](const SpeedTest& test) { return test.on_request; });
    return all;
  }
  std::vector<std::string> known = others;
  for (const SpeedTest& test : all) {
    for (std::size_t end = 0; end != std::string::npos;) {  // each group, then the test itself
      end = test.name.find('/', end + 1);
      const std::string group = test.name.substr(0, end);
      if (std::find(known.begin(), known.end(), group) == known.end()) known.push_back(group);
    }
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      const bool near = !near_names(name, known).empty();
      throw InputError(fmt::format("unknown speed test {}", name),
                       near ? Message(unknown_name_hint(name, known))
                            : "spillway bench " + Setting{"list"} +
                                  " names them, `engine` means all of engine/");
    }
  }
  for (const SpeedTest& test : all) {
    if (std::any_of(names.begin(), names.end(), [&](const std::string& name) {
          return matches(test.name, name) && (!test.on_request || test.name == name);
        }))
      found.push_back(test);
  }
  return found;
}

double user_cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) throw MachineError("cannot read the CPU time used");
  return static_cast<double>(usage.ru_utime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec) * 1e-6;
}

SpeedResult measure_speed(const SpeedTest& test, double seconds) {
  const std::function<SpeedRun()> work = test.prepare();
  SpeedResult result;
  // Runs and keeps the user time; returns the CPU time of any kind, which is exact for short ones
  // too.
  const auto timed = [&](int runs) {
    const double user = user_cpu_seconds(), all = processor_seconds();
    for (int run = 0; run < runs; ++run) result.run = work();
    result.runs += runs;
    result.cpu_seconds = (user_cpu_seconds() - user) / runs;
    return processor_seconds() - all;
  };
  const double one = std::max(timed(1), 1e-7);  // also warms up
  if (one > seconds) return result;
  const double sample = std::max(shortest_sample, seconds / samples_wanted);
  const int runs = std::max(1, static_cast<int>(sample / one + 0.5));
  std::vector<double> samples;
  for (double used = 0; samples.empty() || used < seconds;) {
    used += std::max(timed(runs), 1e-7);
    samples.push_back(result.cpu_seconds);
  }
  std::sort(samples.begin(), samples.end());
  result.cpu_seconds = samples[samples.size() / 2];
  return result;
}

}  // namespace spillway
