// How fast Spillway itself is: named tests, each of which does one piece of its work again and
// again and reports the CPU time it takes. Times depend on the computer; counts do not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace spillway {

// One run of a speed test.
struct SpeedRun {
  std::uint64_t items = 0;       // how many of the test's unit it handled
  std::uint64_t bytes = 0;       // memory of what it worked on and what it made; 0: not known
  std::uint64_t operations = 0;  // of the event engine (EngineCounts); 0: not known
};

struct SpeedTest {
  std::string name;  // "engine/dag/100k"
  std::string what;  // one line
  std::string unit;  // what an item is, in the plural
  // Makes the input, which is not timed; what it returns does the work once.
  std::function<std::function<SpeedRun()>()> prepare;
  bool on_request = false;  // takes long, or a lot of memory: run only when named
};

// All of them, in the order of a report.
std::vector<SpeedTest> speed_tests();

// Those whose name is `name` or begins with `name`/; without a name, all but those on request.
// Throws InputError, with near names (`others` among them), where there is none.
std::vector<SpeedTest> find_speed_tests(const std::vector<std::string>& names,
                                        const std::vector<std::string>& others = {});

struct SpeedResult {
  SpeedRun run;            // one run
  int runs = 0;            // how many there were, in all
  double cpu_seconds = 0;  // user CPU time of one run: the median over samples of one or more runs

  double items_per_second() const {
    return cpu_seconds > 0 ? static_cast<double>(run.items) / cpu_seconds : 0;
  }
  double ns_per_item() const {
    return run.items > 0 ? cpu_seconds * 1e9 / static_cast<double>(run.items) : 0;
  }
  double bytes_per_item() const { return per_item(run.bytes); }
  double operations_per_item() const { return per_item(run.operations); }

 private:
  double per_item(std::uint64_t amount) const {
    return run.items > 0 ? static_cast<double>(amount) / static_cast<double>(run.items) : 0;
  }
};

// Runs for about `seconds` after one run to warm up; at least once.
SpeedResult measure_speed(const SpeedTest& test, double seconds);

// User CPU seconds of this process so far.
double user_cpu_seconds();

}  // namespace spillway
