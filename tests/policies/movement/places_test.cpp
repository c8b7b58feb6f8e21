// Homes of model states, counted in cells of the element grid: a layer of the tiny problem has 7.
#include "policies/movement/places.hpp"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "policies/model/tensors.hpp"
#include "policies/movement/timetable.hpp"
#include "tests/policies/movement/orders.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::vector<Pieces> pieces_of(const Problem& problem, const Plan& plan, const Order& order) {
  const OrderOfWork work = work_of(problem, plan, 2, order);
  const Timetable times(problem, plan, work);
  Program program(problem);
  const Shards shards(problem, plan);
  const DriveShares drives(problem, plan, shards);
  Activations activations(program, plan, work, times, drives);
  return place_model_states(program, plan, shards, work, drives, activations);
}

// "first-end parameters/state", in cells; "d" where delayed.
std::string text(const Pieces& pieces) {
  std::string all;
  for (const Piece& piece : pieces) {
    all += fmt::format("{}-{} {}/{}{} ", piece.first / 2048, piece.end() / 2048,
                       to_string(piece.parameters_at), to_string(piece.state_at),
                       piece.delayed ? " d" : "");
  }
  return all;
}

}  // namespace

// Half of 7 cells is 4 (3.5 away from zero), 0.3 of them 2; the SSD's share comes last.
TEST_CASE("A unit is cut where its parameters or its state change memory") {
  Plan plan;
  plan.parameters.rest = Share{.host = 0.5, .ssd = 0.5};
  plan.optimizer_state.rest = Share{.host = 0.7, .ssd = 0.3};
  const auto units = pieces_of(tiny_problem(2, 2), plan, vertical());
  CHECK(text(units[0]) == "0-3 host/host 3-5 ssd/host 5-7 ssd/ssd ");
  // The embedding has 2 cells, whose parameters are on the GPU: 0.3 of them is 1.
  CHECK(text(units[2]) == "0-1 gpu/host 1-2 gpu/ssd ");
}

// A quarter of 7 cells is 2: each part is divided alike, 0.3 of 2 cells is 1 and of 5 cells is 2.
TEST_CASE("A unit is cut where its updates are, and each part divided alike") {
  Plan plan;
  plan.optimizer_state.rest = Share{.host = 0.7, .ssd = 0.3};
  const auto units = pieces_of(tiny_problem(2, 2), plan, vertical(0.25));
  CHECK(text(units[1]) == "0-1 host/host d 1-2 host/ssd d 2-5 host/host 5-7 host/ssd ");
}

// 2 cells of every layer are delayed; their gradients have 4 bytes an element. The inputs of the
// layer above, 2 of 4096 bytes, hold 1 cell of them, and its 2 delayed cells of 2-byte parameters
// the other. The last layer's have memory of their own.
TEST_CASE("A delayed gradient waits where the layer above has dead memory") {
  Problem problem = tiny_problem(2, 2);
  problem.workload.gradient = GradientWidth::bits32;
  const auto units = pieces_of(problem, {}, vertical(0.25));
  REQUIRE(text(units[0]) == "0-1 host/host d 1-2 host/host d 2-7 host/host ");
  CHECK(units[0][0].waiting.valid());
  CHECK(units[0][0].waiting.buffer.id != units[1][0].parameters.buffer.id);
  CHECK(units[0][1].waiting.buffer.id == units[1][0].parameters.buffer.id);
  CHECK(units[0][1].waiting.offset == units[1][0].parameters.offset);
  CHECK(!units[0][2].waiting.valid());
  for (const Piece& piece : units[1]) {
    CHECK(piece.waiting.valid() == piece.delayed);
    CHECK(piece.waiting.buffer.id != units[0][0].parameters.buffer.id);
  }
}

// One micro-batch at a time: the layer above is used again while sums of the layer below wait.
TEST_CASE("Nothing is lent where micro-batches do not run in rows") {
  Problem problem = tiny_problem(2, 2);
  problem.workload.gradient = GradientWidth::bits32;
  const auto units = pieces_of(problem, {}, [](Step& step) {
    for (const int layer : step.upward()) step.update(layer);
    for (const int m : step.ascending()) {
      for (const int layer : step.upward()) step.forward(layer, m);
      for (const int layer : step.downward()) step.backward(layer, m);
    }
    for (const int unit : step.outer()) step.update(unit);
  });
  REQUIRE(units[0].size() == 1);
  CHECK(units[0][0].waiting.valid());
  CHECK(units[0][0].waiting.buffer.id != units[1][0].parameters.buffer.id);
}

// Of any first tensors a half is in host memory, as far as whole ones make it up.
TEST_CASE("Plans that fetch by tensor place whole tensors") {
  Plan plan;
  plan.parameters.by_tensor = true;
  plan.parameters.rest = Share{.host = 0.5, .ssd = 0.5};
  plan.optimizer.group = UpdateGroup::tensors;
  plan.optimizer.elements = 1;
  const Problem problem = tiny_problem(3, 1);
  std::uint64_t all = 0, in_host = 0, largest = 0;
  for (const Pieces& pieces : pieces_of(problem, plan, vertical())) {
    for (const Piece& piece : pieces) {
      if (piece.parameters_at == Tier::gpu) continue;
      all += piece.elements;
      largest = std::max(largest, piece.elements);
      if (piece.parameters_at == Tier::host) in_host += piece.elements;
      CHECK(2 * in_host <= all);
      CHECK(2 * in_host + 2 * largest > all);
    }
  }
  CHECK(in_host > 0);
  const auto layer = pieces_of(problem, plan, vertical())[0];
  CHECK(layer.size() == unit_tensors(problem.model, 0).size());
}
