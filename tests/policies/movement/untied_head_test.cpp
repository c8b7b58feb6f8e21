// The head as a unit of its own, where it is not tied to the token table.
#include <catch2/catch.hpp>

#include "tests/policies/check_schedule.hpp"
#include "tests/policies/movement/orders.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem untied_problem(int layers, int micro_batches) {
  Problem problem = tiny_problem(layers, micro_batches);
  problem.model.architecture = Architecture::llama;
  problem.model.qkv_bias = problem.model.tied = false;
  return problem;
}

// The first task of step 1 that `chosen` names; no such task: `none`.
template <class Chosen>
TaskId first_of(const Schedule& schedule, const Chosen& chosen) {
  for (TaskId id = 0; id < schedule.tasks().size(); ++id) {
    const Task& task = schedule.tasks()[id];
    if (task.step == 1 && chosen(task)) return id;
  }
  return none;
}

TaskId update_of(const Schedule& schedule, int unit) {
  return first_of(schedule, [&](const Task& task) {
    return task.kind == TaskKind::optimizer && task.layer == unit && task.update == 1;
  });
}

TaskId backward_of(const Schedule& schedule, int layer) {
  return first_of(schedule, [&](const Task& task) {
    return task.kind == TaskKind::backward && task.layer == layer;
  });
}

}  // namespace

TEST_CASE("An untied head is updated under the backward of the layers below the last one") {
  Plan plan;
  plan.order.row = 0;
  plan.order.updates = UpdateOrder::within;
  const auto schedule = [&](const Problem& problem) {
    return schedule_of(
        problem, plan, [](Step& step) { step.in_order_of_plan(); }, 3);
  };
  const Schedule untied = schedule(untied_problem(4, 2));
  check_schedule(untied);
  const int head = static_cast<int>(head_unit(untied.problem().model));
  CHECK(head == 5);
  CHECK(update_of(untied, head) < backward_of(untied, 0));
  CHECK(update_of(untied, 4) > backward_of(untied, 0));
  // Where its gradient waits on the GPU until backward ends, so does the update.
  plan.gradients.head_waits = Tier::gpu;
  const Schedule waiting = schedule(untied_problem(4, 2));
  check_schedule(waiting);
  CHECK(update_of(waiting, head) > backward_of(waiting, 0));
  // On the GPU nothing has to wait.
  plan.parameters.rest = plan.optimizer_state.rest = plan.checkpoints.rest = Share{.gpu = 1};
  const Schedule on_gpu = schedule(untied_problem(4, 2));
  check_schedule(on_gpu);
  CHECK(update_of(on_gpu, head) < backward_of(on_gpu, 0));
}

TEST_CASE("An untied head has one sum of gradients, and so has the embedding") {
  const auto second_sums = [](const Problem& problem) {
    int count = 0;
    for (const char* policy : {"resident", "zero-infinity", "fuyou", "greedysnake"}) {
      const Schedule schedule = build_schedule(problem, policy, 2);
      check_schedule(schedule);
      for (const BufferInfo& buffer : schedule.buffers())
        count += buffer.kind == BufferKind::head_gradient;
    }
    return count;
  };
  Problem problem = untied_problem(3, 2);
  CHECK(second_sums(problem) == 0);
  problem.model.tied = true;
  CHECK(second_sums(problem) > 0);
}

TEST_CASE("A part of an untied head may be updated before the last layer's next forward") {
  const Order order = [](Step& step) {
    step.update(step.embedding());
    for (const int layer : step.upward()) {
      if (layer + 1 == step.layers()) step.update(step.head(), {0, 0.5});
      for (const int m : step.ascending()) step.forward(layer, m);
    }
    for (const int layer : step.downward()) {
      for (const int m : step.ascending()) step.backward(layer, m);
      step.update(layer);
    }
    step.update(step.head(), {0.5, 1});
  };
  const Schedule schedule = schedule_of(untied_problem(3, 2), Plan{}, order, 3);
  check_schedule(schedule);
  int late = 0;
  for (const Task& task : schedule.tasks())
    late += task.kind == TaskKind::optimizer && task.layer == 4 && task.update + 1 == task.step;
  CHECK(late == 3);
}
