// Prefills in bubbles: where they go, that training does not notice, and what is refused.
#include "experiments/pipelines/prefill.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>

#include "tests/policies/input_error.hpp"
#include "tests/temporary_folder.hpp"

using namespace spillway;

namespace {

PipelinePlan trained(const std::string& order, int replicas = 2) {
  PipelineRequest request;
  request.problem.model = load_model("gpt-13b");
  request.problem.machine = load_machine("h100-80gb-8gpu");
  request.problem.workload.batch = 16 * replicas;
  request.problem.workload.micro_batch = 1;
  request.centers = one_data_center(8);
  request.centers.centers = {{"a", 2 * replicas}, {"b", 2 * replicas}};
  for (const auto& [from, to] : {std::pair("a", "b"), std::pair("b", "a")}) {
    WanLink link;
    link.from = from;
    link.to = to;
    link.rtt_ns = 20'000'000;
    link.window = 1'470'000;
    link.flows = 8;
    link.pair = 625e6;
    request.centers.links.push_back(link);
  }
  request.gpus = 4;
  request.replicas = replicas;
  request.tensor = 8;
  const PipelinePlan plan = plan_pipeline(request, PipelineOrder(order));
  REQUIRE(plan.result);
  return plan;
}

PrefillSettings settings_of(int gpus) {
  PrefillSettings settings;
  settings.model = load_model("llama-7b");
  settings.gpus = gpus;
  settings.steps = 6;
  return settings;
}

}  // namespace

TEST_CASE("Poisson requests follow from their seed, at their rate, with tokens between the ends") {
  const auto requests = poisson_requests(50, 100, 400, 100'000'000'000, 3);
  CHECK(requests.size() == Approx(5000).epsilon(0.05));
  for (std::size_t i = 0; i < requests.size(); ++i) {
    CHECK((requests[i].tokens >= 100 && requests[i].tokens <= 400));
    if (i > 0) CHECK(requests[i - 1].arrival_ns <= requests[i].arrival_ns);
  }
  const auto again = poisson_requests(50, 100, 400, 100'000'000'000, 3);
  CHECK(again.back().arrival_ns == requests.back().arrival_ns);
  CHECK(poisson_requests(50, 100, 400, 100'000'000'000, 4).back().arrival_ns !=
        requests.back().arrival_ns);
}

TEST_CASE("Training steps are the same to the nanosecond, whatever the load and the order") {
  for (const char* order : {"1f1b", "gpipe", "atlas"}) {
    const PipelinePlan plan = trained(order);
    for (const double rate : {5.0, 50.0, 500.0}) {
      const PrefillSettings settings = settings_of(2);
      const auto requests =
          poisson_requests(rate, 64, 2048, plan.result->step_ns * settings.steps, 1);
      const PrefillResult result = place_prefills(plan, settings, requests);
      INFO(order << " " << rate);
      CHECK(result.passes_unchanged);
      CHECK(result.slowest_step_ns == plan.result->step_ns);
      CHECK(result.step_ns == plan.result->step_ns);
      REQUIRE_FALSE(result.placed.empty());
      CHECK(result.all_busy > result.training_busy);
      CHECK(result.all_busy <= 1);
    }
  }
}

TEST_CASE("No prefill overlaps training less the guard, or another prefill of its worker") {
  const PipelinePlan plan = trained("1f1b");
  PrefillSettings settings = settings_of(2);
  settings.guard_ns = 2'000'000;
  const PrefillResult result =
      place_prefills(plan, settings, poisson_requests(300, 64, 1024, plan.result->step_ns * 6, 5));
  const std::int64_t step = plan.result->step_ns;
  std::map<std::pair<int, int>, std::vector<std::pair<std::int64_t, std::int64_t>>> of_worker;
  for (const PlacedPrefill& one : result.placed) {
    for (std::size_t k = 0; k < one.start_ns.size(); ++k) {
      of_worker[{one.replica, one.first_gpu + static_cast<int>(k)}].push_back(
          {one.start_ns[k], one.end_ns[k]});
      // Parts follow each other at the time that they take and the way between.
      if (k > 0) CHECK(one.start_ns[k] >= one.end_ns[k - 1]);
      // A row stays in one data centre: places 0 and 1, or 2 and 3.
      CHECK(one.first_gpu % 2 == 0);
    }
  }
  for (auto& [worker, parts] : of_worker) {
    std::sort(parts.begin(), parts.end());
    for (std::size_t i = 1; i < parts.size(); ++i) CHECK(parts[i - 1].second <= parts[i].first);
    const auto& passes = plan.result->passes[0][static_cast<std::size_t>(worker.second)];
    for (const auto& [start, end] : parts) {
      for (const PipelinePass& pass : passes) {
        for (std::int64_t base = start / step * step; base <= end; base += step) {
          const bool apart =
              end + settings.guard_ns <= base + pass.start_ns || start >= base + pass.end_ns;
          if (!apart) FAIL("a prefill overlaps a pass");
        }
      }
    }
  }
}

TEST_CASE("A part of a prefill takes what the training's forward takes of as many layers") {
  PipelinePlan plan = trained("1f1b", 1);
  PrefillSettings settings;
  settings.model = plan.request.problem.model;
  settings.gpus = 2;  // two of four stages, 20 layers each
  const PrefillResult result =
      place_prefills(plan, settings, {{0, plan.request.problem.workload.sequence}});
  REQUIRE(result.placed.size() == 1);
  const std::int64_t part = result.placed[0].end_ns[0] - result.placed[0].start_ns[0];
  CHECK(part == Approx(2.0 * static_cast<double>(plan.times.stages[0].forward_ns)).epsilon(1e-6));
}

TEST_CASE("A bound on the time to the first token sends away what would take longer") {
  const PipelinePlan plan = trained("1f1b");
  PrefillSettings settings = settings_of(1);
  const auto requests = poisson_requests(200, 256, 4096, plan.result->step_ns * 6, 2);
  const PrefillResult all = place_prefills(plan, settings, requests);
  settings.most_ttft_ns = all.ttft_ns(0.5);
  const PrefillResult some = place_prefills(plan, settings, requests);
  CHECK(some.placed.size() < all.placed.size());
  CHECK(some.ttft_ns(1) <= settings.most_ttft_ns);
  CHECK(some.requests == requests.size());
}

TEST_CASE("A load that never ends fills the bubbles") {
  const PipelinePlan plan = trained("gpipe");
  PrefillSettings settings = settings_of(1);
  settings.guard_ns = 0;
  const PrefillResult result =
      place_prefills(plan, settings, poisson_requests(20'000, 64, 64, plan.result->step_ns * 6, 2));
  CHECK(result.all_busy > 0.94);
  CHECK(result.passes_unchanged);
}

TEST_CASE("Requests of a file: what is wrong is named with its line") {
  const test::TemporaryFolder folder;
  const std::string path = (folder / "requests.csv").string();
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  write("seconds,tokens\n# two\n0.5,100\n0.75, 2000\n");
  const auto requests = load_requests(path);
  REQUIRE(requests.size() == 2);
  CHECK(requests[1].arrival_ns == 750'000'000);
  CHECK(requests[1].tokens == 2000);
  write("0.5,100\n0.25,100\n");
  CHECK(std::string(input_error([&] { load_requests(path); }).what()).find("requests.csv:2") !=
        std::string::npos);
  write("0.1;300\n0.2,300\n");
  CHECK(std::string(input_error([&] { load_requests(path); }).what()).find("requests.csv:1") !=
        std::string::npos);
  write("0.5,100\nmany\n");
  CHECK(std::string(input_error([&] { load_requests(path); }).what()).find("requests.csv:2") !=
        std::string::npos);
  const PipelinePlan plan = trained("1f1b");
  CHECK(std::string(input_error([&] { place_prefills(plan, settings_of(3), {}); }).what())
            .find("3 workers of a pipeline in a row") != std::string::npos);
}
