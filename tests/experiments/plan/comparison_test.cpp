#include "experiments/plan/comparison.hpp"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/tune/best_settings.hpp"

namespace spillway {
namespace {

// 2.7 billion parameters in 24 GB: most policies fit, everything on the GPU does not.
Problem gpt3_2_7b() {
  Problem problem;
  problem.model = load_model("gpt3-2.7b");
  problem.machine = load_machine("rtx4090-12ssd", {"ssd.count=3", "host.memory=128GB"});
  problem.workload = {4, 4, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

CompareRequest request(std::vector<std::string> policies) {
  CompareRequest one;
  one.policies = std::move(policies);
  one.run = {{DurabilityMode::off, 0}, {}};
  one.steps = 4;
  return one;
}

double seconds(const Candidate& one) { return one.evaluation.result->step_seconds; }
const std::string& policy(const Candidate& one) { return one.evaluation.schedule.policy(); }

TEST_CASE("what a policy recomputes is told by its plan") {
  const Problem problem = gpt3_2_7b();
  const auto of = [&](const std::string& text) { return recomputation_of(problem, text); };
  CHECK(of("resident") == Recomputation::off);
  CHECK(of("resident:recompute=needed") == Recomputation::needed);
  CHECK(of("greedysnake") == Recomputation::full);  // the last layer, which saves all, left out
  CHECK(of("greedysnake:recompute=needed") == Recomputation::needed);
  CHECK(of("fuyou") == Recomputation::full);
  CHECK(of("fuyou:swap=0.5") == Recomputation::some);
  CHECK(of("spillway:saved.saves=02,saved.recomputes_output=off") == Recomputation::some);
  CHECK(of("spillway:saved.saves=00,saved.recomputes_output=off") == Recomputation::needed);
  CHECK(with_recomputation("fuyou", Recomputation::needed) == "fuyou:recompute=needed");
  CHECK(with_recomputation("greedysnake", Recomputation::off) == "greedysnake");  // it has no such
  CHECK(with_recomputation("zero-offload", Recomputation::full) == "zero-offload");
  CHECK_THROWS_AS(with_recomputation("fuyou:recompute=needed", Recomputation::full), InputError);
  CHECK(parse_recomputation("needed") == Recomputation::needed);
  CHECK_FALSE(parse_recomputation("some"));
}

TEST_CASE("the fastest is a row among several that are compared like with like") {
  const Problem problem = gpt3_2_7b();
  const Comparison two = compare_policies(problem, request({"zero-infinity", "greedysnake"}));
  REQUIRE(two.fastest);
  CHECK_FALSE(two.auto_choice);  // which has other candidates
  for (const Candidate& one : two.candidates.all)
    CHECK(seconds(one) >= seconds(two.candidates.all[*two.fastest]));
  // A row alone is no winner, nor one beside others that do not fit.
  CHECK_FALSE(compare_policies(problem, request({"greedysnake"})).fastest);
  const Comparison fits_alone = compare_policies(problem, request({"resident", "greedysnake"}));
  REQUIRE(fits_alone.candidates.all.size() == 2);
  CHECK(fits_alone.candidates.chosen == 1u);
  CHECK_FALSE(fits_alone.fastest);
  CHECK(to_json(fits_alone)["fastest"].is_null());
  CHECK(to_json(two)["fastest"] == policy(two.candidates.all[*two.fastest]));
}

TEST_CASE("with the same recomputation, rows that cannot follow are told apart") {
  CompareRequest asked = request({"zero-infinity", "greedysnake", "fuyou:swap=0.5"});
  asked.recomputation = Recomputation::needed;
  const Comparison found = compare_policies(gpt3_2_7b(), asked);
  REQUIRE(found.rows.size() == 3);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(found.rows[i].recomputation == Recomputation::needed);
    CHECK(found.rows[i].follows);
    CHECK(found.rows[i].competes);
    CHECK(found.rows[i].settings == SettingsBy::published);
    CHECK_THAT(policy(found.candidates.all[i]), Catch::Contains("recompute=needed"));
  }
  CHECK(found.rows[2].recomputation == Recomputation::some);
  CHECK_FALSE(found.rows[2].follows);
  CHECK_FALSE(found.rows[2].competes);
  REQUIRE(found.fastest);
  CHECK(*found.fastest < 2);
  const nlohmann::ordered_json json = to_json(found);
  CHECK(json["comparison"]["recomputation"] == "needed");
  CHECK(json["policies"][2]["compared"]["follows"] == false);
}

TEST_CASE("at its best no policy is slower than as named, and its settings are what is shown") {
  const Problem problem = gpt3_2_7b();
  CompareRequest asked = request({"zero-infinity", "greedysnake:alpha=0"});
  const Comparison named = compare_policies(problem, asked);
  asked.at_best = true;
  double furthest = 0;
  asked.progress = [&](const std::string&, double done) {
    CHECK(done >= furthest);
    CHECK(done <= 1);
    furthest = done;
  };
  const Comparison best = compare_policies(problem, asked);
  CHECK(furthest > 0.5);
  REQUIRE(best.candidates.all.size() == 2);
  CHECK(best.settings_tried > 20);
  for (std::size_t i = 0; i < 2; ++i) {
    const Candidate& one = best.candidates.all[i];
    INFO(policy(one));
    CHECK(seconds(one) <= seconds(named.candidates.all[i]));
    CHECK(best.rows[i].settings == SettingsBy::search);
    CHECK(best.rows[i].competes);
    Problem same = problem;
    same.workload.micro_batch = one.evaluation.schedule.problem().workload.micro_batch;
    CHECK(evaluate(same, policy(one), asked.steps).result->step_seconds == seconds(one));
  }
  // What the text gives is kept; options of DeepSpeed's gain much.
  CHECK_THAT(policy(best.candidates.all[1]),
             Catch::Contains("alpha=0,") || Catch::EndsWith("alpha=0"));
  CHECK(seconds(best.candidates.all[0]) < 0.9 * seconds(named.candidates.all[0]));
  CHECK(to_json(best)["comparison"]["settings"] == "best");
}

TEST_CASE("the search for settings keeps what is held, and the policy as given among its answers") {
  Pricer pricer(gpt3_2_7b(), 1);
  SettingsSearch search;
  search.effort = 40;
  search.held = {"recompute", "retention"};
  const std::vector<PricedTrial> found = best_settings(pricer, "zero-infinity", search);
  REQUIRE(found.size() > 1);
  CHECK(pricer.explored() <= 40);
  bool has_given = false;
  for (std::size_t k = 0; k < found.size(); ++k) {
    CHECK(found[k].second.fits);
    CHECK_THAT(found[k].first.policy,
               !Catch::Contains("recompute=") && !Catch::Contains("retention="));
    has_given = has_given || found[k].first.policy == "zero-infinity";
    if (k > 0 && k + 1 < found.size())
      CHECK(found[k].second.step_seconds >= found[k - 1].second.step_seconds);
  }
  CHECK(has_given);
}

TEST_CASE("without names the candidates of auto are compared, and those as published compete") {
  Problem problem = gpt3_2_7b();
  CompareRequest asked = request({});
  const Comparison found = compare_policies(problem, asked);
  REQUIRE(found.auto_choice);
  CHECK(found.auto_choice == found.candidates.chosen);
  REQUIRE(found.fastest);
  int others = 0;
  for (std::size_t i = 0; i < found.rows.size(); ++i) {
    const Candidate& one = found.candidates.all[i];
    INFO(one.asked);
    const bool is_published = one.asked.find(':') == std::string::npos && !is_tuned(one.asked);
    CHECK((found.rows[i].settings == SettingsBy::published) == is_published);
    CHECK(found.rows[i].competes == (is_published && one.evaluation.result.has_value()));
    others += is_published ? 0 : 1;
  }
  CHECK(others == 2);  // fuyou:swap=auto, and spillway, which is searched for
}

}  // namespace
}  // namespace spillway
