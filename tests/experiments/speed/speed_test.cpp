#include "experiments/speed/speed.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"

using namespace spillway;

TEST_CASE("A group is all its speed tests, those on request apart") {
  for (const SpeedTest& test : find_speed_tests({})) CHECK_FALSE(test.on_request);
  const auto dag = find_speed_tests({"engine/dag"});
  REQUIRE(dag.size() == 3);
  CHECK(dag.front().name == "engine/dag/10k");
  CHECK(find_speed_tests({"engine/dag/10m"}).front().on_request);
  // In the order of the report, each once.
  const auto two = find_speed_tests({"engine/one-link-1", "engine/dag/10k", "engine/dag"});
  CHECK(two.size() == 6);
  CHECK(two.front().name == "engine/dag/10k");
  CHECK_THROWS_AS(find_speed_tests({"engine/da"}), InputError);
}

TEST_CASE("Measuring runs the work at least once, and reports what one run did") {
  int prepared = 0, ran = 0;
  SpeedTest test;
  test.prepare = [&]() -> std::function<SpeedRun()> {
    ++prepared;
    return [&] {
      ++ran;
      return SpeedRun{4, 40, 8};
    };
  };
  for (const double seconds : {0.0, 0.01}) {
    prepared = ran = 0;
    const SpeedResult result = measure_speed(test, seconds);
    CHECK(prepared == 1);
    CHECK(ran == result.runs);
    CHECK(ran >= 1);
    CHECK(result.run.items == 4);
    CHECK(result.bytes_per_item() == 10);
    CHECK(result.operations_per_item() == 2);
  }
}

TEST_CASE("Every speed test of the engine and of schedules does its work") {
  for (const char* name :
       {"engine/dag/10k", "engine/five-routes-64/10k", "schedule/zero-infinity",
        "engine/zero-infinity", "simulate/zero-infinity", "end-to-end/zero-infinity"}) {
    INFO(name);
    const auto tests = find_speed_tests({name});
    REQUIRE(tests.size() == 1);
    CHECK(tests[0].prepare()().items >= 10000);
  }
}
