// Gradient clipping and skipping, in every policy: what an update has to know it knows, and off
// leaves nothing behind.
#include "policies/workload/gradient_clip.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <tuple>

#include "policies/common/run_record.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

constexpr GradientClip global{ClipScope::global, 1.0}, layer{ClipScope::layer, 0.5};

Problem clipped(Problem problem, const GradientClip& clip, OnNonFinite action = OnNonFinite::stop) {
  problem.workload.clip = clip;
  problem.workload.on_nonfinite = action;
  return problem;
}

// A task and its operands, but for what a norm adds, without the numbers of buffers and tasks.
using Operand =
    std::tuple<BufferKind, Tier, int, int, std::uint64_t, Role, Mode, std::uint64_t, std::uint64_t>;
using Work = std::tuple<TaskKind, Lane, Phase, int, int, int, int, std::uint64_t, double,
                        std::uint64_t, std::uint64_t, std::vector<Operand>>;

std::vector<Work> work_without_norms(const Schedule& schedule) {
  std::vector<Work> all;
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::gradient_norm) continue;
    std::vector<Operand> operands;
    for (const Access& access : schedule.accesses(task)) {
      if (access.role == Role::norms) continue;
      const BufferInfo& buffer = schedule.buffers()[access.buffer];
      operands.emplace_back(buffer.kind, buffer.tier, buffer.layer, buffer.micro_batch,
                            buffer.bytes, access.role, access.mode, access.offset, access.bytes);
    }
    all.emplace_back(task.kind, task.lane, task.phase, task.step, task.layer, task.micro_batch,
                     task.update, task.bytes, task.flops, task.params, task.first_element,
                     operands);
  }
  return all;
}

int count(const Schedule& schedule, TaskKind kind) {
  const auto tasks = schedule.tasks();
  return static_cast<int>(std::count_if(tasks.begin(), tasks.end(),
                                        [&](const Task& task) { return task.kind == kind; }));
}

}  // namespace

TEST_CASE("Clipping and skipping: every policy is free of races, and updates know their norms") {
  for (const int layers : {1, 2, 3, 7}) {
    for (const int micro_batches : {1, 2, 5}) {
      const Problem plain = tiny_problem(layers, micro_batches);
      for (const Problem& problem :
           {clipped(plain, global), clipped(plain, layer), clipped(plain, {}, OnNonFinite::skip),
            clipped(plain, layer, OnNonFinite::skip)}) {
        for (const std::string& policy : policy_settings()) {
          INFO(policy << ", " << layers << " layers, " << micro_batches << " micro-batches, "
                      << to_string(problem.workload.clip) << ", "
                      << to_string(problem.workload.on_nonfinite));
          check_schedule(build_schedule(problem, policy, 3));
        }
      }
    }
  }
}

TEST_CASE("Clipping by layer adds norms to a schedule, and clipping off adds nothing") {
  // Norms aside, the same tasks with the same operands in the same order: a unit's update waits for
  // nothing but its own norm.
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    const Problem plain = tiny_problem(5, 3);
    const Schedule off = build_schedule(plain, policy, 3);
    const Schedule by_layer = build_schedule(clipped(plain, layer), policy, 3);
    CHECK(count(off, TaskKind::gradient_norm) == 0);
    CHECK(count(by_layer, TaskKind::gradient_norm) == 3 * 6);
    CHECK(work_without_norms(by_layer) == work_without_norms(off));
    for (const BufferInfo& buffer : off.buffers()) CHECK(buffer.kind != BufferKind::norms);
  }
}

TEST_CASE(
    "Clipping the whole gradient: the same work in every policy, its updates after the norms") {
  // Each update of step k comes after the last norm of step k, in program order (dependencies point
  // forward); and as many elements are updated, as many bytes written, no more read.
  for (const std::string& policy : policy_settings()) {
    INFO(policy);
    const Problem plain = tiny_problem(5, 3);
    const Schedule off = build_schedule(plain, policy, 3);
    for (const Problem& problem : {clipped(plain, global), clipped(plain, {}, OnNonFinite::skip)}) {
      const Schedule waits = build_schedule(problem, policy, 3);
      std::vector<int> norms(3, 0);
      for (const Task& task : waits.tasks()) {
        if (task.kind == TaskKind::gradient_norm) ++norms[static_cast<std::size_t>(task.update)];
        if (task.kind == TaskKind::optimizer)
          REQUIRE(norms[static_cast<std::size_t>(task.update)] == 6);
      }
      const auto total = [](const Schedule& schedule, TaskKind kind) {
        std::uint64_t sum = 0;
        for (const Task& task : schedule.tasks())
          if (task.kind == kind) sum += kind == TaskKind::optimizer ? task.params : task.bytes;
        return sum;
      };
      CHECK(total(waits, TaskKind::optimizer) == total(off, TaskKind::optimizer));
      CHECK(total(waits, TaskKind::write) == total(off, TaskKind::write));
      // Fewer where an update waits for the next forward, which then has its result at hand.
      CHECK(total(waits, TaskKind::read) <= total(off, TaskKind::read));
    }
  }
}

TEST_CASE("Where updates wait, gradients take memory, which is planned and may not fit") {
  // fuyou with one micro-batch passes each block's gradient on at once; waiting, all seven are in
  // host memory at the end of backward.
  const Problem plain = tiny_problem(7, 1);
  const std::uint64_t block = 7 * 2048 * plain.gradient_bytes();
  const std::string policy = "fuyou:checkpoints_ssd=0";
  const Schedule off = build_schedule(plain, policy, 3);
  const Schedule waits = build_schedule(clipped(plain, global), policy, 3);
  CHECK(waits.use(Tier::host).live_peak_bytes >= 7 * block);
  CHECK(waits.use(Tier::host).peak_bytes > off.use(Tier::host).peak_bytes);
  const Schedule tight = build_schedule(clipped(tightened(off), global), policy, 3);
  CHECK_FALSE(tight.fits());
  CHECK_THROWS_AS(tight.require_fit(), FitError);
  // Placement left at auto accounts for it: greedysnake puts more of the optimizer state on the
  // SSD.
  const Schedule least =
      build_schedule(tightened(build_schedule(plain, "greedysnake", 3)), "greedysnake", 3);
  const Schedule chosen = build_schedule(clipped(least.problem(), global), "greedysnake", 3);
  CHECK(chosen.policy() != least.policy());
}

TEST_CASE("A trace says how gradients are clipped, and the schedule is built again so") {
  for (const OnNonFinite action : {OnNonFinite::stop, OnNonFinite::skip}) {
    for (const GradientClip& clip : {GradientClip{}, global, GradientClip{ClipScope::layer, 0.1}}) {
      Problem problem = clipped(tiny_problem(3, 2), clip, action);
      problem.machine = load_machine("testbed");
      const Schedule schedule = build_schedule(problem, "fuyou", 2);
      const Schedule again = rebuild_schedule(make_trace(schedule, "executor"), "run.json");
      CHECK(again.fingerprint() == schedule.fingerprint());
      CHECK(again.problem().workload.clip == clip);
      CHECK(again.problem().workload.on_nonfinite == action);
    }
  }
}

TEST_CASE("Clipping is read as it is written, and what is neither is refused") {
  for (const char* text : {"off", "global=1", "layer=0.25", "global=1e-05"})
    CHECK(to_string(parse_gradient_clip(text)) == text);
  CHECK(parse_gradient_clip("global=1.0") == global);
  for (const char* text : {"on", "global", "1.0", "layers=1"}) {
    check_error([&] { parse_gradient_clip(text); },
                std::string("gradient_clip = ") + text + ": not off, global=LIMIT or layer=LIMIT",
                "global=1.0");
  }
  for (const char* text :
       {"global=", "global=0", "layer=-1", "layer=nan", "global=inf", "global=1x", "layer=1e999"}) {
    check_error([&] { parse_gradient_clip(text); },
                std::string("gradient_clip = ") + text + ": the limit is not a number above 0",
                "gradient_clip = off");
  }
  CHECK(parse_on_nonfinite("skip") == OnNonFinite::skip);
  check_error([] { parse_on_nonfinite("ignore"); }, "on_nonfinite = ignore: neither stop nor skip",
              "skip: the step's update");
}
