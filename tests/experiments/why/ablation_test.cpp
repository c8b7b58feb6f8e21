// From one plan to another, a setting at a time: with made-up times, where the right answer is
// known, and with simulated ones.
#include "experiments/why/ablation.hpp"

#include <catch2/catch.hpp>
#include <map>

#include "experiments/plan/evaluate.hpp"
#include "policies/common/policy.hpp"
#include "tests/policies/input_error.hpp"

namespace spillway {
namespace {

Problem tiny(std::int64_t micro_batch = 4) {
  Problem problem;
  problem.model = load_model("gpt-tiny");
  problem.machine = load_machine("testbed");
  problem.workload.batch = 4;
  problem.workload.micro_batch = micro_batch;
  problem.workload.sequence = 64;
  problem.workload.precision = Precision::fp32;
  return problem;
}

PlanEnd end(const std::string& policy, std::int64_t micro_batch = 4) {
  const Problem problem = tiny(micro_batch);
  return {canonical_policy(policy), build_schedule(problem, policy, 2).policy(), problem};
}

// Times of policies by the letters of what they have changed: a: alpha, s: snake, r: recompute.
TimePlan made_up(const std::map<std::string, double>& seconds) {
  return [seconds](const PlanState& state) {
    std::string letters;
    if (state.policy.find("alpha") != state.policy.npos) letters += 'a';
    if (state.policy.find("snake=off") != state.policy.npos) letters += 's';
    if (state.policy.find("recompute") != state.policy.npos) letters += 'r';
    PlanTime time;
    time.tasks = 1;
    const auto known = seconds.find(letters);
    if (known == seconds.end())
      time.why_not = "there is no plan " + letters;
    else
      time.seconds = known->second;
    return time;
  };
}

const PlanSettings& three_settings() {
  static const PlanSettings settings(end("greedysnake"),
                                     end("greedysnake:alpha=0.5,snake=off,recompute=needed"));
  return settings;
}

std::string names(const AblationStep& step) {
  std::string text;
  for (const std::size_t k : step.settings)
    text += (text.empty() ? "" : "+") + three_settings().all()[k].name;
  return text;
}

std::string names(const Ablation& ablation) {
  std::string text;
  for (const AblationStep& step : ablation.steps) text += (text.empty() ? "" : " ") + names(step);
  return text;
}

TEST_CASE("two plans of one policy differ in its options, as they were asked for") {
  const std::vector<PlanSetting>& all = three_settings().all();
  REQUIRE(all.size() == 3);
  CHECK(three_settings().policy() == "greedysnake");
  CHECK(all[0].name == "alpha");
  CHECK(all[0].from == "0.25");
  CHECK(all[0].to == "0.5");
  CHECK(all[1].name == "snake");
  CHECK(all[2].name == "recompute");
  CHECK(three_settings().with({false, true, false}) == PlanState{"greedysnake:snake=off", 4});
}

TEST_CASE("what gains most comes first, and each step begins where the one before it ended") {
  // a gains 3 alone, s 2, r nothing; with a, s gains nothing more, and r gains 1.
  const Ablation ablation = ablate(
      three_settings(),
      made_up(
          {{"", 10}, {"a", 7}, {"s", 8}, {"r", 10}, {"as", 7}, {"ar", 6}, {"sr", 8}, {"asr", 5.5}}),
      {});
  CHECK(names(ablation) == "alpha recompute snake");
  CHECK(ablation.steps[0].gain() == 3);
  CHECK(ablation.steps[1].before_seconds == 7);
  CHECK(ablation.steps[1].gain() == 1);
  CHECK(ablation.steps[2].gain() == 0.5);
  CHECK(ablation.ranked);
  CHECK(ablation.plans == 8);
  CHECK(ablation.effects[1].alone.seconds == 2);
  CHECK(ablation.effects[0].last.seconds == 2.5);  // 8 without a, 5.5 with it
}

TEST_CASE("a plan that does not fit is no place to stop at") {
  const Ablation ablation = ablate(three_settings(), made_up({{"", 10}, {"s", 9}, {"asr", 4}}), {});
  CHECK(names(ablation) == "snake alpha+recompute");
  CHECK(ablation.steps[1].gain() == 5);
  CHECK(ablation.steps[1].why_together == "there is no plan as");
  CHECK_FALSE(ablation.effects[0].alone.seconds);
  CHECK(ablation.effects[0].alone.why_not == "there is no plan a");
  CHECK_FALSE(ablation.effects[0].last.seconds);
  CHECK(ablation.effects[0].last.why_not == "there is no plan sr");
  CHECK(ablation.effects[1].alone.why_not.empty());
}

TEST_CASE(
    "a large gain that needs another setting comes before small ones, with no more than it needs") {
  // a needs r; s gains next to nothing.
  const Ablation ablation = ablate(
      three_settings(),
      made_up({{"", 10}, {"s", 9.99}, {"r", 10}, {"ar", 5}, {"sr", 9.99}, {"asr", 4.99}}), {});
  CHECK(names(ablation) == "alpha+recompute snake");
  CHECK(ablation.steps[0].gain() == 5);
  CHECK(ablation.steps[0].why_together == "there is no plan a");
  CHECK(ablation.ranked);
}

TEST_CASE("a setting that gains most with what it needs comes before what gains less by itself") {
  // a needs r; s gains less.
  const TimePlan times = made_up({{"", 10}, {"s", 8}, {"r", 10}, {"ar", 5}, {"sr", 8}, {"asr", 3}});
  const Ablation ablation = ablate(three_settings(), times, {});
  CHECK(names(ablation) == "alpha+recompute snake");
  CHECK(ablation.steps[0].gain() == 5);
  CHECK(ablation.steps[1].gain() == 2);
  // One that gains more by itself comes before it.
  const Ablation other =
      ablate(three_settings(),
             made_up({{"", 10}, {"s", 4}, {"r", 10}, {"ar", 9}, {"sr", 4}, {"asr", 3}}), {});
  CHECK(names(other) == "snake recompute alpha");
}

TEST_CASE("a setting is changed with no more than it needs by then") {
  // a needs r; s, with which it runs, too, loses.
  const Ablation ablation = ablate(
      three_settings(),
      made_up({{"", 10}, {"s", 10.5}, {"r", 9.8}, {"sr", 10.2}, {"ar", 4}, {"asr", 4.2}}), {});
  CHECK(names(ablation) == "alpha+recompute snake");
  CHECK(ablation.steps[0].gain() == 6);
  CHECK(ablation.steps[1].gain() == Approx(-0.2));
}

TEST_CASE("settings that are asked for come first, in their order") {
  AblationOptions options;
  options.first = {"recompute", "snake"};
  const TimePlan times = made_up(
      {{"", 10}, {"a", 7}, {"s", 8}, {"r", 11}, {"as", 7}, {"ar", 6}, {"sr", 8}, {"asr", 5}});
  const Ablation ablation = ablate(three_settings(), times, options);
  CHECK(names(ablation) == "recompute snake alpha");
  CHECK(ablation.given == 2);
  CHECK(ablation.steps[0].gain() == -1);
  options.first = {"prefetch"};
  check_error([&] { ablate(three_settings(), times, options); },
              "the two plans do not differ in a setting prefetch", "alpha, snake, recompute");
  options.first = {"snake", "snake"};
  check_error([&] { ablate(three_settings(), times, options); }, "the setting snake is named twice",
              "once");
}

TEST_CASE("without time to rank what is left, the order is that of gains alone, and said") {
  AblationOptions options;
  options.most_tasks = 0;
  const Ablation ablation = ablate(
      three_settings(),
      made_up(
          {{"", 10}, {"a", 7}, {"s", 9}, {"r", 8}, {"as", 2}, {"ar", 6}, {"sr", 8}, {"asr", 1}}),
      options);
  CHECK(names(ablation) == "alpha recompute snake");
  CHECK_FALSE(ablation.ranked);
}

TEST_CASE("an end that cannot be built is said, and nothing else") {
  const Ablation ablation = ablate(three_settings(), made_up({{"", 10}}), {});
  CHECK(ablation.why_not == "there is no plan asr");
  CHECK(ablation.steps.empty());
}

TEST_CASE(
    "plans of two policies differ in fields of a plan and the micro-batch, and both ends are "
    "what was asked for") {
  const PlanEnd a = end("zero-infinity", 4), b = end("greedysnake", 2);
  const PlanSettings settings(a, b);
  CHECK(settings.policy() == "spillway");
  REQUIRE(settings.all().size() > 10);
  CHECK(settings.all()[0].name == "micro_batch");
  CHECK(settings.all()[0].from == "4");
  CHECK(settings.all()[0].to == "2");
  CHECK(settings.find({"order.row"}).size() == 1);
  const auto seconds = [](const PlanState& state) {
    return evaluate(tiny(state.micro_batch), state.policy).result->step_seconds;
  };
  const std::size_t count = settings.all().size();
  const Evaluation of_a = evaluate(a.problem, a.policy), of_b = evaluate(b.problem, b.policy);
  CHECK(seconds(settings.with(PlanSettings::Changed(count, false))) == of_a.result->step_seconds);
  CHECK(seconds(settings.with(PlanSettings::Changed(count, true))) == of_b.result->step_seconds);
}

}  // namespace
}  // namespace spillway
