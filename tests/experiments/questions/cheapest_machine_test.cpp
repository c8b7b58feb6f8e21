// Price lists, and the cheapest machine of one held against trying all.
#include "experiments/questions/cheapest_machine.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"

namespace spillway {
namespace {

const char* const small_list = R"(
currency = "EUR"
machine = "rtx4090-12ssd"
price = 1000

[[gpu]]
name = "slow"
price = 500
set = { "gpu.flops" = "40TFLOPS" }

[[gpu]]
name = "fast"
price = 2000

[[memory]]
name = "little"
price = 100
size = "21GiB"

[[memory]]
name = "much"
price = 700
size = "256GiB"

[[drive]]
name = "disk"
price = 80
counts = [1, 2, 4]
capacity = "1TB"
tbw = "600TB"
read = "3GB/s"
write = "1GB/s"
ceiling = "7GB/s"
)";

ProblemRequest request() {
  ProblemRequest one;
  one.model = "gpt3-2.7b";
  one.workload["batch"] = "4";
  return one;
}

Planner planner() {
  PlansAsked plans;
  plans.policies = {"zero-infinity", "greedysnake"};
  return planner_of(plans);
}

std::string with(const std::string& key, const std::string& text) {
  std::string list = small_list;
  list.replace(list.find(key), key.size(), text);
  return list;
}

void check_refused(const std::string& text, const std::string& place, const std::string& what) {
  INFO(text);
  try {
    parse_price_list(text, "list.toml");
    FAIL("it was read");
  } catch (const InputError& error) {
    CHECK_THAT(error.what(), Catch::StartsWith(place) && Catch::Contains(what));
    CHECK_FALSE(error.hint().empty());
  }
}

TEST_CASE("a price list makes a machine of each choice of parts, the cheapest first") {
  const PriceList list = parse_price_list(small_list, "list.toml");
  const std::vector<PricedMachine> machines = list.machines();
  REQUIRE(machines.size() == 2 * 2 * 3);
  CHECK(machines[0].price == 1000 + 500 + 100 + 80);
  CHECK(machines.back().price == 1000 + 2000 + 700 + 4 * 80);
  for (std::size_t i = 1; i < machines.size(); ++i)
    CHECK(machines[i].price >= machines[i - 1].price);
  CHECK(list.name_of(machines.back()) == "fast, much, 4 x disk");
  // What the parts set, and what the base machine has beside.
  const Machine largest = load_machine(list.machine, machines.back().overrides);
  CHECK(largest.gpu.flops == load_machine("rtx4090-12ssd").gpu.flops);
  CHECK(largest.host.memory + largest.host.reserved == std::uint64_t{256} << 30);
  CHECK(largest.ssd.capacity == 4'000'000'000'000);
  CHECK(largest.ssd.read == 7e9);  // four drives, at the ceiling
  CHECK(largest.ssd.write == 4e9);
  CHECK(largest.ssd.tbw == 600'000'000'000'000);
  CHECK(load_machine(list.machine, machines[0].overrides).gpu.flops == 40e12);
}

TEST_CASE("the cheapest machine is the one that trying all finds, and so are the next ones") {
  const PriceList list = parse_price_list(small_list, "list.toml");
  const Planner plans = planner();
  std::vector<std::pair<double, double>> all;  // price, tokens per second; the cheapest first
  for (const PricedMachine& machine : list.machines()) {
    ProblemRequest one = request();
    one.machine = list.machine;
    one.overrides = machine.overrides;
    const std::optional<Candidate> plan = best_plan(plans, one.problem(), true);
    all.emplace_back(machine.price, plan ? plan->evaluation.result->tokens_per_second : 0);
  }
  for (const double wanted : {1., 300., 1000., 1e6}) {
    INFO(wanted << " tokens/s");
    const CheapestMachine answer = cheapest_machine(request(), plans, list, {wanted, 0});
    CHECK(answer.machines == all.size());
    CHECK(answer.tried <= all.size());
    std::vector<std::pair<double, double>> expected;
    for (const auto& one : all) {
      if (one.second >= wanted && expected.size() <= most_runners_up) expected.push_back(one);
    }
    REQUIRE(answer.fast_enough.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CHECK(answer.fast_enough[i].machine.price == expected[i].first);
      CHECK(answer.fast_enough[i].tokens_per_second == expected[i].second);
    }
    CHECK(answer.plan.has_value() == !expected.empty());
    if (expected.empty()) REQUIRE(answer.fastest_below);
    if (answer.fastest_below) CHECK(answer.fastest_below->tokens_per_second < wanted);
  }
}

TEST_CASE("drives that must last rule out machines that wear them out") {
  const PriceList list = parse_price_list(small_list, "list.toml");
  const Planner plans = planner();
  const CheapestMachine any = cheapest_machine(request(), plans, list, {1, 0});
  REQUIRE(any.fast_enough.front().drive_years);
  const double years = *any.fast_enough.front().drive_years;
  const CheapestMachine lasting = cheapest_machine(request(), plans, list, {1, 1.5 * years});
  for (const MachinePoint& point : lasting.fast_enough)
    CHECK(point.drive_years.value_or(1e9) >= 1.5 * years);
  if (!lasting.fast_enough.empty())
    CHECK(lasting.fast_enough.front().machine.price > any.fast_enough.front().machine.price);
}

TEST_CASE("where the fastest plan wears out the drives, one that spares them is judged") {
  PlansAsked asked;
  asked.policies = {"greedysnake"};
  const Planner sparing = planner_of(asked);
  const PriceList list = parse_price_list(small_list, "list.toml");
  const auto lasting = [&](const Planner& by, double years) {
    return cheapest_machine(request(), by, list, {1, years}).fast_enough.front();
  };
  const MachinePoint spared = lasting(sparing, 0);
  REQUIRE(spared.drive_years);
  // Beside each plan one that is twice as fast and writes ten times as much.
  Planner both = sparing;
  both.best = [sparing](const Problem& problem, bool choose_micro_batch) {
    Candidates found = sparing.best(problem, choose_micro_batch);
    if (!found.chosen) return found;
    Candidate fast = found.all[*found.chosen];
    fast.evaluation.result->tokens_per_second *= 2;
    fast.wear.schedule_bytes *= 10;
    found.chosen = found.all.size();
    found.all.push_back(std::move(fast));
    return found;
  };
  CHECK(lasting(both, 0).drive_years < spared.drive_years);
  const MachinePoint judged = lasting(both, *spared.drive_years);
  CHECK(judged.machine.price == spared.machine.price);
  CHECK(judged.tokens_per_second == spared.tokens_per_second);
}

TEST_CASE("machines without drives are made once, and machines that cannot be are left out") {
  const PriceList twice = parse_price_list(
      with("[1, 2, 4]", "[0, 1, 1]") + "[[drive]]\nname = \"other\"\nprice = 1\ncounts = [0]\n",
      "list.toml");
  CHECK(twice.machines().size() == 2 * 2 * 2);
  const PriceList list = parse_price_list(
      with("\"gpu.flops\" = \"40TFLOPS\"", "\"gpu.memory\" = \"1GB\""), "list.toml");
  const CheapestMachine answer = cheapest_machine(request(), planner(), list, {1, 0});
  CHECK(answer.left_out > 0);  // less than the base machine's gpu.context
  CHECK_THAT(answer.why_left_out, Catch::Contains("slow"));
  REQUIRE(answer.fast_enough.size() > 0);
  CHECK_THAT(answer.fast_enough[0].name, Catch::Contains("fast"));
}

TEST_CASE("what a part sets cannot be set otherwise") {
  const PriceList list = parse_price_list(small_list, "list.toml");
  for (const char* setting : {"host.memory=1TB", "ssd.count=9", "ssd.read=9GB/s",
                              "gpu.flops=1TFLOPS", "ssd.capacity=9TB", "ssd.tbw=9PB"}) {
    ProblemRequest one = request();
    one.overrides = {setting};
    INFO(setting);
    CHECK_THROWS_AS(cheapest_machine(one, planner(), list, {1, 0}), InputError);
  }
  CHECK_FALSE(list.part_that_sets("pcie.h2d"));
  CHECK(list.part_that_sets("gpu.flops") == "[[gpu]] slow");
}

TEST_CASE("a list without a kind of part leaves the base machine as it is") {
  const PriceList list = parse_price_list(
      "currency = \"EUR\"\nmachine = \"testbed\"\n[[gpu]]\nname = \"one\"\nprice = 1\n", "l.toml");
  REQUIRE(list.machines().size() == 1);
  CHECK(list.machines()[0].overrides.empty());
  CHECK(list.name_of(list.machines()[0]) == "one");
}

TEST_CASE("the built-in list is read, and says that it is an example") {
  const PriceList list = load_price_list("example");
  CHECK_THAT(list.source, Catch::Contains("example"));
  for (const PricedMachine& machine : list.machines())
    CHECK_NOTHROW(load_machine(list.machine, machine.overrides));
  CHECK_THROWS_AS(load_price_list("exmaple"), InputError);
}

TEST_CASE("what is wrong in a price list is named with its place") {
  check_refused(with("price = 1000", "prise = 1000"), "list.toml:4:1", "unknown key prise");
  check_refused(with("price = 80", "price = \"80\""), "list.toml:27:9", "price");
  check_refused(with("price = 80\n", ""), "list.toml:25:1", "price is missing");
  check_refused(with("\"21GiB\"", "72"), "list.toml:18:8", "size");
  check_refused(with("[1, 2, 4]", "[1, 2.5]"), "list.toml:28:14", "whole numbers");
  check_refused(with("[1, 2, 4]", "[]"), "list.toml:28:10", "whole numbers");
  check_refused(with("\"gpu.flops\"", "\"gpu.flop\""), "list.toml:9:9", "gpu.flop");
  check_refused(with("\"40TFLOPS\"", "\"40\""), "list.toml:9:9", "40");
  check_refused(with("write = \"1GB/s\"\n", ""), "list.toml:25:1", "write is missing");
  check_refused("currency = \"EUR\"\nmachine = \"testbed\"\n", "list.toml", "no part");
  check_refused(with("\"21GiB\"", "\"0GB\""), "list.toml:18:8", "size: it is 0");
  check_refused(with("\"much\"", "\"mu\\nch\""), "list.toml:21:8", "control character");
  check_refused("gpu = 3", "list.toml:1:7", "gpu is not a list of tables");
  check_refused(with("machine = \"rtx4090-12ssd\"\n", ""), "list.toml:1:1", "machine is missing");
}

}  // namespace
}  // namespace spillway
