// A trace says what it is from: the schedule can be built again, or it is said why not.
#include <catch2/catch.hpp>

#include <fstream>
#include <string>
#include <tuple>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/run_record.hpp"
#include "policies/framework/framework.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem problem_on(const Machine& machine) {
  Problem problem = tiny_problem(3, 2);
  problem.machine = machine;
  return problem;
}

Trace recorded(const std::string& policy = "greedysnake") {
  return make_trace(build_schedule(problem_on(load_machine("testbed")), policy, 2), "simulator");
}

void check_same(const Schedule& built, const Schedule& rebuilt) {
  CHECK(rebuilt.fingerprint() == built.fingerprint());
  CHECK(rebuilt.policy() == built.policy());
  CHECK(rebuilt.steps() == built.steps());
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    CHECK(rebuilt.use(tier).peak_bytes == built.use(tier).peak_bytes);
    CHECK(rebuilt.use(tier).capacity_bytes == built.use(tier).capacity_bytes);
  }
  const Problem &a = built.problem(), &b = rebuilt.problem();
  CHECK(model_to_toml(a.model) == model_to_toml(b.model));
  CHECK(a.workload.batch == b.workload.batch);
  CHECK(a.workload.micro_batch == b.workload.micro_batch);
  CHECK(a.workload.sequence == b.workload.sequence);
  CHECK(a.workload.precision == b.workload.precision);
  CHECK(a.workload.gradient == b.workload.gradient);
  CHECK(a.workload.moments == b.workload.moments);
  CHECK(a.backend() == b.backend());
}

}  // namespace

TEST_CASE("A trace of any policy gives its schedule back") {
  for (const std::string& policy : policy_settings()) {
    for (const Precision precision : {Precision::bf16, Precision::fp32}) {
      for (const GradientWidth width : {GradientWidth::automatic, GradientWidth::bits32}) {
        INFO(policy);
        Problem problem = problem_on(load_machine("testbed"));
        problem.workload.precision = precision;
        problem.workload.gradient = width;
        problem.workload.moments =
            width == GradientWidth::bits32 ? MomentWidth::bf16 : MomentWidth::fp32;
        const Schedule schedule = build_schedule(problem, policy, 3);
        const Schedule rebuilt = rebuild_schedule(make_trace(schedule, "executor"), "run.json");
        check_same(schedule, rebuilt);
        CHECK(machine_to_toml(rebuilt.problem().machine) == machine_to_toml(problem.machine));
      }
    }
  }
}

TEST_CASE("A trace of a run on a machine of unknown rates gives its schedule back") {
  // What `train` knows without a machine file: limits only. They decide what auto means.
  Problem problem = tiny_problem(4, 8);
  problem.trains_on = Backend::cpu;
  problem.machine.host.memory =
      build_schedule(problem, "greedysnake:optimizer_ssd=0.5,checkpoints_ssd=0,parameters_ssd=0", 2)
          .use(Tier::host)
          .peak_bytes;
  const Schedule schedule = build_schedule(problem, "greedysnake", 2);
  REQUIRE(schedule.policy() == "greedysnake:optimizer_ssd=0.5,checkpoints_ssd=0,parameters_ssd=0");
  const Trace trace = make_trace(schedule, "executor");
  CHECK(trace.find_metadata("machine") == nullptr);
  check_same(schedule, rebuild_schedule(trace, "run.json"));
}

TEST_CASE("A trace says by a hash whether a framework's file is still what it was") {
  const TemporaryFolder folder;
  const std::string file = folder / "mine.toml";
  const auto write = [&](const std::string& memory) {
    std::ofstream(file) << "name = \"mine\"\ndescription = \"a test\"\n[memory]\n" << memory;
  };
  Problem problem = problem_on(load_machine("testbed"));
  write("gpu = \"1MB\"\n");
  problem.framework = file + ":memory.host=1MB";
  const Schedule schedule = build_schedule(problem, "zero-offload", 2);
  const Trace trace = make_trace(schedule, "simulator");
  CHECK(*trace.find_metadata("framework_hash") == '"' + framework_hash(problem.framework) + '"');
  check_same(schedule, rebuild_schedule(trace, "run.json"));
  write("gpu = \"1MB\"  # as it was\n");  // another file, the same schedule
  check_same(schedule, rebuild_schedule(trace, "run.json"));
  write("gpu = \"2MB\"\n");
  check_error([&] { rebuild_schedule(trace, "run.json"); }, "run.json: the file of framework",
              "restore the file");
}

TEST_CASE("A trace names lanes, kinds, phases and tiers by their number, and has no spans yet") {
  const Trace trace = recorded();
  CHECK(trace.spans.empty());
  REQUIRE(trace.lanes.size() == lane_count_of_one_rank);
  REQUIRE(trace.kinds.size() == task_kind_count_of_one_rank);
  REQUIRE(trace.phases.size() == phase_count);
  REQUIRE(trace.tiers.size() == 3);
  CHECK(trace.lanes[static_cast<std::size_t>(Lane::ssd_write)] == "ssd.write");
  CHECK(trace.kinds[static_cast<std::size_t>(TaskKind::barrier)] == "barrier");
  CHECK(trace.phases[static_cast<std::size_t>(Phase::epilogue)] == "epilogue");
  CHECK(trace.tiers[static_cast<std::size_t>(Tier::ssd)] == "ssd");
  CHECK(*trace.find_metadata("source") == "\"simulator\"");
}

TEST_CASE("A trace that does not say what it is from is refused, and what is missing is named") {
  for (const std::string key : {"model", "limits", "workload", "policy", "steps", "fingerprint"}) {
    Trace trace = recorded();
    std::erase_if(trace.metadata, [&](const auto& entry) { return entry.first == key; });
    check_error([&] { rebuild_schedule(trace, "run.json"); },
                "run.json: the trace does not say its " + key, "`spillway simulate` wrote");
  }
}

TEST_CASE("Damaged metadata is refused, whatever the damage") {
  for (const std::string key :
       {"model", "machine", "limits", "workload", "policy", "steps", "fingerprint"}) {
    for (const std::string value :
         {"\"x\"", "17", "-3", "null", "{}", "[]", "true", "{", "", "1e300"}) {
      INFO(key << " = " << value);
      Trace trace = recorded();
      if (*trace.find_metadata(key) == value) continue;
      for (auto& [name, text] : trace.metadata) {
        if (name == key) text = value;
      }
      const InputError error = input_error([&] { rebuild_schedule(trace, "run.json"); });
      CHECK(!std::string(error.what()).empty());
    }
  }
}

TEST_CASE("Damaged fields of the workload and the limits are refused") {
  struct Damage {
    const char *key, *from, *to;
  };
  for (const Damage& damage :
       {Damage{"workload", "\"batch\":4", "\"batch\":0"},
        Damage{"workload", "\"batch\":4", "\"batch\":3"},
        Damage{"workload", "\"micro_batch\":2", "\"micro_batch\":0"},
        Damage{"workload", "\"micro_batch\":2", "\"micro_batch\":-2"},
        Damage{"workload", "\"sequence\":16", "\"sequence\":17"},
        Damage{"workload", "\"sequence\":16", "\"sequence\":\"16\""},
        Damage{"workload", "\"bf16\"", "\"fp8\""}, Damage{"workload", "\"auto\"", "\"8\""},
        Damage{"workload", "\"batch\"", "\"bitch\""}, Damage{"limits", "\"gpu\"", "\"gnu\""},
        Damage{"limits", "\"cuda\"", "\"tpu\""}, Damage{"limits", "\"cuda\"", "1"}}) {
    INFO(damage.key << ": " << damage.from << " becomes " << damage.to);
    Problem problem = tiny_problem(3, 2);
    Trace trace = make_trace(build_schedule(problem, "greedysnake", 2), "executor");
    std::string text = *trace.find_metadata(damage.key);
    const auto at = text.find(damage.from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::string(damage.from).size(), damage.to);
    trace.set_metadata(damage.key, text);
    const InputError error = input_error([&] { rebuild_schedule(trace, "run.json"); });
    CHECK(!std::string(error.what()).empty());
  }
}

TEST_CASE("Another schedule than the recorded one is refused") {
  const std::string expected =
      "run.json: policy greedysnake:optimizer_ssd=0,checkpoints_ssd=0,parameters_ssd=0 "
      "now writes another schedule than the recorded one";
  Trace fingerprint = recorded();
  fingerprint.set_metadata("fingerprint", "\"0123456789abcdef\"");
  check_error([&] { rebuild_schedule(fingerprint, "run.json"); }, expected, "another version");
  Trace steps = recorded();
  steps.set_metadata("steps", "3");
  check_error([&] { rebuild_schedule(steps, "run.json"); }, expected, "another version");
}

TEST_CASE("a trace whose numbers are none of ours is damaged, and says which") {
  for (const auto& [key, from, to, what] :
       {std::tuple{"limits", "\"gpu\":", "\"gpu\":1e300,\"x\":", "gpu is 1e+300"},
        {"limits", "\"host\":", "\"host\":-1,\"x\":", "host is -1"},
        {"workload", "\"batch\":", "\"batch\":2.5,\"x\":", "workload: batch is 2.5"},
        {"workload",
         "\"micro_batch\":", "\"micro_batch\":\"2\",\"x\":", "workload: micro_batch is string"},
        {"workload", "\"sequence\":", "\"sequence\":[[]],\"x\":", "workload: sequence is array"}}) {
    Trace trace = recorded();
    std::string text = *trace.find_metadata(key);
    text.replace(text.find(from), std::string(from).size(), to);
    trace.set_metadata(key, text);
    check_error([&] { rebuild_schedule(trace, "t.json"); },
                std::string("t.json: damaged metadata: ") + what + ", not a whole number", "");
  }
  Trace trace = recorded();
  trace.set_metadata("steps", "99999999999999999999");
  check_error([&] { rebuild_schedule(trace, "t.json"); }, "t.json: damaged metadata: steps is", "");
}
