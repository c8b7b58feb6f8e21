// Which activations leave the GPU, which go on to the SSD, and which stay: by copies in the
// schedule.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>

#include "tests/policies/check_schedule.hpp"
#include "tests/policies/movement/orders.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// Copies of step 1 of two, of buffers of a kind: "layer.micro-batch ", in program order.
std::string copies(const Schedule& schedule, TaskKind copy, BufferKind kind) {
  check_schedule(schedule);
  std::string text;
  for (const Task& task : schedule.tasks()) {
    if (task.step != 1 || task.kind != copy) continue;
    if (schedule.buffers()[schedule.accesses(task)[1].buffer].kind != kind) continue;
    text += fmt::format("{}.{} ", task.layer, task.micro_batch);
  }
  return text;
}

}  // namespace

// One micro-batch, layers 0 .. 3: the forward of a layer uses what the one before made, the last
// layer's backward what its forward used, and every backward the gradient that the one before made.
// So the inputs of layers 0 .. 2 leave for backward, once each, and come back, the last one first.
TEST_CASE("What the next visit uses stays, all else leaves once and comes back once") {
  const Schedule schedule = schedule_of(tiny_problem(4, 1), {}, horizontal, 2);
  CHECK(copies(schedule, TaskKind::d2h, BufferKind::checkpoint) == "0.0 1.0 2.0 ");
  CHECK(copies(schedule, TaskKind::h2d, BufferKind::checkpoint) == "2.0 1.0 0.0 ");
  CHECK(copies(schedule, TaskKind::d2h, BufferKind::activation_gradient) == "");
}

// Rows 0 1 in every layer: every input and every gradient between layers waits for a visit. Of what
// a visit made the output leaves first, which is used again first.
TEST_CASE("In rows, activations and their gradients leave between layers") {
  const Schedule schedule = schedule_of(tiny_problem(2, 2), {}, vertical(), 2);
  CHECK(copies(schedule, TaskKind::d2h, BufferKind::checkpoint) == "1.0 0.0 1.1 0.1 ");
  CHECK(copies(schedule, TaskKind::h2d, BufferKind::checkpoint) == "1.0 1.1 0.0 0.1 ");
  CHECK(copies(schedule, TaskKind::d2h, BufferKind::activation_gradient) == "0.0 0.1 ");
}

TEST_CASE("Activations that rest on the GPU do not move") {
  Plan plan;
  plan.checkpoints.rest = Share{.gpu = 1};
  plan.activation_gradients.on_gpu = 1;
  plan.saved.saves = SavedMask{gpt_saved::all};
  const Schedule schedule = schedule_of(tiny_problem(3, 3), plan, vertical(), 2);
  for (const BufferKind kind :
       {BufferKind::checkpoint, BufferKind::saved, BufferKind::activation_gradient}) {
    CHECK(copies(schedule, TaskKind::d2h, kind) == "");
    CHECK(copies(schedule, TaskKind::h2d, kind) == "");
  }
}

// What layer 1 saves is used again two visits later, what layer 0 saves four, what the last layer
// saves at once.
TEST_CASE("What forward saves inside a layer leaves and comes back as its input does") {
  Plan plan;
  plan.saved.saves = SavedMask{gpt_saved::residual};
  const Schedule schedule = schedule_of(tiny_problem(3, 1), plan, horizontal, 2);
  CHECK(copies(schedule, TaskKind::d2h, BufferKind::saved) == "0.0 1.0 ");
  CHECK(copies(schedule, TaskKind::h2d, BufferKind::saved) == "1.0 0.0 ");
}

// One by one, of 5 layers the first 4 leave: half of them rest on the SSD, those that backward uses
// last.
TEST_CASE("Taken one by one, the inputs of the first layers rest on the SSD") {
  Plan plan;
  plan.checkpoints.rest = Share{.host = 0.5, .ssd = 0.5};
  const Schedule schedule = schedule_of(tiny_problem(5, 1), plan, horizontal, 2);
  CHECK(copies(schedule, TaskKind::write, BufferKind::checkpoint) == "0.0 1.0 ");
  CHECK(copies(schedule, TaskKind::read, BufferKind::checkpoint) == "1.0 0.0 ");
}

// In rows of 6 with a margin of 2 at each end, micro-batches 2 and 3 may rest on the SSD: half of
// them is one, in each layer but the last.
TEST_CASE("In rows, inner micro-batches rest on the SSD") {
  Plan plan;
  plan.checkpoints.rest = Share{.host = 0.5, .ssd = 0.5};
  plan.checkpoints.margin = 2;
  const Schedule schedule = schedule_of(tiny_problem(3, 6), plan, vertical(), 2);
  CHECK(copies(schedule, TaskKind::write, BufferKind::checkpoint) == "0.2 1.2 ");
  CHECK(copies(schedule, TaskKind::read, BufferKind::checkpoint) == "1.2 0.2 ");
}
