// What stays on the GPU between two uses, for orders small enough to count on fingers.
#include "policies/movement/retained.hpp"

#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "policies/model/scratch.hpp"
#include "tests/policies/movement/orders.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// After each visit that is followed by a gap: P parameters, i input, o output, s saved, a gradient
// of the activation, g sum of the gradient; "-" where nothing stays.
std::string stays(const Problem& problem, const Plan& plan, const Order& order) {
  const OrderOfWork work = work_of(problem, plan, 1, order);
  const Uses uses(problem, work);
  const Retained retained(problem, plan, work, uses);
  std::string text;
  for (VisitId v = 0; v < work.visits.size(); ++v) {
    std::string one;
    if (retained.parameters(v)) one += 'P';
    if (retained.input(v)) one += 'i';
    if (retained.output(v)) one += 'o';
    if (retained.saved(v)) one += 's';
    if (retained.activation_gradient(v)) one += 'a';
    if (retained.gradient(v)) one += 'g';
    text += fmt::format("{}{}", v == 0 ? "" : " ", one.empty() ? "-" : one);
  }
  return text;
}

Plan plan_with(RetentionByKind retention, std::uint64_t spare) {
  Plan plan;
  plan.retention = retention;
  plan.spare_gpu_bytes = spare;
  return plan;
}

std::uint64_t kept(const Problem& problem, const Plan& plan, const Order& order) {
  const OrderOfWork work = work_of(problem, plan, 1, order);
  const Uses uses(problem, work);
  return Retained(problem, plan, work, uses).kept_bytes();
}

constexpr std::uint64_t much = std::uint64_t{1} << 40;

RetentionByKind checkpoints_only(Retention retention) {
  RetentionByKind by_kind;
  by_kind.checkpoints = retention;
  return by_kind;
}

}  // namespace

// Visits: F0 F1 F2 L3 B2 B1 B0, one micro-batch. The next visit uses each output and each gradient
// of an activation.
TEST_CASE("What the next visit uses stays, and nothing else where retention is never") {
  CHECK(stays(tiny_problem(4, 1), {}, vertical()) == "o o o a a a -");
  CHECK(kept(tiny_problem(4, 1), plan_with({}, much), vertical()) == 0);
}

// The inputs of layers 0, 1, 2 are used again at visits 6, 5, 4: with room for one or two of them,
// those of the later layers stay.
TEST_CASE("What is used furthest in the future leaves first") {
  const Problem problem = tiny_problem(4, 1);
  const std::uint64_t one = checkpoint_bytes(problem);
  const RetentionByKind nearest = checkpoints_only(Retention::nearest());
  CHECK(stays(problem, plan_with(nearest, one - 1), vertical()) == "o o o a a a -");
  CHECK(stays(problem, plan_with(nearest, one), vertical()) == "o o io a a a -");
  CHECK(stays(problem, plan_with(nearest, 2 * one), vertical()) == "o io io a a a -");
  CHECK(stays(problem, plan_with(nearest, much), vertical()) == "io io io a a a -");
  CHECK(kept(problem, plan_with(nearest, 3 * one - 1), vertical()) == 2 * one);
  CHECK(kept(problem, plan_with(nearest, much), vertical()) == 3 * one);
}

TEST_CASE("Of a kind with slots(n) at most n tensors stay, however much memory is left over") {
  const Problem problem = tiny_problem(4, 1);
  const auto slots = [&](std::uint32_t n) {
    return stays(problem, plan_with(checkpoints_only(Retention::slots(n)), much), vertical());
  };
  CHECK(slots(1) == "o o io a a a -");
  CHECK(slots(2) == "o io io a a a -");
  CHECK(slots(3) == "io io io a a a -");
  CHECK(slots(4) == slots(3));
}

// Parameters of layers 0, 1, 2 are used again in backward, at visits 6, 5, 4.
TEST_CASE("One kind stays and another does not, and a kind that may not stay takes no memory") {
  const Problem problem = tiny_problem(4, 1);
  RetentionByKind retention;
  retention.parameters = Retention::nearest();
  CHECK(stays(problem, plan_with(retention, much), vertical()) == "Po Po Po a a a -");
  retention.checkpoints = Retention::slots(1);
  CHECK(stays(problem, plan_with(retention, much), vertical()) == "Po Po Pio a a a -");
  retention.parameters = Retention::slots(2);
  CHECK(stays(problem, plan_with(retention, much), vertical()) == "o Po Pio a a a -");
  retention.parameters = Retention::never();
  CHECK(stays(problem, plan_with(retention, checkpoint_bytes(problem)), vertical()) ==
        "o o io a a a -");
}

// Two micro-batches in rows: F0 F0 F1 F1 L2 L2 B1 B1 B0 B0. Each gradient of an activation and each
// output is used two visits later; the sums of layers 2, 1, 0 by the next visit.
TEST_CASE("Outputs and gradients of activations stay by the rules of their kinds") {
  const Problem problem = tiny_problem(3, 2);
  CHECK(stays(problem, {}, vertical()) == "- - - - - - - - - -");
  RetentionByKind retention;
  retention.activation_gradients = Retention::slots(1);
  // When the second gradient of a layer is made the first is used one visit later, and stays.
  CHECK(stays(problem, plan_with(retention, much), vertical()) == "- - - - a - a - - -");
  retention.activation_gradients = Retention::nearest();
  CHECK(stays(problem, plan_with(retention, much), vertical()) == "- - - - a a a a - -");
  // The first output of each layer has the slot until the layer above uses it, two visits later.
  CHECK(stays(problem, plan_with(checkpoints_only(Retention::slots(1)), much), vertical()) ==
        "o - o - - - - - - -");
}

// The count of what is held at once, for every kind, in orders with many gaps.
TEST_CASE("Never more than n tensors of a kind are held beyond the next visit") {
  const Problem problem = tiny_problem(5, 4);
  const auto most_held = [&](const Plan& plan, const Order& order) {
    const OrderOfWork work = work_of(problem, plan, 1, order);
    const Uses uses(problem, work);
    const Retained retained(problem, plan, work, uses);
    std::size_t most = 0;
    for (VisitId now = 0; now < work.visits.size(); ++now) {
      std::size_t held = 0;
      for (VisitId v = 0; v <= now; ++v) {
        const Visit& visit = work.visits[v];
        const auto holds = [&](bool stays, VisitId until) {
          held += stays && until > now && until > v + 1;
        };
        if (visit.kind != VisitKind::forward) continue;
        holds(retained.input(v), uses.backward(0, visit.layer, visit.micro_batch));
        holds(retained.output(v), uses.forward(0, visit.layer + 1, visit.micro_batch));
      }
      most = std::max(most, held);
    }
    return most;
  };
  for (const Order& order : {vertical(), Order(horizontal)}) {
    for (const std::uint32_t n : {1u, 2u, 3u}) {
      INFO(n << " slots");
      CHECK(most_held(plan_with(checkpoints_only(Retention::slots(n)), much), order) == n);
    }
  }
}
