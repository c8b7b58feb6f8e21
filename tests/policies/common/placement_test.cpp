// Where model states rest: fractions of the tiers, and what auto makes of the memory there is.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <map>

#include "policies/movement/step.hpp"
#include "policies/schedule/fit_margin.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::string with(const std::string& policy, const PolicyOptions& options) {
  std::string text = policy;
  char separator = policy.find(':') == std::string::npos ? ':' : ',';
  for (const auto& [name, value] : options) {
    text += fmt::format("{}{}={}", separator, name, value);
    separator = ',';
  }
  return text;
}

}  // namespace

TEST_CASE("Options left at auto take the least of the SSD that fits") {
  for (const std::string policy : {"greedysnake", "greedysnake:alpha=0.5,parameters_ssd=0.3",
                                   "fuyou", "fuyou:optimizer=naive"}) {
    const std::vector<PolicyOptions> placements =
        make_policy(policy)->placements(tiny_problem(4, 8));
    // Many sequences in fuyou's micro-batch, so that checkpoints count.
    Problem problem = policy[0] == 'f' ? tiny_problem(7, 1) : tiny_problem(4, 8);
    if (policy[0] == 'f') problem.workload.batch = problem.workload.micro_batch = 128;
    std::vector<Schedule> alternatives;
    for (const PolicyOptions& options : placements)
      alternatives.push_back(build_schedule(problem, with(policy, options), 2));
    const std::uint64_t most = alternatives.front().use(Tier::host).peak_bytes;
    const std::uint64_t least = alternatives.back().use(Tier::host).peak_bytes;
    REQUIRE(least < most);
    // With the least of all, an alternative may fit by chance between two that do not.
    for (int k = 1; k <= 16; ++k) {
      problem.machine.host.memory = least + (most - least) * static_cast<std::uint64_t>(k) / 16;
      INFO(policy << " in " << problem.machine.host.memory << " bytes of host memory, of " << least
                  << " to " << most);
      const Schedule chosen = build_schedule(problem, policy, 2);
      CHECK(chosen.fits());
      std::size_t expected = 0;
      while (!build_schedule(problem, with(policy, placements[expected]), 2).fits()) ++expected;
      CHECK(chosen.policy() == alternatives[expected].policy());
      // With no more of the SSD than that, the answer is the same; with less, nothing fits.
      Problem scarce = problem;
      scarce.machine.ssd.capacity = chosen.use(Tier::ssd).peak_bytes;
      CHECK(build_schedule(scarce, policy, 2).policy() == chosen.policy());
    }
  }
}

TEST_CASE("A machine without an SSD runs what fits without one") {
  Problem problem = tiny_problem(4, 8);
  problem.machine.ssd = {};
  const Schedule schedule = build_schedule(problem, "greedysnake", 3);
  CHECK(schedule.fits());
  CHECK(schedule.use(Tier::ssd).peak_bytes == 0);
  CHECK(schedule.policy() == "greedysnake:optimizer_ssd=0,checkpoints_ssd=0,parameters_ssd=0");
  // Fuyou's states rest on the SSD whatever its options: no more than them is asked for.
  problem.machine.ssd = {};
  CHECK(build_schedule(problem, "fuyou", 3).policy() == "fuyou:checkpoints_ssd=0");
}

TEST_CASE("zero-offload keeps parameters in host memory where the GPU has no room for them") {
  const std::string streaming = "zero-offload:max_reuse_distance=0";
  // Many sequences: activations take most of the GPU's memory, parameters less than half.
  Problem problem = tiny_problem(7, 1);
  problem.model = load_model("gpt2-124m", {"layers=7"});
  problem.workload.sequence = 64;
  problem.workload.batch = problem.workload.micro_batch = 64;
  const std::uint64_t enough = build_schedule(problem, with(streaming, {{"parameters", "host"}}), 2)
                                   .use(Tier::gpu)
                                   .peak_bytes;
  const std::uint64_t more = build_schedule(problem, with(streaming, {{"parameters", "gpu"}}), 2)
                                 .use(Tier::gpu)
                                 .peak_bytes;
  REQUIRE(enough < more);
  problem.machine.gpu.memory = enough;
  CHECK(build_schedule(problem, streaming, 2).fits());
  CHECK(build_schedule(problem, streaming, 2).policy() ==
        "zero-offload:parameters=host,max_reuse_distance=0");
  problem.machine.gpu.memory = more;
  CHECK(build_schedule(problem, streaming, 2).policy() == streaming);
  CHECK(build_schedule(problem, streaming, 2).use(Tier::gpu).peak_bytes == more);
}

TEST_CASE("Delaying nothing updates in the same step, delaying all in the next") {
  for (const auto& [alpha, delay] : {std::pair{"0", 0}, std::pair{"1", 1}}) {
    const Schedule schedule =
        build_schedule(tiny_problem(3, 2), fmt::format("greedysnake:alpha={}", alpha), 3);
    std::map<std::pair<int, int>, std::uint64_t> updated;  // by block and step, elements
    for (const Task& task : schedule.tasks()) {
      if (task.kind != TaskKind::optimizer || task.layer == 3) continue;
      updated[{task.layer, task.update}] += task.params;
      CHECK(task.step - task.update == delay);
    }
    CHECK(updated.size() == 3 * 3);
    for (const auto& [key, elements] : updated) CHECK(elements == 7 * 2048);
  }
}

TEST_CASE("Placements go from nothing to everything on the SSD, a little at a time") {
  for (const std::string policy : {"fuyou", "greedysnake"}) {
    const std::vector<PolicyOptions> placements =
        make_policy(policy)->placements(tiny_problem(4, 8));
    for (const auto& [name, value] : placements.front()) CHECK(value == "0");
    for (const auto& [name, value] : placements.back()) CHECK(value == "1");
    for (std::size_t k = 1; k < placements.size(); ++k) {
      double raised = 0;
      for (const auto& [name, value] : placements[k]) {
        const double by = std::stod(value) - std::stod(placements[k - 1].at(name));
        CHECK(by >= 0);
        raised += by;
      }
      CHECK(raised > 0);
      CHECK(raised < 0.101);
    }
  }
  CHECK(make_policy("greedysnake:optimizer_ssd=0,checkpoints_ssd=0.5,parameters_ssd=1")
            ->placements(tiny_problem(4, 8)) == std::vector<PolicyOptions>{{}});
  CHECK(make_policy("fuyou:checkpoints_ssd=0.5")->placements(tiny_problem(4, 8)) ==
        std::vector<PolicyOptions>{{}});
}

TEST_CASE("A GPU that is too small is no reason to ask for more of the SSD") {
  Problem problem = tiny_problem(4, 8);
  problem.machine.ssd = {};
  problem.machine.gpu.memory = 4096;
  const Schedule schedule = build_schedule(problem, "greedysnake", 2);
  CHECK(!schedule.fits());
  CHECK(schedule.use(Tier::ssd).peak_bytes == 0);
  // Nor does it hide what host memory asks for.
  problem.machine.ssd.capacity = plenty;
  problem.machine.host.memory = schedule.use(Tier::host).peak_bytes * 3 / 4;
  const Schedule less = build_schedule(problem, "greedysnake", 2);
  CHECK(less.use(Tier::host).peak_bytes <= problem.machine.host.memory);
}

TEST_CASE("Fractions of a run, on the element grid") {
  CHECK(on_grid(7 * 2048, 0) == 0);
  CHECK(on_grid(7 * 2048, 1) == 7 * 2048);
  CHECK(on_grid(7 * 2048, 0.5) == 4 * 2048);
  CHECK(on_grid(7 * 2048, 0.07) == 0);
  CHECK(on_grid(7 * 2048, 0.08) == 2048);
  CHECK(on_grid(std::uint64_t{2048} << 30, 0.25) == std::uint64_t{512} << 30);
}

TEST_CASE("Of placements that all do not fit, the one that lacks the least share is told of") {
  // A GPU too small for all parameters, and host memory too small for states and parameters: with
  // parameters on the GPU most of it is lacking, with them in host memory a little there.
  Problem problem = tiny_problem(8, 1);
  const auto use = [&](const std::string& policy) {
    return tier_uses(build_schedule(problem, policy, 2));
  };
  problem.machine.gpu.memory = problem.machine.host.memory = 1'000'000'000'000;
  const TierUses on_gpu = use("zero-offload:parameters=gpu"),
                 in_host = use("zero-offload:parameters=host,max_reuse_distance=0");
  REQUIRE(on_gpu[0].peak_bytes > in_host[0].peak_bytes);
  REQUIRE(in_host[1].peak_bytes > on_gpu[1].peak_bytes);
  problem.machine.gpu.memory = in_host[0].peak_bytes;
  problem.machine.host.memory = in_host[1].peak_bytes - 4096;
  REQUIRE(on_gpu[1].peak_bytes <= problem.machine.host.memory);
  const FitMargin margin = fit_margin(use("zero-offload"));
  CHECK_FALSE(margin.fits());
  CHECK(margin.tier == Tier::host);
  CHECK(margin.bytes == -4096);
}
