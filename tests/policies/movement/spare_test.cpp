// Host memory that is left over: what moves there from the SSD, in which order, and how much.
#include "policies/movement/spare.hpp"

#include <catch2/catch.hpp>

#include "policies/model/saved.hpp"
#include "policies/model/scratch.hpp"
#include "tests/policies/movement/orders.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Plan all_on_ssd() {
  Plan plan;
  plan.parameters.rest = plan.optimizer_state.rest = plan.checkpoints.rest = Share{.ssd = 1};
  plan.checkpoints.margin = 0;
  plan.retention = *parse_retention_by_kind("nearest");
  return plan;
}

PlanWithSpare with_host(const Problem& problem, const Plan& plan, std::uint64_t bytes,
                        const Order& order = vertical()) {
  return with_spare(problem, plan, work_of(problem, plan, 1, order), {0, bytes, 0});
}

std::uint64_t layer_bytes(const Problem& problem, std::uint64_t of_element) {
  return static_cast<std::uint64_t>(unit_elements(problem.model, 0)) * of_element;
}

}  // namespace

TEST_CASE("Host memory goes to parameters first, then optimizer state, then checkpoints") {
  const Problem problem = tiny_problem(4, 2);
  const std::uint64_t parameters = 4 * layer_bytes(problem, problem.parameter_bytes());
  const std::uint64_t embedding = static_cast<std::uint64_t>(unit_elements(problem.model, 4));
  const std::uint64_t state =
      4 * layer_bytes(problem, problem.state_bytes()) + embedding * problem.state_bytes();
  // Of layers 0 .. 2: the last layer's forward and backward are one visit.
  const std::uint64_t inputs = 3 * 2 * checkpoint_bytes(problem);

  const Plan half = with_host(problem, all_on_ssd(), parameters / 2).plan;
  CHECK(half.parameters.rest.at(0, 4).host == Approx(0.5));
  CHECK(half.optimizer_state.rest.at(0, 4) == Share{.ssd = 1});
  const Plan more = with_host(problem, all_on_ssd(), parameters + state / 4).plan;
  CHECK(more.parameters.rest.at(0, 4).ssd == Approx(0).margin(1e-12));
  CHECK(more.optimizer_state.rest.at(0, 4).host == Approx(0.25));
  CHECK(more.checkpoints.rest.at(0, 4) == Share{.ssd = 1});
  const PlanWithSpare most = with_host(problem, all_on_ssd(), parameters + state + inputs / 2);
  CHECK(most.plan.checkpoints.rest.at(0, 4).host == Approx(0.5));
  CHECK(most.kept_in_host == parameters + state + inputs / 2);
  CHECK(with_host(problem, all_on_ssd(), 1'000'000'000).kept_in_host ==
        parameters + state + inputs);
}

// One by one, a micro-batch's activations are dead before the next one's are made.
TEST_CASE("Checkpoints take host memory for as many micro-batches as are there at once") {
  const Problem problem = tiny_problem(4, 2);
  Plan plan = all_on_ssd();
  plan.retention = *parse_retention_by_kind("checkpoints:nearest");
  CHECK(with_host(problem, plan, 1'000'000'000).kept_in_host == 3 * 2 * checkpoint_bytes(problem));
  CHECK(with_host(problem, plan, 1'000'000'000, horizontal).kept_in_host ==
        3 * checkpoint_bytes(problem));
  // Those at the ends of a row are not on the SSD, whatever the plan's share.
  plan.checkpoints.margin = 1;
  CHECK(with_host(problem, plan, 1'000'000'000).kept_in_host == 0);
}

TEST_CASE(
    "Only kinds that may stay move to host memory, and no more of them than there are slots") {
  const Problem problem = tiny_problem(4, 2);
  Plan plan = all_on_ssd();
  plan.retention = *parse_retention_by_kind("parameters:slots(1)+optimizer_state:slots(2)");
  const PlanWithSpare kept = with_host(problem, plan, 1'000'000'000);
  CHECK(kept.plan.parameters.rest.at(0, 4).host == Approx(0.25));
  CHECK(kept.kept_in_host == layer_bytes(problem, problem.parameter_bytes()) +
                                 2 * layer_bytes(problem, problem.state_bytes()));
  CHECK(kept.plan.checkpoints.rest.at(0, 4) == Share{.ssd = 1});
  // What is saved rests beside the checkpoints: neither moves without the other.
  plan.saved.saves = SavedMask{gpt_saved::all};
  plan.retention = *parse_retention_by_kind("checkpoints:nearest");
  CHECK(with_host(problem, plan, 1'000'000'000).kept_in_host == 0);
}

TEST_CASE("What rests in host memory anyway is not kept once more") {
  const Problem problem = tiny_problem(4, 2);
  const std::uint64_t parameters = 4 * layer_bytes(problem, problem.parameter_bytes());
  Plan plan = all_on_ssd();
  plan.retention = *parse_retention_by_kind("parameters:nearest");
  plan.parameters.first_in_host = 4 * layer_bytes(problem, 1);
  CHECK(with_host(problem, plan, 1'000'000'000).kept_in_host == 0);
  plan.parameters.first_in_host /= 4;
  const PlanWithSpare kept = with_host(problem, plan, 1'000'000'000);
  CHECK(kept.kept_in_host == parameters / 4 * 3);
  CHECK(kept.plan.parameters.first_in_host == 4 * layer_bytes(problem, 1));
}
