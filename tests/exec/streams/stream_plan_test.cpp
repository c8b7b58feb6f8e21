// Of which tasks on streams the host hears: exec/run/stream_plan.hpp.
#include <catch2/catch.hpp>
#include <map>

#include "exec/run/stream_plan.hpp"
#include "tests/exec/streams/stream_training.hpp"
#include "tests/policies/random_policy.hpp"

namespace spillway::test {
namespace {

// A step is reported when all tasks are done that it emitted, and those that apply its gradient;
// what is later may wait for that, by way of a commit. So the host must hear of the last one of
// each lane that counts towards a step by a notice of its own, not by one of a task that is later.
void check_notices(const Schedule& schedule, const StreamPlan& plan) {
  const auto tasks = schedule.tasks();
  std::map<std::pair<Lane, int>, TaskId> last;
  for (TaskId id = 0; id < tasks.size(); ++id) {
    if (!plan.is_stream(tasks[id].lane)) continue;
    last[{tasks[id].lane, tasks[id].step}] = id;
    if (tasks[id].update >= 0) last[{tasks[id].lane, tasks[id].update}] = id;
  }
  for (const auto& [where, id] : last) {
    INFO(schedule.describe(id) << " on " << to_string(where.first) << ", of step " << where.second);
    CHECK(plan.notifies(id));
  }
  // And of each one that a lane of the host waits for.
  for (TaskId id = 0; id < tasks.size(); ++id) {
    if (!plan.is_stream(tasks[id].lane)) continue;
    for (const TaskId next : schedule.successors(id)) {
      INFO(schedule.describe(id) << ", then " << schedule.describe(next));
      if (!plan.is_stream(tasks[next].lane)) CHECK(plan.notifies(id));
    }
  }
}

}  // namespace

TEST_CASE("Streams: the host hears of all that a step needs before anything of a later step",
          "[streams]") {
  const Workbench bench(folder_for_many_runs());
  StreamRecord record;
  ThreadStreams streams(record, {}, [](const StreamWork&) {}, {});
  const auto check = [&](const Schedule& schedule) {
    const StreamPlan plan(schedule, streams, {}, false);
    check_notices(schedule, plan);
  };
  const TrainingOptions options = bench.options("resident", 2, 16, 2);
  for (const std::string& policy : stream_policies()) {
    INFO(policy);
    check(build_schedule(options.problem, policy, 4));
  }
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    check(build_schedule(options.problem, *make_random_policy({seed, true}), 4));
  }
  CHECK(record.broken() == "");
}

}  // namespace spillway::test
