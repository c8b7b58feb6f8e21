// Steps on several sets of drives.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "policies/cost/costs.hpp"
#include "sim/result_json.hpp"
#include "sim/simulate.hpp"

using namespace spillway;

namespace {

Problem problem_on(const std::vector<std::string>& settings) {
  Problem problem;
  problem.model = load_model("gpt-6b");
  problem.machine = load_machine("rtx4090-2ssd", settings);
  problem.workload.batch = problem.workload.micro_batch = 4;
  return problem;
}

// One drive in place of the machine's two, and another one as a set of its own.
const std::vector<std::string> one_drive = {"ssd.count=1", "ssd.law=simplex", "ssd.cache=0"};
std::vector<std::string> and_another(double speed) {
  const Machine machine = load_machine("rtx4090-2ssd", one_drive);
  std::vector<std::string> all = one_drive;
  const auto rate = [&](double of_first) { return std::to_string(speed * of_first) + "B/s"; };
  all.insert(all.end(),
             {"ssd2.count=1", "ssd2.capacity=4TB", "ssd2.law=simplex",
              "ssd2.read=" + rate(machine.ssd.read), "ssd2.write=" + rate(machine.ssd.write)});
  return all;
}

SimulationResult simulated(const Problem& problem, const std::string& policy) {
  return simulate(build_schedule(problem, policy, 6));
}

}  // namespace

TEST_CASE("A step that drives bound is as much faster as all sets together are") {
  const std::string policy = "fuyou:checkpoints_ssd=0";
  const double alone = simulated(problem_on(one_drive), policy).step_seconds;
  for (const double speed : {1.0, 0.5, 0.25}) {
    const double both = simulated(problem_on(and_another(speed)), policy).step_seconds;
    INFO(speed);
    CHECK(alone / both == Approx(1 + speed).epsilon(0.06));
  }
}

TEST_CASE("Both sets are busy alike, are told apart, and either may be what bounds the step") {
  const SimulationResult result = simulated(problem_on(and_another(0.5)), "fuyou");
  const auto busy = [&](Lane lane) {
    return result.lanes[static_cast<std::size_t>(lane)].busy_fraction;
  };
  CHECK(busy(read_lane(1)) == Approx(busy(Lane::ssd_read)).epsilon(0.1));
  CHECK(busy(write_lane(1)) == Approx(busy(Lane::ssd_write)).epsilon(0.1));
  CHECK(result.bound_by.find("ssd") == 0);
  const double written = result.lanes[static_cast<std::size_t>(Lane::ssd_write)].bytes +
                         result.lanes[static_cast<std::size_t>(write_lane(1))].bytes;
  CHECK(result.ssd_bytes_written_per_step == Approx(written));
  // One that is far slower than it says is what the others wait for.
  Problem slow = problem_on(and_another(0.5));
  const Schedule schedule = build_schedule(slow, "fuyou", 6);
  slow.machine.drives(1).read /= 8;
  slow.machine.drives(1).write /= 8;
  const SimulationResult late = simulate(schedule, slow.machine);
  CHECK(late.bound_by == "ssd2.time");
  CHECK(late.step_seconds > 3 * result.step_seconds);
}

TEST_CASE("What the machine does not say of a second set is asked for by its key") {
  Problem problem = problem_on(and_another(0.5));
  const Schedule schedule = build_schedule(problem, "fuyou", 2);
  problem.machine.drives(1).read = 0;
  try {
    simulate(schedule, problem.machine);
    FAIL("it has no rate to go by");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).find("ssd2.read") != std::string::npos);
  }
}

TEST_CASE("A trace of a schedule on two sets gives the schedule back") {
  const Schedule schedule = build_schedule(problem_on(and_another(0.3)), "fuyou", 2);
  const Trace trace = make_trace(schedule, "test");
  CHECK(trace.lanes.back() == "ssd2.write");
  CHECK(trace.tiers.back() == "ssd2");
  CHECK(rebuild_schedule(trace, "test").fingerprint() == schedule.fingerprint());
}

TEST_CASE("The JSON of a result has the memory and the lanes of every set") {
  const Problem problem = problem_on(and_another(0.5));
  const Schedule schedule = build_schedule(problem, "fuyou", 6);
  const SimulationResult result = simulate(schedule);
  const auto json = to_json(schedule, &result, 0, 0);
  CHECK(json["memory"].contains("ssd2"));
  CHECK(json["memory"]["ssd2"]["peak_bytes"] == schedule.use(drives_tier(1)).peak_bytes);
  CHECK(json["lanes"].contains("ssd2.read"));
  CHECK(json["lanes"].contains("ssd2.write"));
}
