#include "experiments/tune/tune.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "experiments/plan/candidates.hpp"
#include "experiments/plan/machine_changes.hpp"
#include "experiments/plan/problem_request.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/tune/plan_space.hpp"
#include "experiments/tune/price_file.hpp"
#include "experiments/tune/seeds.hpp"
#include "experiments/tune/tune_json.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

// 6.7 billion parameters: 80 GB of optimizer state beside 64 GB of host memory.
Problem small_host() {
  Problem problem;
  problem.model = load_model("gpt-6b");
  problem.machine = load_machine("rtx4090-12ssd", {"host.memory=120GB", "ssd.count=3"});
  problem.workload = {4, 4, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

TuneOptions few_plans(std::uint64_t effort = 90) {
  TuneOptions options;
  options.effort = effort;
  options.run = {{DurabilityMode::off, 0}, {}};
  options.explains = false;
  return options;
}

std::string text_of(const TuneResult& result, const TuneOptions& options) {
  return to_json(result, options).dump();
}

TEST_CASE("a tuned plan is no slower than any built-in policy at any micro-batch") {
  const Problem problem = small_host();
  const TuneResult result = tune(problem, few_plans());
  REQUIRE(result.best);
  const double best = result.best->evaluation.result->step_seconds;
  for (const std::string& policy : published_policies()) {
    for (const std::int64_t micro_batch : {1, 2, 4}) {
      Problem cut = problem;
      cut.workload.micro_batch = micro_batch;
      for (const char* options : {"", ":retention=nearest"}) {
        const Evaluation one = evaluate(cut, policy + options);
        INFO(policy << options << " " << micro_batch);
        if (one.result) CHECK(best <= one.result->step_seconds);
      }
    }
  }
  CHECK(result.bound.seconds > 0);
  CHECK(result.bound.seconds <= best);
  CHECK(result.gap() == Approx(1 - result.bound.seconds / best));
  // The best of each built-in policy, in the order of their times.
  REQUIRE_FALSE(result.runners_up.empty());
  for (std::size_t k = 0; k < result.runners_up.size(); ++k) {
    const TrialPrice& price = result.runners_up[k].second;
    CHECK(price.step_seconds >= best);
    if (k > 0) CHECK(price.step_seconds >= result.runners_up[k - 1].second.step_seconds);
  }
  // The policy's text is the plan: evaluated by itself it takes as long.
  const Schedule& schedule = result.best->evaluation.schedule;
  const Evaluation again = evaluate(schedule.problem(), schedule.policy());
  REQUIRE(again.result);
  CHECK(again.result->step_seconds == best);
}

TEST_CASE("another micro-batch alone does not make a tuned plan faster") {
  for (const std::uint64_t seed : {0U, 1U, 2U}) {
    Problem problem = small_host();
    problem.workload.batch = problem.workload.micro_batch = 12;
    TuneOptions options = few_plans();
    options.seed = seed;
    const TuneResult result = tune(problem, options);
    REQUIRE(result.best);
    const Evaluation& best = result.best->evaluation;
    for (const std::int64_t micro_batch : micro_batch_candidates(12)) {
      problem.workload.micro_batch = micro_batch;
      const Evaluation other = evaluate(problem, best.schedule.policy());
      INFO(best.schedule.policy() << " at " << micro_batch);
      if (other.result) CHECK(other.result->step_seconds >= 0.999 * best.result->step_seconds);
    }
  }
}

TEST_CASE("the same seed finds the same plans with any number of threads") {
  const Problem problem = small_host();
  TuneOptions options = few_plans(60);
  options.explains = true;
  const std::string alone = text_of(tune(problem, options), options);
  options.threads = 3;
  CHECK(text_of(tune(problem, options), options) == alone);
}

TEST_CASE("a search that goes on from a file of prices ends as one that was never stopped") {
  const test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "prices";
  const Problem problem = small_host();
  const TuneOptions whole = few_plans(70);
  const std::string expected = text_of(tune(problem, whole), whole);
  std::size_t priced = 0;
  {
    PriceFile prices(path, "this program");
    TuneOptions some = few_plans(40);
    some.journal = &prices;
    priced = tune(problem, some).explored;
  }
  PriceFile prices(path, "this program");
  CHECK(prices.known() == priced);
  TuneOptions rest = few_plans(70);
  rest.journal = &prices;
  CHECK(text_of(tune(problem, rest), rest) == expected);
  CHECK(PriceFile(folder.path() / "other", "this program").known() == 0);
}

TEST_CASE("no plan of a front is dominated by another of the plans found") {
  const TuneResult result = tune(small_host(), few_plans());
  REQUIRE_FALSE(result.front.empty());
  for (std::size_t k = 0; k < result.front.size(); ++k) {
    for (std::size_t other = 0; other < result.front.size(); ++other) {
      if (k != other) CHECK_FALSE(covers(result.front[other].second, result.front[k].second));
    }
  }
}

TEST_CASE("a limit in time stops a search, whether it has an answer or not") {
  TuneOptions options = few_plans(100'000);
  options.budget_seconds = 1e-9;
  const TuneResult result = tune(small_host(), options);
  CHECK(result.stopped_by_clock);
  CHECK_FALSE(result.best);
  CHECK(result.explored == 0);
}

TEST_CASE("plans are found where no built-in policy fits") {
  // 65 billion parameters beside 8 GB of host memory; Fuyou takes 26 GB.
  Problem problem = small_host();
  problem.model = load_model("gpt-65b");
  problem.machine =
      load_machine("rtx4090-12ssd", {"host.memory=64GB", "host.reserved=56GB", "ssd.count=1"});
  const TuneResult result = tune(problem, few_plans(20));
  REQUIRE(result.best);
  CHECK(result.runners_up.empty());
  CHECK(result.published.empty());
  CHECK(result.gap() < 0.2);
}

TEST_CASE(
    "adapters of 70 billion parameters on one card: the GPU is busy, hardly anything written") {
  Problem problem;
  problem.model = load_model("llama-3-70b", {"lora_rank=16"});
  problem.machine = load_machine("rtx4090-2ssd", {"host.memory=64GB"});
  problem.workload.sequence = 2048;
  problem.workload.batch = 8;  // 16k tokens
  const Evaluation found = evaluate_tuned(problem, true, 3, evaluate);
  REQUIRE(found.result);
  const auto busy = [&](Lane lane) {
    return found.result->lanes[static_cast<std::size_t>(lane)].busy_fraction;
  };
  CHECK(busy(Lane::gpu_compute) >= 0.85);
  CHECK(busy(Lane::ssd_read) > 0.1);  // the model is there
  CHECK(busy(Lane::ssd_write) < 0.01);
}

TEST_CASE("a search makes room where none of its starts fits") {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-2ssd");
  problem.machine.gpu.memory = 8'000'000'000;
  problem.workload = {8, 1, 1024, Precision::bf16, GradientWidth::automatic};
  for (const double host : {12e9, 4.2e9}) {
    INFO(host);
    problem.machine.host.memory = static_cast<std::uint64_t>(host);
    CHECK(evaluate_tuned(problem, false, 3, evaluate).result);
  }
  // Where it finds none, what is lacking is lacking of the plan that is nearest.
  problem.machine.host.memory = 3'000'000'000;
  const Evaluation nearest = evaluate_tuned(problem, false, 3, evaluate);
  CHECK_FALSE(nearest.result);
  const TierUse host = nearest.schedule.use(Tier::host);
  CHECK(host.peak_bytes < 4'200'000'000);
  CHECK(nearest.schedule.use(Tier::gpu).peak_bytes <= problem.machine.gpu.memory);
}

TEST_CASE("with more GPU memory a search does not lose what it finds with less") {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-2ssd");
  problem.workload = {8, 1, 1024, Precision::bf16, GradientWidth::automatic};
  for (const double gpu : {5.02e9, 5.07e9, 5.12e9}) {
    INFO(gpu);
    problem.machine.gpu.memory = static_cast<std::uint64_t>(gpu);
    CHECK(evaluate_tuned(problem, false, 3, evaluate).result);
  }
}

TEST_CASE("what moves to the SSD is what can: layers on the GPU take no part") {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-2ssd");
  problem.workload = {8, 1, 1024, Precision::bf16, GradientWidth::automatic};
  const PlanSpace space(problem);
  Plan plan;
  plan.optimizer_state.rest = Share{.ssd = 1};
  plan.checkpoints.rest = with_layers_on_gpu(Share{.ssd = 1}, space.layers, space.layers - 1);
  plan.parameters.rest = Share{.host = 1};
  const double wanted = 0.5 * space.parameters;
  REQUIRE(space.move_to_ssd(plan, wanted));
  CHECK(fraction_on_ssd(plan.parameters.rest, space.layers) == Approx(0.5).margin(0.002));
  CHECK(layers_on_gpu(plan.checkpoints.rest, space.layers) == space.layers - 1);
}

TEST_CASE("more of what limits a plan gains most") {
  // Three drives and little host memory: what crosses the drives takes longest.
  TuneOptions options = few_plans();
  options.explains = true;
  const TuneResult result = tune(small_host(), options);
  REQUIRE(result.best);
  REQUIRE(result.relaxations.size() == 5);
  const double best = result.best->evaluation.result->step_seconds;
  for (const Relaxation& one : result.relaxations) {
    INFO(one.name);
    CHECK(one.step_seconds <= best);
    CHECK(one.bound_seconds <= one.step_seconds);
    if (one.name != "8 GB more GPU memory") continue;
    // What `--set` is told to be is that much more, whatever the CUDA context takes.
    const Machine& machine = small_host().machine;
    const Machine there =
        parse_machine(machine_to_toml(machine), machine.name, {assignment(one.changes.front())});
    CHECK(static_cast<double>(there.gpu.memory) ==
          Approx(static_cast<double>(machine.gpu.memory) + 8e9).epsilon(1e-5));
  }
  CHECK(result.relaxations.front().step_seconds < 0.98 * best);
}

TEST_CASE("each set of drives may have one more") {
  Problem problem = small_host();
  problem.machine =
      load_machine("rtx4090-12ssd", {"host.memory=120GB", "ssd.count=3", "ssd2.count=2",
                                     "ssd2.capacity=4TB", "ssd2.read=1GB/s", "ssd2.write=500MB/s"});
  TuneOptions options = few_plans(30);
  options.explains = true;
  const TuneResult result = tune(problem, options);
  REQUIRE(result.best);
  REQUIRE(result.relaxations.size() == 6);
  int told = 0;
  for (const Relaxation& one : result.relaxations) {
    const std::string which = one.name.substr(0, one.name.find(" of ") + 1);
    if (which != "one more drive ") continue;
    ++told;
    std::vector<std::string> keys;
    for (const Setting& change : one.changes) keys.push_back(assignment(change));
    const Machine there =
        parse_machine(machine_to_toml(problem.machine), problem.machine.name, keys);
    const bool is_second = one.name == "one more drive of ssd2";
    INFO(one.name);
    CHECK(there.ssd.count == (is_second ? 3 : 4));
    CHECK(there.drives(1).count == (is_second ? 3 : 2));
    // As fast as so many.
    if (is_second) CHECK(there.drives(1).read == Approx(1.5 * problem.machine.drives(1).read));
    CHECK(one.bound_seconds <= one.step_seconds);
  }
  CHECK(told == 2);
}

TEST_CASE("under a limit set by hand more memory is a higher limit") {
  ProblemRequest request;
  request.model = "gpt-6b";
  request.machine = "rtx4090-2ssd";
  request.gpu_memory = "12GB";
  request.workload = {{"batch", "4"}};
  TuneOptions options = few_plans();
  options.explains = true;
  const TuneResult result = tune(request.problem(), options);
  REQUIRE(result.best);
  bool is_told = false;
  for (const Relaxation& one : result.relaxations) {
    if (one.name != "8 GB more GPU memory") continue;
    is_told = true;
    REQUIRE(one.changes.size() == 1);
    CHECK(one.changes[0].name == "gpu_memory");
    // As told, it is the machine that was priced.
    request.gpu_memory = one.changes[0].value;
    CHECK(bounds_of(request.problem(), true).front().seconds ==
          Approx(one.bound_seconds).epsilon(1e-6));
  }
  CHECK(is_told);
}

TEST_CASE("more GPU memory is so much more of the card, whatever libraries take of a limit") {
  ProblemRequest request;
  request.model = "gpt-6b";
  request.machine = "rtx4090-2ssd";
  request.workload = {{"batch", "4"}};
  const Problem problem = request.problem();
  REQUIRE(problem.machine.gpu.workspaces > 0);
  TuneOptions options = few_plans(30);
  options.explains = true;
  const TuneResult result = tune(problem, options);
  REQUIRE(result.best);
  const auto one = std::find_if(
      result.relaxations.begin(), result.relaxations.end(),
      [](const Relaxation& relaxed) { return relaxed.name == "8 GB more GPU memory"; });
  REQUIRE(one != result.relaxations.end());
  CHECK(one->changes.front().name == "gpu.memory");
  request.overrides = {assignment(one->changes.front())};
  CHECK(static_cast<double>(request.problem().machine.gpu.memory) ==
        Approx(static_cast<double>(problem.machine.gpu.memory) + 8e9).epsilon(1e-5));
}

TEST_CASE("where nothing fits there is no best plan") {
  Problem problem = small_host();
  problem.machine.gpu.memory = std::uint64_t{1} << 20;
  const TuneResult result = tune(problem, few_plans(30));
  CHECK_FALSE(result.best);
  CHECK(result.front.empty());
}

TEST_CASE("policy spillway without settings is the plan found, and what auto takes") {
  const Problem problem = small_host();
  const WholeRun run{{DurabilityMode::off, 0}, {}};
  const Candidates all = evaluate_candidates(problem, true, candidate_policies(), run);
  REQUIRE(all.chosen);
  const Schedule& chosen = all.all[*all.chosen].evaluation.schedule;
  CHECK(chosen.policy().starts_with("spillway:"));
  const Candidates alone = evaluate_candidates(problem, true, {"spillway"}, run);
  CHECK(alone.all[0].evaluation.schedule.policy() == chosen.policy());
}

}  // namespace
}  // namespace spillway
