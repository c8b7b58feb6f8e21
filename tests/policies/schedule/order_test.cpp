// The order in which policies emit their tasks, against the papers they are from.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "policies/common/policy.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::string visits(const Schedule& schedule, int step) {
  std::string text;
  for (const Task& task : schedule.tasks()) {
    if (task.step != step) continue;
    if (task.kind == TaskKind::forward) text += fmt::format("F{}{} ", task.layer, task.micro_batch);
    if (task.kind == TaskKind::backward)
      text += fmt::format("B{}{} ", task.layer, task.micro_batch);
  }
  return text;
}

}  // namespace

TEST_CASE("The snake: GreedySnake's example of four layers and three micro-batches") {
  // F(0:0,1,2)(1:2,1,0)(2:0,1,2) B(3:2,1,0)(2:0,1,2)(1:2,1,0)(0:0,1,2); B(3) is forward and
  // backward fused.
  const Schedule schedule = build_schedule(tiny_problem(4, 3), "greedysnake", 2);
  for (const int step : {0, 1}) {
    CHECK(visits(schedule, step) ==
          "F00 F01 F02 F12 F11 F10 F20 F21 F22 F32 B32 F31 B31 F30 B30 B20 B21 B22 B12 B11 B10 B00 "
          "B01 B02 ");
  }
}

TEST_CASE(
    "The snake: task k is of layer u = k / M, turned at the last layer, micro-batch turned in odd "
    "layers") {
  for (const int U : layer_grid) {
    for (const int M : micro_batch_grid) {
      for (const bool snake : {true, false}) {
        INFO(U << " layers, " << M << " micro-batches, snake " << snake);
        std::string expected;
        for (int k = 0; k < M * (2 * U - 1); ++k) {
          const bool forward = k / M < U - 1;
          const int u = forward ? k / M : 2 * U - 2 - k / M;
          const int j = snake && u % 2 == 1 ? M - 1 - k % M : k % M;
          if (forward || u == U - 1) expected += fmt::format("F{}{} ", u, j);
          if (!forward) expected += fmt::format("B{}{} ", u, j);
        }
        const auto schedule =
            build_schedule(tiny_problem(U, M), snake ? "greedysnake" : "greedysnake:snake=off", 1);
        CHECK(visits(schedule, 0) == expected);
      }
    }
  }
}

TEST_CASE("Horizontal policies run one micro-batch through all layers, then the next") {
  for (const char* policy :
       {"resident", "zero-offload", "zero-infinity", "deep-optimizer-states", "fuyou"}) {
    INFO(policy);
    CHECK(visits(build_schedule(tiny_problem(3, 2), policy, 1), 0) ==
          "F00 F10 F20 B20 B10 B00 F01 F11 F21 B21 B11 B01 ");
  }
}

namespace {

// Reads and writes of optimizer state on the SSD, in program order: "R2 W2 ".
std::string state_order(const Schedule& schedule, int step) {
  std::string text;
  for (const Task& task : schedule.tasks()) {
    if (task.step != step || (task.kind != TaskKind::read && task.kind != TaskKind::write))
      continue;
    const Access& on_ssd = schedule.accesses(task)[task.kind == TaskKind::read ? 0 : 1];
    if (schedule.buffers()[on_ssd.buffer].kind != BufferKind::optimizer_state) continue;
    text += fmt::format("{}{} ", task.kind == TaskKind::read ? 'R' : 'W', task.layer);
  }
  return text;
}

}  // namespace

TEST_CASE("Order of the optimizer on the SSD: Ratel's R(i), R(i-1), W(i), R(i-2), W(i-1), ...") {
  // Three layers, then the embedding (unit 3), whose gradient completes last.
  const auto order = [](const std::string& policy) {
    return state_order(build_schedule(tiny_problem(3, 2), policy, 2), 1);
  };
  CHECK(order("fuyou") == "R2 R1 W2 R0 W1 R3 W0 W3 ");
  CHECK(order("fuyou:optimizer=serial") == "R2 R1 W2 R0 W1 R3 W0 W3 ");
  CHECK(order("fuyou:optimizer=naive") == "R2 W2 R1 W1 R0 W0 R3 W3 ");
  // DeepSpeed walks sub-groups in model order (here a layer's two tensors of 4096 elements,
  // then its third of 6144),
  // pipelined or one after the other; all of the model is one by default.
  const auto sub_groups = [&](const std::string& pipeline) {
    return order("zero-infinity:sub_group_size=6000,pipeline_" + pipeline);
  };
  CHECK(sub_groups("read=on,pipeline_write=on") ==
        "R0 R0 R0 W0 W0 R1 R1 W0 R1 W1 W1 R2 R2 W1 R2 W2 W2 R3 W2 W3 ");
  CHECK(sub_groups("read=off") == "R0 R0 W0 W0 R0 W0 R1 R1 W1 W1 R1 W1 R2 R2 W2 W2 R2 W2 R3 W3 ");
  CHECK(order("zero-infinity") == "R0 R0 R0 R1 R1 R1 R2 R2 R2 R3 W0 W0 W0 W1 W1 W1 W2 W2 W2 W3 ");
}

TEST_CASE("The optimizer starts under backward or after it") {
  // Whether the first update is emitted before the last backward of the step.
  const auto starts_under_backward = [](const std::string& policy) {
    const Schedule schedule = build_schedule(tiny_problem(3, 2), policy, 1);
    for (const Task& task : schedule.tasks()) {
      if (task.kind == TaskKind::optimizer) return true;
      if (task.kind == TaskKind::embed_backward && task.micro_batch == 1) return false;
    }
    return false;
  };
  CHECK(starts_under_backward("fuyou"));
  CHECK(starts_under_backward("fuyou:optimizer=naive"));
  CHECK(!starts_under_backward("fuyou:optimizer=serial"));
  CHECK(starts_under_backward("greedysnake"));
  CHECK(!starts_under_backward("zero-infinity"));
  CHECK(!starts_under_backward("zero-offload"));
  CHECK(!starts_under_backward("deep-optimizer-states:sub_group_size=1"));
  CHECK(!starts_under_backward("resident"));
}
