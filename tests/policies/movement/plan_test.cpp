// A plan as text, and back.
#include "policies/movement/plan.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"

using namespace spillway;

TEST_CASE("A plan is what its text says, and the text names only what is not usual") {
  CHECK(to_text(Plan{}).empty());
  Plan plan;
  plan.parameters.rest = Share{.host = 0.25, .ssd = 0.75};
  plan.parameters.backward_gpu_ahead = 0;
  plan.saved.saves = ByLayer<SavedMask>::of_each({0, 0, 0xff});
  plan.optimizer.group = UpdateGroup::at_most;
  plan.optimizer.elements = 5000;
  plan.retention.parameters = Retention::slots(2);
  plan.retention.saved = Retention::nearest();
  const std::string text = to_text(plan);
  CHECK(text.ends_with("retention.parameters=slots(2) retention.saved=nearest"));
  CHECK(text.find("parameters.rest=host:0.25+ssd:0.75") != std::string::npos);
  CHECK(text.find("saved.saves=00x2/ff") != std::string::npos);
  const Plan back = parse_plan(text);
  CHECK(to_text(back) == text);
  CHECK(back.parameters.rest == plan.parameters.rest);
  CHECK(back.saved.saves == plan.saved.saves);
  CHECK(back.retention == plan.retention);
  CHECK(hash_of(back) == hash_of(plan));
  CHECK(hash_of(back) != hash_of(Plan{}));
}

TEST_CASE("A plan's field that there is not, or a value outside of its domain, is refused") {
  for (const char* text :
       {"parameters.speed=1", "parameters.rest=host:0.5", "retention=nearest",
        "retention.saved=often", "retention.saved=slots(0)", "retention.saved=slots(2",
        "retention.saved=slots(-1)", "retention.saved=slots(2x)",
        "retention.saved=", "parameters.gpu_ahead=-1", "saved.saves=zz", "order.delayed=1.5"})
    CHECK_THROWS_AS(parse_plan(text), InputError);
}

TEST_CASE("A plan's field takes every sample of its domain, and gives it back") {
  for (const PlanField& field : plan_fields()) {
    for (const std::string& value : field.domain.samples(5)) {
      INFO(field.name << "=" << value << ", " << field.domain.values);
      const std::string text = to_text(parse_plan(field.name + "=" + value));
      CHECK((text.empty() || text == field.name + "=" + value));
    }
  }
}
