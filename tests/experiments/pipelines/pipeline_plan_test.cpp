// A model as a pipeline over data centres: places, times by hand, memory, what-if.
#include "experiments/pipelines/pipeline_plan.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <numeric>

#include "experiments/pipelines/what_if.hpp"
#include "policies/cost/costs.hpp"
#include "policies/model/units.hpp"
#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

DataCenters centers_of(const std::vector<std::int64_t>& nodes) {
  DataCenters centers;
  centers.name = "some";
  for (std::size_t i = 0; i < nodes.size(); ++i)
    centers.centers.push_back({std::string(1, static_cast<char>('a' + i)), nodes[i]});
  for (const DataCenter& from : centers.centers) {
    for (const DataCenter& to : centers.centers) {
      if (from.name == to.name) continue;
      WanLink link;
      link.from = from.name;
      link.to = to.name;
      link.rtt_ns = 40'000'000;
      link.window = 1'470'000;
      link.flows = 17;
      link.pair = 625e6;
      centers.links.push_back(link);
    }
  }
  return centers;
}

PipelineRequest request_of(const DataCenters& centers, int gpus, int replicas, int tensor = 8) {
  PipelineRequest request;
  request.problem.model = load_model("gpt-13b");
  request.problem.machine = load_machine("h100-80gb-8gpu");
  request.problem.workload.batch = 32;
  request.problem.workload.micro_batch = 1;
  request.centers = centers;
  request.gpus = gpus;
  request.replicas = replicas;
  request.tensor = tensor;
  return request;
}

PipelinePlan plan_of(const PipelineRequest& request, const std::string& order) {
  return plan_pipeline(request, PipelineOrder(order));
}

}  // namespace

TEST_CASE("Places in a row go to one data centre, all replicas of a place side by side") {
  const DataCenters centers = centers_of({4, 3, 8});
  // Two replicas: two places, one place, four places.
  CHECK(*place_stages(centers, 7, 2, 1) == std::vector<int>{0, 0, 1, 2, 2, 2, 2});
  CHECK(*place_stages(centers, 2, 2, 1) == std::vector<int>{0, 0});
  CHECK_FALSE(place_stages(centers, 8, 2, 1));
  // A data centre without room for one place is passed over.
  CHECK(*place_stages(centers, 2, 4, 1) == std::vector<int>{0, 2});
  DataCenters apart = centers;
  apart.links.clear();
  CHECK_FALSE(place_stages(apart, 7, 2, 1));
  CHECK(place_stages(apart, 2, 2, 1));
}

TEST_CASE("One worker computes what one GPU does, without a transfer") {
  PipelineRequest request = request_of(one_data_center(1), 1, 1, 1);
  request.problem.machine.gpu.memory = std::uint64_t{1} << 40;
  request.recompute = false;
  const PipelinePlan plan = plan_of(request, "1f1b");
  REQUIRE(plan.result);
  const Costs costs(request.problem);
  const double layers = static_cast<double>(request.problem.model.layers);
  const double micro = layers * (costs.forward_seconds() +
                                 costs.backward_seconds(saved_all(request.problem.model), false)) +
                       costs.head_seconds();
  CHECK(static_cast<double>(plan.result->passes_ns) * 1e-9 == Approx(32 * micro).epsilon(1e-6));
  CHECK(plan.result->transfers.empty());
  const double parameters = static_cast<double>(request.problem.model.parameters());
  CHECK(plan.memory.parameters == Approx(2 * parameters).epsilon(1e-3));
  CHECK(plan.memory.optimizer_state == Approx(12 * parameters).epsilon(1e-3));
}

TEST_CASE("A transfer over the WAN is the micro-batch's activations at the pair's rate") {
  const PipelinePlan plan = plan_of(request_of(centers_of({4, 4}), 8, 1), "gpipe");
  REQUIRE(plan.result);
  const auto wan = std::find_if(plan.result->transfers.begin(), plan.result->transfers.end(),
                                [](const PipelineTransfer& one) { return one.from == 3; });
  REQUIRE(wan != plan.result->transfers.end());
  const double bytes = 1024.0 * 5120 * 2, rate = 17 * 1.47e6 / 0.040;
  CHECK(static_cast<double>(wan->end_ns - wan->start_ns) ==
        Approx(bytes / rate * 1e9).epsilon(1e-3));
  CHECK(wan->arrives_ns - wan->end_ns == 20'000'000);
}

TEST_CASE("ATLAS' pipelines cross the WAN one after the other, each with the rate of its cell") {
  PipelineRequest request = request_of(centers_of({8, 8}), 4, 4);
  request.cell = 4;
  const PipelinePlan apart = plan_of(request, "1f1b"), atlas = plan_of(request, "atlas");
  REQUIRE((apart.result && atlas.result));
  CHECK(atlas.cell == 4);
  CHECK(atlas.times.pipelines == 4);
  const auto wan_ns = [](const PipelinePlan& plan) {
    for (const PipelineTransfer& one : plan.result->transfers)
      if (one.from == 1 && one.to == 2) return one.end_ns - one.start_ns;
    return std::int64_t{0};
  };
  CHECK(static_cast<double>(wan_ns(apart)) ==
        Approx(4.0 * static_cast<double>(wan_ns(atlas))).epsilon(1e-6));
  // Never two at once on a way of a boundary.
  std::vector<PipelineTransfer> out;
  for (const PipelineTransfer& one : atlas.result->transfers)
    if (one.from == 1 && one.to == 2) out.push_back(one);
  std::sort(out.begin(), out.end(), [](const PipelineTransfer& a, const PipelineTransfer& b) {
    return a.start_ns < b.start_ns;
  });
  REQUIRE(out.size() == 4 * 8);
  for (std::size_t i = 1; i < out.size(); ++i) CHECK(out[i - 1].end_ns <= out[i].start_ns);
  // The default is the divisor of the replicas that is next to C.
  request.cell = 0;
  CHECK(plan_of(request, "atlas").wan_forwards > 4);
  CHECK(plan_of(request, "atlas").cell == 4);
}

TEST_CASE("Gradients are summed inside a data centre, by a ring over the replicas") {
  PipelineRequest request = request_of(one_data_center(8), 2, 4);
  const PipelinePlan plan = plan_of(request, "1f1b");
  const ModelSpec& model = request.problem.model;
  const double parameters = static_cast<double>(20 * unit_elements(model, 0) +
                                                unit_elements(model, embedding_unit(model)));
  const Machine::Cluster& cluster = request.problem.machine.cluster;
  const double sum = 2 * 3.0 / 4 * parameters *
                         static_cast<double>(request.problem.gradient_bytes()) / cluster.nic +
                     6 * static_cast<double>(cluster.nic_latency_ns) * 1e-9;
  const double update =
      parameters / 8 / Costs(request.problem).updates_per_second(Lane::gpu_compute);
  CHECK(static_cast<double>(plan.times.stages[0].sum_ns) * 1e-9 == Approx(sum).epsilon(0.01));
  CHECK(static_cast<double>(plan.times.stages[0].update_ns) * 1e-9 == Approx(update).epsilon(0.01));
  REQUIRE(plan.result);
  CHECK(plan.result->updates_begin_ns[0][0] == plan.result->passes[0][0].back().end_ns +
                                                   plan.times.stages[0].sum_ns +
                                                   plan.times.embedding_ns);
}

TEST_CASE("What does not fit recomputes unless told not to, and may still not fit") {
  PipelineRequest request = request_of(one_data_center(2), 2, 1);
  request.problem.machine.gpu.memory = 22'000'000'000;
  request.problem.workload.micro_batch = 8;
  PipelinePlan plan = plan_of(request, "gpipe");
  CHECK(plan.recomputes);
  REQUIRE(plan.result);
  CHECK(plan.memory.needed <= plan.memory.capacity);
  request.recompute = false;
  CHECK_FALSE(plan_of(request, "gpipe").result);
  request.recompute = true;
  request.problem.machine.gpu.memory = 1'000'000'000;
  plan = plan_of(request, "gpipe");
  CHECK_FALSE(plan.result);
  CHECK(plan.tokens_per_second() == 0);
}

TEST_CASE("A tied embedding's gradients cross the WAN, a share over each replica's pair of nodes") {
  PipelineRequest request = request_of(centers_of({4, 4}), 4, 2);
  const PipelinePlan tied = plan_of(request, "1f1b");
  const double bytes = static_cast<double>(unit_elements(request.problem.model, 40)) *
                       static_cast<double>(request.problem.gradient_bytes());
  CHECK(static_cast<double>(tied.times.embedding_ns) * 1e-9 ==
        Approx(bytes / 2 / (17 * 1.47e6 / 0.040) + 0.020).epsilon(0.01));
  request.problem.model = load_model("llama-13b");
  CHECK(plan_of(request, "1f1b").times.embedding_ns == 0);
}

TEST_CASE("With jitter the slowest of the replicas ends the step") {
  PipelineRequest request = request_of(centers_of({8, 8}), 4, 1);
  for (WanLink& link : request.centers.links) link.jitter_ns = 20'000'000;
  const std::int64_t alone = plan_of(request, "1f1b").result->passes_ns;
  request.replicas = 4;
  request.problem.workload.batch *= 4;
  CHECK(plan_of(request, "1f1b").result->passes_ns >= alone);
}

TEST_CASE("Workers of a place that are on two nodes sum their gradients over the network") {
  PipelineRequest request = request_of(one_data_center(3), 4, 3, 2);
  request.problem.workload.batch = 12;
  const PipelinePlan plan = plan_of(request, "1f1b");
  // Four workers a node: places 0 and 1 are workers 0 to 2 and 3 to 5.
  const Machine::Cluster& cluster = request.problem.machine.cluster;
  const double bytes = 10.0 * static_cast<double>(unit_elements(request.problem.model, 0)) *
                       static_cast<double>(request.problem.gradient_bytes());
  const auto ring = [&](double rate, std::int64_t latency) {
    return 4.0 / 3 * bytes / rate + 4e-9 * static_cast<double>(latency);
  };
  const auto sum = [&](std::size_t s) {
    return static_cast<double>(plan.times.stages[s].sum_ns) * 1e-9;
  };
  CHECK(sum(1) == Approx(ring(cluster.nic, cluster.nic_latency_ns)).epsilon(1e-6));
  CHECK(sum(2) == Approx(ring(cluster.nic, cluster.nic_latency_ns)).epsilon(1e-6));
  request.replicas = 4;  // places are nodes
  request.centers = one_data_center(4);
  const PipelinePlan inside = plan_of(request, "1f1b");
  CHECK(inside.times.stages[1].sum_ns < plan.times.stages[1].sum_ns);
}

TEST_CASE("The fastest micro-batch that fits is taken where none is given") {
  const PipelineRequest request = request_of(one_data_center(8), 4, 1);
  const PipelineOrder order("1f1b");
  const auto best = plan_pipeline_at_its_best(request, order);
  REQUIRE((best && best->result));
  for (const std::int64_t size : {1, 2, 4, 8, 16, 32}) {
    PipelineRequest one = request;
    one.problem.workload.micro_batch = size;
    CHECK(plan_pipeline(one, order).tokens_per_second() <= best->tokens_per_second());
  }
}

TEST_CASE("Varuna holds fewer micro-batches where what it recomputes ahead needs room") {
  PipelineRequest request = request_of(one_data_center(4), 4, 1);
  request.recompute = true;
  const PipelinePlan plenty = plan_of(request, "varuna");
  REQUIRE(plenty.result);
  // Room for all inputs of layers, and not for what is recomputed.
  request.problem.machine.gpu.memory =
      static_cast<std::uint64_t>(plenty.memory.needed) - 50'000'000;
  const PipelinePlan tight = plan_of(request, "varuna");
  REQUIRE(tight.result);
  CHECK(tight.held < plenty.held);
  CHECK(tight.memory.needed <= tight.memory.capacity);
}

TEST_CASE("What cannot be is refused with what to do") {
  CHECK(std::string(input_error([] {
                      plan_of(request_of(centers_of({2, 2}), 8, 1), "1f1b");
                    }).what())
            .find("do not go into some") != std::string::npos);
  CHECK(std::string(
            input_error([] { plan_of(request_of(one_data_center(64), 41, 1), "1f1b"); }).what())
            .find("40 layers do not make 41 stages") != std::string::npos);
  CHECK(
      std::string(input_error([] { plan_of(request_of(one_data_center(4), 2, 3), "1f1b"); }).what())
          .find("32 does not divide") != std::string::npos);
  CHECK(std::string(
            input_error([] { plan_of(request_of(one_data_center(4), 2, 1, 3), "1f1b"); }).what())
            .find("workers of 3") != std::string::npos);
}

TEST_CASE("Models with frozen parameters are refused") {
  PipelineRequest request = request_of(one_data_center(4), 2, 1);
  request.problem.model = load_model("gpt-13b", {"frozen_layers=39"});
  CHECK(std::string(input_error([&] { plan_of(request, "1f1b"); }).what()).find("frozen") !=
        std::string::npos);
}

TEST_CASE("What-if takes data centres in a row that links allow") {
  DataCenters centers = centers_of({4, 3, 2});
  // The two largest have no link to each other.
  std::erase_if(centers.links,
                [](const WanLink& link) { return link.from != "c" && link.to != "c"; });
  const WhatIf found = what_if(request_of(centers, 1, 1), PipelineOrder("1f1b"), {1});
  CHECK(std::any_of(found.choices.begin(), found.choices.end(), [](const PipelineChoice& one) {
    return one.centers == std::vector<std::string>{"a", "c", "b"};
  }));
}

TEST_CASE("What-if: the fastest first, each as planning it alone says, none that lacks room") {
  PipelineRequest request = request_of(centers_of({4, 2}), 1, 1);
  const PipelineOrder order("1f1b");
  const WhatIf found = what_if(request, order, {1, 4});
  REQUIRE(found.choices.size() > 10);
  CHECK(found.tried >= found.choices.size());
  for (std::size_t i = 1; i < found.choices.size(); ++i)
    CHECK(found.choices[i - 1].tokens_per_second >= found.choices[i].tokens_per_second);
  for (const std::size_t i : {std::size_t{0}, found.choices.size() / 2, found.choices.size() - 1}) {
    const PipelineChoice& choice = found.choices[i];
    PipelineRequest one = request;
    one.centers.centers.clear();
    for (const std::string& name : choice.centers)
      one.centers.centers.push_back({name, name == "a" ? 4 : 2});
    one.gpus = choice.gpus;
    one.replicas = choice.replicas;
    one.problem.workload.micro_batch = choice.micro_batch;
    const PipelinePlan plan = plan_pipeline(one, order);
    REQUIRE(plan.result);
    CHECK(plan.tokens_per_second() == choice.tokens_per_second);
    // All that it names are used.
    CHECK(plan.center_of.back() + 1 == static_cast<int>(choice.centers.size()));
    CHECK(choice.workers <= one.centers.nodes());
  }
  const bool uses_two = std::any_of(found.choices.begin(), found.choices.end(),
                                    [](const auto& one) { return one.centers.size() == 2; });
  CHECK(uses_two);
}
