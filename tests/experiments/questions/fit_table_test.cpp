// What fits, by policy, and the least memory of each kind: held against whole evaluations at the
// limit and below it.
#include "experiments/questions/fit_table.hpp"

#include <catch2/catch.hpp>

#include "base/errors.hpp"
#include "experiments/questions/largest_that_holds.hpp"

namespace spillway {
namespace {

constexpr std::array tiers = {Tier::gpu, Tier::host, Tier::ssd};

ProblemRequest tiny_request() {
  ProblemRequest request;
  request.model = "gpt-tiny";
  request.machine = "testbed";
  request.workload = {{"batch", "4"}, {"sequence", "64"}};
  return request;
}

PlansAsked asked(std::vector<std::string> policies) {
  PlansAsked plans;
  plans.policies = std::move(policies);
  return plans;
}

// The request with so much of one memory, as a user would set it.
ProblemRequest limited(ProblemRequest request, Tier tier, std::uint64_t bytes) {
  const std::string text = std::to_string(bytes) + "B";
  if (tier == Tier::gpu) request.gpu_memory = text;
  if (tier == Tier::host) request.host_memory = text;
  if (tier == Tier::ssd) request.overrides.push_back("ssd.capacity=" + text);
  return request;
}

// Whether some micro-batch fits, simulated, with the store of a durable training.
bool simulates(const ProblemRequest& request, const std::string& policy) {
  return evaluate_candidates(request.problem(), true, {policy}, WholeRun()).chosen.has_value();
}

TEST_CASE("sizes of three digits are in order, and each has its place") {
  CHECK(three_digit_size(0) == 0);
  CHECK(three_digit_size(999) == 999);
  CHECK(three_digit_size(1000) == 1000);
  CHECK(three_digit_size(1001) == 1010);
  CHECK(three_digit_size(1899) == 9990);
  CHECK(three_digit_size(1900) == 10'000);
  for (std::int64_t index = 1; index < 12'000; ++index) {
    CHECK(three_digit_size(index) > three_digit_size(index - 1));
    CHECK(three_digit_index(three_digit_size(index)) == index);
    CHECK(three_digit_index(three_digit_size(index) + 1) == index + 1);
  }
}

TEST_CASE("the smallest value that holds is found, also behind a small gap") {
  for (const std::int64_t limit : {1, 2, 3, 7, 64, 65, 1000}) {
    CHECK(smallest_that_holds(1, 1000, [&](std::int64_t value) { return value >= limit; }) ==
          limit);
    const auto with_gap = [&](std::int64_t value) { return value >= limit || value == limit - 3; };
    CHECK(smallest_that_holds(1, 2000, with_gap) == (limit > 3 ? limit - 3 : limit));
  }
}

TEST_CASE("the least memory of each kind is simulated, and the next smaller size does not fit") {
  int limits = 0;
  for (const char* policy : {"zero-infinity", "greedysnake", "resident", "zero-offload"}) {
    const ProblemRequest request = tiny_request();
    for (const Tier tier : tiers) {
      INFO(policy << ", " << to_string(tier));
      const LeastMemory least = least_memory(request, tier, planner_of(asked({policy})));
      REQUIRE(least.bytes);
      CHECK_FALSE(least.cut_short);
      CHECK_FALSE(least.is_more_than_there_is);
      if (*least.bytes == 0) {
        CHECK(simulates(limited(request, tier, 1), policy));
        continue;
      }
      ++limits;
      CHECK(three_digit_index(*least.bytes) == three_digit_index(least.too_little) + 1);
      CHECK(simulates(limited(request, tier, *least.bytes), policy));
      CHECK_FALSE(simulates(limited(request, tier, least.too_little), policy));
      CHECK_FALSE(least.full.empty());
      // The plan that is named is one that fits there.
      Problem named = limited(request, tier, *least.bytes).problem();
      named.workload.micro_batch = least.micro_batch;
      CHECK(evaluate(named, least.policy).schedule.fits());
    }
  }
  CHECK(limits >= 10);
}

TEST_CASE("the least memory is found beyond what the machine has, and what stands in its way") {
  ProblemRequest request = tiny_request();
  const Planner planner = planner_of(asked({"resident"}));
  const LeastMemory enough = least_memory(request, Tier::gpu, planner);
  REQUIRE(enough.bytes);
  request.gpu_memory = "2MB";
  const LeastMemory more = least_memory(request, Tier::gpu, planner);
  CHECK(more.is_more_than_there_is);
  CHECK(more.bytes == enough.bytes);
  // No host memory makes up for what the GPU lacks.
  const LeastMemory host = least_memory(request, Tier::host, planner);
  CHECK_FALSE(host.bytes);
  CHECK(host.full == std::vector<Tier>{Tier::gpu});
}

TEST_CASE("without drives none are needed, or a policy says that it needs them") {
  ProblemRequest request = tiny_request();
  request.overrides = {"ssd.count=0"};
  CHECK(least_memory(request, Tier::ssd, planner_of(asked({"zero-offload"}))).bytes == 0u);
  const LeastMemory lacking = least_memory(request, Tier::ssd, planner_of(asked({"fuyou"})));
  CHECK_FALSE(lacking.bytes);
}

TEST_CASE("a table has the answers that are asked for, whatever the number of threads") {
  ProblemRequest request = tiny_request();
  request.gpu_memory = "12MB";
  request.host_memory = "20MB";
  request.overrides = {"ssd.capacity=60MB"};
  const PlansAsked plans = asked({"zero-infinity", "fuyou", "resident"});
  const FitColumns all{true, true, {true, true, true}};
  CHECK(all.count() == 5);
  std::size_t last_done = 0, calls = 0;
  const FitTable one = fit_table(request, plans, all, 1, [&](const FitProgress& now) {
    CHECK(now.all == 15);
    CHECK(now.done >= last_done);
    last_done = now.done;
    ++calls;
  });
  CHECK(calls > 15);
  CHECK(one.fits());
  REQUIRE(one.rows.size() == 3);
  const FitTable several = fit_table(request, plans, all, 4);
  for (std::size_t i = 0; i < 3; ++i) {
    const FitRow &a = one.rows[i], &b = several.rows[i];
    INFO(a.policy);
    CHECK(a.policy == plans.policies[i]);
    CHECK(a.model->layers == b.model->layers);
    CHECK(a.batch->batch == b.batch->batch);
    for (const Tier tier : tiers) {
      const auto t = static_cast<std::size_t>(tier);
      CHECK(a.least[t]->bytes == b.least[t]->bytes);
    }
    // Each is what the question answers by itself.
    const Planner planner = planner_of(asked({a.policy}));
    CHECK(a.model->layers == largest_model(request.problem(), planner).layers);
    CHECK(a.batch->batch == largest_batch(request.problem(), planner).batch);
  }
  const FitTable some = fit_table(request, plans, {false, false, {false, true, false}}, 2);
  CHECK_FALSE(some.rows[0].model);
  CHECK_FALSE(some.rows[0].batch);
  CHECK_FALSE(some.rows[0].least[0]);
  CHECK(some.rows[0].least[1]->bytes == one.rows[0].least[1]->bytes);
}

TEST_CASE("a policy that cannot run the problem is a row with the reason, not an answer") {
  ProblemRequest request = tiny_request();
  request.overrides = {"ssd.count=0"};
  const FitColumns gpu{false, false, {true, false, false}};
  const std::string needs_drives = "greedysnake:placement=lp";
  const FitTable table = fit_table(request, asked({needs_drives, "resident"}), gpu, 1);
  CHECK_THAT(table.rows[0].refused, Catch::Contains("ssd"));
  CHECK_FALSE(table.rows[0].fits());
  CHECK(table.rows[1].fits());
  CHECK_THROWS_AS(fit_table(request, asked({needs_drives}), gpu, 1), InputError);
}

}  // namespace
}  // namespace spillway
