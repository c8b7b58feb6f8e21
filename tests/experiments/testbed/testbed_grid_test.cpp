// The grid: what is built in, and what a regime file may say.
#include "experiments/testbed/testbed_grid.hpp"

#include <catch2/catch.hpp>
#include <set>

#include "base/errors.hpp"
#include "policies/common/policy.hpp"

namespace spillway {
namespace {

const std::string good = R"(name = "own"
description = "of a user"
throttle = "h2d=100MB/s"
model = "gpt-tiny"
sequence = 64
micro_batch = 2
batches = [2, 4]
gpu_memory = "64MB"
host_memory = "64MB"
policies = ["resident", "fuyou:group=block", "greedysnake"]
)";

std::string complaint(const std::string& text) {
  try {
    parse_regime(text, "own.toml");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string replaced(const std::string& from, const std::string& to) {
  std::string text = good;
  text.replace(text.find(from), from.size(), to);
  return text;
}

}  // namespace

TEST_CASE("The grid has at least 60 throttled configurations, of every policy that fits a regime") {
  const auto regimes = builtin_regimes();
  std::size_t throttled = 0;
  std::set<std::string> seen;
  for (const TestbedConfiguration& c : configurations(regimes, false)) {
    throttled += c.regime.throttled();
    CHECK(seen.insert(c.regime.name + std::to_string(c.batch) + c.policy).second);
  }
  CHECK(throttled >= 60);
  const Machine machine = load_machine("testbed");
  for (const TestbedRegime& regime : regimes) {
    const Problem problem =
        TestbedConfiguration{regime, "", regime.batches.front()}.problem(machine);
    for (const PolicyInfo& policy : builtin_policies()) {
      if (policy.for_several_ranks) continue;
      INFO(regime.name << " " << policy.name);
      const bool named = std::any_of(
          regime.policies.begin(), regime.policies.end(),
          [&](const std::string& p) { return p.substr(0, p.find(':')) == policy.name; });
      CHECK((named || !build_schedule(problem, policy.name, 3).fits()));
    }
  }
}

TEST_CASE("Every configuration of the grid fits, and the drives are used where a policy can") {
  Machine machine = load_machine("testbed");
  for (const TestbedConfiguration& c : configurations(builtin_regimes(), false)) {
    INFO(c.regime.name << " " << c.policy << " batch " << c.batch);
    const Schedule schedule = build_schedule(c.problem(machine), c.policy, 3);
    CHECK(schedule.fits());
    const std::string name = c.policy.substr(0, c.policy.find(':'));
    const bool offloads = name == "zero-infinity" || name == "fuyou" || name == "greedysnake";
    // Policy spillway takes the drives where nothing else holds the state.
    if (name != "spillway") CHECK((schedule.use(Tier::ssd).peak_bytes > 0) == offloads);
  }
}

TEST_CASE("A quick grid is every second policy at the smallest batch") {
  const auto all = configurations({parse_regime(good, "own.toml")}, false);
  REQUIRE(all.size() == 6);
  CHECK(all[4].policy == "fuyou");  // canonical: its default left out
  CHECK(all[4].batch == 4);
  const auto quick = configurations({parse_regime(good, "own.toml")}, true);
  REQUIRE(quick.size() == 2);
  CHECK(quick[1].policy == "greedysnake");
  CHECK(quick[1].batch == 2);
}

TEST_CASE("A regime file with a mistake is refused with its place") {
  using Catch::Contains;
  CHECK(complaint(good) == "no error");
  CHECK_THAT(complaint(replaced("[2, 4]", "[2, 3]")),
             Contains("own.toml:6") && Contains("a batch of 3 is not a multiple"));
  CHECK_THAT(complaint(replaced("[2, 4]", "\"2\"")),
             Contains("own.toml:7") && Contains("batches is not a list"));
  CHECK_THAT(complaint(replaced("[2, 4]", "[2.5]")), Contains("batches: a value of another type"));
  CHECK_THAT(complaint(replaced("h2d=100MB/s", "h2d=100")), Contains("unit is missing"));
  CHECK_THAT(complaint(replaced("sequence", "seqence")), Contains("own.toml:5"));
  CHECK_THAT(complaint(replaced("\"fuyou:", "\"fuyu:")), Contains("fuyu"));
  CHECK_THROWS_AS(find_regimes({"mixd"}), InputError);
  CHECK(find_regimes({"mixed"}).size() == 1);
}

}  // namespace spillway
