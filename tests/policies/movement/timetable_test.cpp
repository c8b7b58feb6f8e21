// When parameters are fetched and updates run, in visits, for orders small enough to count on
// fingers.
#include "policies/movement/timetable.hpp"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <string>

#include "tests/policies/movement/orders.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::string turns_of(const Problem& problem, const Order& order) {
  const OrderOfWork work = work_of(problem, {}, 1, order);
  const Uses uses(problem, work);
  std::string text;
  for (const Turn& turn : uses.turns())
    text += fmt::format("{}{}:{}-{} ", turn.backward ? 'B' : 'F', turn.layer, turn.begin, turn.end);
  return text;
}

// "layer:use<copies<read ", of the first step.
std::string fetches_of(const Problem& problem, const Plan& plan, const Order& order) {
  const OrderOfWork work = work_of(problem, plan, 1, order);
  const Timetable times(problem, plan, work);
  std::string text;
  for (const ParameterFetch& fetch : times.fetches()) {
    text += fmt::format("{}:{}<{}-{}<{} ", fetch.unit, fetch.use, fetch.copy_begin, fetch.copy_end,
                        fetch.read_at);
  }
  return text;
}

// "layer@visit+point ", in order of emission; a wait is "wait".
std::string events_of(const Problem& problem, const Plan& plan, int steps, const Order& order) {
  const OrderOfWork work = work_of(problem, plan, steps, order);
  const Timetable times(problem, plan, work);
  std::string text;
  for (const OptimizerEvent& event : times.events()) {
    const std::string what =
        event.is_wait ? "wait"
                      : std::to_string(work.ranges[work.updates[event.update].first_range].unit);
    text += fmt::format("{}@{}+{} ", what, event.moment / moments_of_visit,
                        event.moment % moments_of_visit);
  }
  return text;
}

// "unit@visit ", in order.
std::string updates_of(const OrderOfWork& work) {
  std::string text;
  for (const Update& update : work.updates)
    text += fmt::format("{}@{} ", work.ranges[update.first_range].unit, update.at);
  return text;
}

}  // namespace

// The last layer's forward and backward on a micro-batch are one visit. Taken one by one, the
// backward of layer 0 is followed by the next micro-batch's forward of layer 0: one turn.
TEST_CASE("A turn is a row of visits to one layer") {
  const Problem problem = tiny_problem(3, 2);
  CHECK(turns_of(problem, vertical()) == "F0:0-2 F1:2-4 B2:4-6 B1:6-8 B0:8-10 ");
  CHECK(turns_of(problem, horizontal) ==
        "F0:0-1 F1:1-2 B2:2-3 B1:3-4 B0:4-6 F1:6-7 B2:7-8 B1:8-9 B0:9-10 ");
}

// Turns of 2 visits: F0 0-2, F1 2-4, F2 4-6, B3 6-8, B2 8-10, B1 10-12, B0 12-14. A copy goes
// under the turn gpu_ahead turns before the use, the read from the SSD host_ahead turns before that
// one; none before the step begins. What was used no more turns ago than it would be copied ahead
// is still there.
TEST_CASE("Parameters are copied under an earlier turn, and read before that") {
  const Problem problem = tiny_problem(4, 2);
  Plan plan;
  plan.parameters.gpu_ahead = 1;
  plan.parameters.host_ahead = 2;
  CHECK(fetches_of(problem, plan, vertical()) ==
        "0:0<0-0<0 1:2<0-2<0 2:4<2-4<0 3:6<4-6<0 2:8<6-8<2 1:10<8-10<4 0:12<10-12<6 ");
  plan.parameters.host_ahead = 0;
  plan.parameters.backward_gpu_ahead = 2;
  CHECK(fetches_of(problem, plan, vertical()) ==
        "0:0<0-0<0 1:2<0-2<0 2:4<2-4<2 3:6<2-4<2 1:10<6-8<6 0:12<8-10<8 ");
}

// The gradient of layers 3 .. 1 leaves under the next turn, after which they are updated; that of
// layer 0 and the embedding's after the last visit, 13: they are updated at their place, before 14.
TEST_CASE("An update runs once its gradient has left the GPU") {
  const Problem problem = tiny_problem(4, 2);
  CHECK(events_of(problem, {}, 1, vertical()) == "3@9+1 2@11+1 1@13+1 0@14+0 4@14+0 ");
}

// A step has 14 visits. Where updates wait for all norms, each waits until its parameters would be
// read for the next step: with host_ahead = 0 and gpu_ahead = 1 before the turn below the layer's.
TEST_CASE("An update that waits for norms runs when its parameters would be read") {
  Problem problem = tiny_problem(4, 2);
  problem.workload.clip = {ClipScope::global, 1};
  Plan plan;
  plan.parameters.host_ahead = 0;
  CHECK(events_of(problem, plan, 2, vertical()).substr(0, 35) ==
        "1@14+0 0@14+0 4@14+0 2@16+0 3@18+0 ");
}

// Half of every layer waits for the next step's forward: at its place in the order, or as early as
// its parameters would be read, which the layers up to the third are from the first visit on.
TEST_CASE("A delayed update runs at its place, or as early as its parameters would be read") {
  const Problem problem = tiny_problem(4, 2);
  Plan plan;
  const auto delayed = [&] {
    const std::string all = events_of(problem, plan, 2, vertical(0.5));
    const auto from = all.find("4@14+0 ") + 7;
    return all.substr(from, 28);
  };
  CHECK(delayed() == "0@14+0 1@14+0 2@14+0 3@14+0 ");
  plan.optimizer.early = false;
  CHECK(delayed() == "0@14+0 1@16+0 2@18+0 3@20+0 ");
}

// The wait comes after all visits, and every update after the wait.
TEST_CASE("What comes after a wait runs after it") {
  const Problem problem = tiny_problem(2, 1);
  const Order serial = [](Step& step) {
    for (const int layer : step.upward()) step.forward(layer, 0);
    for (const int layer : step.downward()) step.backward(layer, 0);
    step.wait();
    for (const int layer : step.downward()) step.update(layer);
    for (const int unit : step.outer()) step.update(unit);
  };
  CHECK(events_of(problem, {}, 1, serial) == "wait@3+0 1@3+0 0@3+0 2@3+0 ");
}

// Steps of 14 visits: F0 0-2, F1 2-4, F2 4-6, B3 6-8, B2 8-10, B1 10-12, B0 12-14. The shares of
// layer 3 that are of this step follow the visits of B1, those of the step before the visits of F1.
// The two lowest layers have no layer two below: at the step's end, and at the next one's begin.
TEST_CASE("Shares of an update follow the visits to the layer two below") {
  const Problem problem = tiny_problem(4, 2);
  Plan plan;
  plan.optimizer.group = UpdateGroup::shares;
  CHECK(updates_of(work_of(problem, plan, 2, vertical(0.5))) ==
        "3@11 3@12 2@13 2@14 1@14 1@14 0@14 0@14 4@14 "
        "0@14 0@14 1@14 1@14 2@15 2@16 3@17 3@18 "
        "3@25 3@26 2@27 2@28 1@28 1@28 0@28 0@28 4@28 "
        "0@28 0@28 1@28 1@28 2@28 2@28 3@28 3@28 ");
}

// Layers of 7 x 2048 elements, an embedding of 2 x 2048.
TEST_CASE("Groups of at most so many elements join whole units, or cut one into equal parts") {
  const auto groups = [](std::uint64_t cells) {
    Plan plan;
    plan.optimizer.group = cells == 0 ? UpdateGroup::calls : UpdateGroup::at_most;
    plan.optimizer.elements = cells * 2048;
    const OrderOfWork work = work_of(tiny_problem(5, 1), plan, 1, horizontal);
    std::string text;
    for (const Update& update : work.updates) {
      for (std::uint32_t r = 0; r < update.range_count; ++r) {
        const UpdateRange& range = work.ranges[update.first_range + r];
        text += fmt::format("{}:{}+{} ", range.unit, range.first / 2048, range.elements / 2048);
      }
      text += "| ";
    }
    return text;
  };
  CHECK(groups(0) == "4:0+7 | 3:0+7 | 2:0+7 | 1:0+7 | 0:0+7 | 5:0+2 | ");
  CHECK(groups(7) == groups(0));
  CHECK(groups(14) == "4:0+7 3:0+7 | 2:0+7 1:0+7 | 0:0+7 5:0+2 | ");
  CHECK(groups(1000) == "4:0+7 3:0+7 2:0+7 1:0+7 0:0+7 5:0+2 | ");
  CHECK(groups(4) ==
        "4:0+4 | 4:4+3 | 3:0+4 | 3:4+3 | 2:0+4 | 2:4+3 | 1:0+4 | 1:4+3 | 0:0+4 | 0:4+3 | 5:0+2 | ");
  CHECK(groups(1).substr(0, 24) == "4:0+1 | 4:1+1 | 4:2+1 | ");
}
