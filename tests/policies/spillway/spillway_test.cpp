// Any plan as settings of one policy, and the other policies as special cases of it.
#include "policies/spillway/spillway.hpp"

#include <catch2/catch.hpp>

#include "policies/cost/costs.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE("Every built-in policy is a special case of policy spillway") {
  int cases = 0;
  for (const int layers : {1, 2, 5}) {
    for (const int micro_batches : {1, 2, 5}) {
      const Problem problem = with_rates(tiny_problem(layers, micro_batches));
      for (const std::string& policy : policy_settings()) {
        // Their updates come in an order that no plan says.
        if (is_for_several_ranks(policy)) continue;
        const Schedule schedule = build_schedule(problem, policy, 3);
        const std::string settled = schedule.policy();
        const std::size_t retention = settled.find("retention=");
        Plan plan = make_policy(settled)->plan(problem, Costs(problem));
        if (retention != std::string::npos)
          plan.retention = *parse_retention_by_kind(settled.substr(retention + 10));
        INFO(settled << ", " << layers << " layers, " << micro_batches
                     << " micro-batches: " << spillway_policy(plan));
        const Schedule same = build_schedule(problem, spillway_policy(plan), 3);
        CHECK(same.fingerprint() == schedule.fingerprint());
        ++cases;
      }
    }
  }
  CHECK(cases > 500);
}

TEST_CASE("Its text names what is not as by itself, and can be read again") {
  const Problem problem = tiny_problem(5, 4);
  Plan plan;
  plan.order.row = 2;
  plan.order.delayed = ByLayer<double>({{0.5, 2}, {1, 0}});
  plan.parameters.rest =
      ByLayer<Share>({{Share{.gpu = 1}, 1}, {Share{.host = 0.5, .ssd = 0.5}, 0}});
  plan.optimizer_state.rest = Share{.ssd = 1};
  plan.retention = *parse_retention_by_kind("parameters:nearest");
  const std::string text = spillway_policy(plan);
  CHECK(text.find("order.row=2") != std::string::npos);
  CHECK(text.find("order.delayed=0.5x2/1x*") != std::string::npos);
  CHECK(text.find("parameters.rest=gpu:1/host:0.5+ssd:0.5x*") != std::string::npos);
  CHECK(text.find("retention=parameters:nearest") != std::string::npos);
  CHECK(text.find("order.updates=descending") != std::string::npos);
  CHECK(text.find("gradients.") == std::string::npos);
  Plan back = make_policy(text)->plan(problem, Costs(problem));
  back.retention = plan.retention;
  CHECK(to_text(back) == to_text(plan));
}

TEST_CASE("What it leaves open is as little on the SSD as fits") {
  Problem problem = with_rates(tiny_problem(4, 4));
  const Schedule roomy = build_schedule(problem, "spillway", 3);
  CHECK(roomy.policy() ==
        "spillway:parameters.rest=host:1,optimizer_state.rest=host:1,checkpoints.rest=host:1");
  problem.machine.host.memory = roomy.use(Tier::host).peak_bytes * 6 / 10;
  const Schedule tight = build_schedule(problem, "spillway", 3);
  CHECK(tight.fits());
  CHECK(tight.policy().find("optimizer_state.rest=host:0.") != std::string::npos);
  CHECK(tight.policy().find("parameters.rest=host:1,") != std::string::npos);
  CHECK(tight.use(Tier::ssd).peak_bytes > 0);
}

TEST_CASE("Where all on the SSD is not enough, what is not given takes less host memory") {
  Problem problem = with_rates(tiny_problem(4, 4));
  const std::string on_ssd =
      "parameters.rest=ssd:1,optimizer_state.rest=ssd:1,checkpoints.rest=ssd:1";
  const Schedule all_on_ssd = build_schedule(problem, "spillway:" + on_ssd, 3);
  problem.machine.host.memory = all_on_ssd.use(Tier::host).peak_bytes * 9 / 10;
  const Schedule frugal = build_schedule(problem, "spillway", 3);
  CHECK(frugal.fits());
  CHECK(frugal.policy().find("order.delayed=0,") != std::string::npos);
  problem.machine.host.memory = frugal.use(Tier::host).peak_bytes * 9 / 10;
  const Schedule more = build_schedule(problem, "spillway", 3);
  CHECK(more.use(Tier::host).peak_bytes <= frugal.use(Tier::host).peak_bytes);
  CHECK(more.policy().find("optimizer.group=at_most") != std::string::npos);
  // What is given stays, and a plan whose places are given is that plan.
  CHECK(
      build_schedule(problem, "spillway:order.delayed=0.5", 3).policy().find("order.delayed=0.5") !=
      std::string::npos);
  CHECK(build_schedule(problem, "spillway:" + on_ssd, 3).policy() == "spillway:" + on_ssd);
  CHECK_FALSE(
      build_schedule(problem, "spillway:optimizer.elements=0", 3).policy().find("at_most") !=
      std::string::npos);
}

TEST_CASE("What is no plan is refused with the field that is wrong") {
  const Problem problem = tiny_problem(3, 2);
  for (const auto& [policy, field] :
       {std::pair("spillway:parameters.rest=gpu:0.5+host:0.5", "gpu:1"),
        std::pair("spillway:saved.saves=ffx7", "saved.saves"),
        std::pair("spillway:gradients.on_ssd=on", "gradients.on_ssd"),
        std::pair("spillway:order.delayed=1.5", "order.delayed"),
        std::pair("spillway:order.row=1,saved.saves=10,saved.slots=1", "saved.slots"),
        std::pair("spillway:order.row=1,saved.slots=3,checkpoints.gpu_ahead=3", "saved.slots"),
        std::pair("spillway:parameters.rest=gpu:1/host:1x*,optimizer_state.rest=gpu:1", "gpu"),
        std::pair("spillway:order.rows=2", "order.row")}) {
    INFO(policy);
    const InputError error = input_error([&] { build_schedule(problem, policy, 2); });
    CHECK((std::string(error.what()) + error.hint()).find(field) != std::string::npos);
  }
}
