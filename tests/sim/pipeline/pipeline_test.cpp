// Pipelines of stages in time: closed forms, links, and CrossPipe's table.
#include "sim/pipeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "policies/pipeline/orders.hpp"
#include "policies/pipeline/planned_order.hpp"

using namespace spillway;

namespace {

constexpr std::int64_t ms = 1'000'000;

StageTimes stage_of(std::int64_t forward, std::int64_t backward, std::int64_t weights) {
  StageTimes stage;
  stage.forward_ns = forward;
  stage.backward_ns = backward;
  stage.weight_ns = weights;
  return stage;
}

PipelineTimes alike(const PipelineShape& shape, const StageTimes& stage) {
  PipelineTimes times;
  times.stages.assign(static_cast<std::size_t>(shape.stages()), stage);
  times.outputs.resize(times.stages.size() - 1);
  times.gradients = times.outputs;
  return times;
}

// A WAN in front of the GPU in the middle: bytes / rate is the transfer.
void add_wan(PipelineTimes& times, const PipelineShape& shape, std::int64_t transfer,
             std::int64_t latency) {
  times.links = {{"out", 0, false, 0}, {"back", 0, false, 0}};
  for (int s = 0; s + 1 < shape.stages(); ++s) {
    const int from = shape.gpu_of(s), to = shape.gpu_of(s + 1), middle = shape.gpus / 2;
    if ((from < middle) == (to < middle)) continue;
    StageHop hop{from < middle ? 0 : 1, static_cast<double>(transfer), 1e9, latency};
    times.outputs[static_cast<std::size_t>(s)] = hop;
    hop.link = 1 - hop.link;
    times.gradients[static_cast<std::size_t>(s)] = hop;
  }
}

PipelineResult simulate(const std::string& text, const PipelineShape& shape,
                        const PipelineTimes& times) {
  const std::vector<PassOrder> orders = PipelineOrder(text).passes(shape, times);
  for (const PassOrder& order : orders) check_order(shape, order);
  return simulate_pipelines(shape, times, orders);
}

std::int64_t step_of(const std::string& text, int gpus, int micro_batches,
                     const StageTimes& stage) {
  const PipelineShape shape = PipelineOrder(text).shape(gpus, micro_batches);
  StageTimes of_chunk = stage;
  for (std::int64_t* ns : {&of_chunk.forward_ns, &of_chunk.backward_ns, &of_chunk.weight_ns})
    *ns /= shape.chunks;
  return simulate(text, shape, alike(shape, of_chunk)).step_ns;
}

}  // namespace

TEST_CASE("Without transfers GPipe and 1F1B take (M + P - 1) (F + B)") {
  const StageTimes stage = stage_of(10, 25, 0);
  for (const int gpus : {1, 2, 5}) {
    for (const int micro_batches : {1, 4, 9}) {
      const std::int64_t expected = (micro_batches + gpus - 1) * 35;
      CHECK(step_of("gpipe", gpus, micro_batches, stage) == expected);
      CHECK(step_of("1f1b", gpus, micro_batches, stage) == expected);
    }
  }
}

TEST_CASE("Interleaving makes the bubble shorter by the number of chunks") {
  // M (F + B) + (P - 1) (F + B) / v: Narayanan et al., SC 2021, Sec. 2.2.2.
  const StageTimes stage = stage_of(120, 240, 0);
  for (const int chunks : {2, 3, 4})
    CHECK(step_of(fmt::format("interleaved:chunks={}", chunks), 4, 16, stage) ==
          16 * 360 + 3 * 360 / chunks);
}

TEST_CASE("ZB-H1 has bubbles of (P - 1) (F + B_input - W)") {
  // Qi et al., ICLR 2024; passes that take as long as each other.
  for (const int gpus : {2, 4, 6})
    CHECK(step_of("zb-h1", gpus, 12, stage_of(10, 20, 10)) == 12 * 30 + (gpus - 1) * 10);
}

TEST_CASE("Updates end a step on every GPU after its own last pass") {
  const PipelineShape shape{2, 1, 2, false};
  PipelineTimes times = alike(shape, stage_of(10, 20, 0));
  times.stages[0].update_ns = 5;
  times.stages[1].update_ns = 100;
  const PipelineResult result = simulate("1f1b", shape, times);
  CHECK(result.passes_ns == 90);
  CHECK(result.updates_begin_ns[0] == std::vector<std::int64_t>{90, 70});
  CHECK(result.step_ns == 170);
  // Sums over replicas come between, and leave the GPU idle.
  times.stages[1].sum_ns = 30;
  CHECK(simulate("1f1b", shape, times).updates_begin_ns[0] == std::vector<std::int64_t>{90, 100});
}

TEST_CASE("A message occupies its link for bytes over rate and arrives its latency later") {
  const PipelineShape shape{2, 1, 3, false};
  PipelineTimes times = alike(shape, stage_of(10, 20, 0));
  add_wan(times, shape, 15, 100);
  const PipelineResult result = simulate("gpipe", shape, times);
  // Forward passes end at 10, 20, 30; the link is busy from 10 to 25, 40, 55.
  std::vector<std::int64_t> arrivals;
  for (const PipelineTransfer& one : result.transfers)
    if (one.from == 0) arrivals.push_back(one.arrives_ns);
  CHECK(arrivals == std::vector<std::int64_t>{125, 140, 155});
}

TEST_CASE("Pipelines share a capacity evenly, or take turns on a link") {
  const PipelineShape shape{2, 1, 1, false};
  PipelineTimes times = alike(shape, stage_of(10, 20, 0));
  times.pipelines = 2;
  add_wan(times, shape, 40, 0);
  const auto ends = [&] {
    std::vector<std::int64_t> all;
    for (const PipelineTransfer& one : simulate("gpipe", shape, times).transfers)
      if (one.from == 0) all.push_back(one.end_ns);
    return all;
  };
  CHECK(ends() == std::vector<std::int64_t>{50, 50});
  times.links[0].capacity = 1e9;
  CHECK(ends() == std::vector<std::int64_t>{90, 90});
  times.links[0].in_turns = true;
  CHECK(ends() == std::vector<std::int64_t>{50, 90});
}

TEST_CASE("What the planner of an order foresees is what the simulator sees") {
  for (const char* text : {"atlas:held=6", "varuna:held=6", "crosspipe:held=6"}) {
    for (const bool waits : {false, true}) {
      const PipelineShape shape = PipelineOrder(text).shape(6, 18);
      PipelineTimes times = alike(shape, stage_of(11, 23, 9));
      for (StageTimes& stage : times.stages) stage.recompute_ns = 7;
      times.sends_wait = waits;
      add_wan(times, shape, 31, 17);
      PlanningRule rule;
      rule.most_held = 6;
      rule.splits_backward = std::string(text).starts_with("crosspipe");
      rule.recomputes_apart = std::string(text).starts_with("varuna");
      const PlannedOrders planned = planned_orders(shape, times, rule);
      INFO(text << " " << waits);
      CHECK(simulate_pipelines(shape, times, planned.orders).passes_ns == planned.end_ns);
    }
  }
}

TEST_CASE("Jitter follows from its seed, delays, and lets no message overtake another") {
  const PipelineShape shape{4, 1, 16, false};
  PipelineTimes times = alike(shape, stage_of(10, 20, 0));
  add_wan(times, shape, 5, 50);
  const std::vector<PassOrder> orders = PipelineOrder("1f1b").passes(shape, times);
  const std::int64_t still = simulate_pipelines(shape, times, orders).step_ns;
  for (PipelineLink& link : times.links) link.jitter_ns = 200;
  const PipelineResult one = simulate_pipelines(shape, times, orders, 7);
  CHECK(one.step_ns > still);
  CHECK(one.step_ns == simulate_pipelines(shape, times, orders, 7).step_ns);
  CHECK(one.step_ns != simulate_pipelines(shape, times, orders, 8).step_ns);
  for (std::size_t i = 1; i < one.transfers.size(); ++i) {
    const PipelineTransfer &before = one.transfers[i - 1], &now = one.transfers[i];
    if (before.from == now.from && before.to == now.to) CHECK(before.arrives_ns <= now.arrives_ns);
  }
}

TEST_CASE("Chunks that cross between the same two GPUs share their connection") {
  // Two chunks, down and up again: stages 0 and 3 on the first GPU. Stage 0 sends to 1 from GPU 0
  // to 1, and gradients of stage 3 go to 2 the same way.
  const PipelineShape shape{2, 2, 3, true};
  PipelineTimes times = alike(shape, stage_of(10, 20, 10));
  times.links = {{"out", 0, false, 0}, {"back", 0, false, 0}};
  times.outputs[0] = times.gradients[2] = {0, 70, 1e9, 0};
  times.outputs[2] = times.gradients[0] = {1, 70, 1e9, 0};
  std::vector<PipelineTransfer> out;
  for (const PipelineTransfer& one : simulate("crosspipe:turns=on", shape, times).transfers)
    if (one.link == 0) out.push_back(one);
  REQUIRE(out.size() == 6);
  std::sort(out.begin(), out.end(), [](const PipelineTransfer& a, const PipelineTransfer& b) {
    return a.start_ns < b.start_ns;
  });
  for (std::size_t i = 1; i < out.size(); ++i) CHECK(out[i - 1].end_ns <= out[i].start_ns);
}

TEST_CASE("Copies of an embedding on the first and the last GPU are summed before both update") {
  const PipelineShape shape{3, 1, 2, false};
  PipelineTimes times = alike(shape, stage_of(10, 20, 0));
  for (StageTimes& stage : times.stages) stage.sum_ns = stage.update_ns = 5;
  times.embedding_ns = 40;
  const PipelineResult result = simulate("1f1b", shape, times);
  // The first GPU ends its last pass at 120.
  CHECK(result.passes_ns == 120);
  CHECK(result.updates_begin_ns[0] == std::vector<std::int64_t>{165, 105, 165});
  CHECK(result.step_ns == 170);
}

TEST_CASE(
    "Work of others moves no pass where it fits into a bubble, and delays where it does not") {
  const PipelineShape shape{2, 1, 2, false};
  const PipelineTimes times = alike(shape, stage_of(10, 20, 0));
  const std::vector<PassOrder> orders = PipelineOrder("1f1b").passes(shape, times);
  const PipelineResult before = simulate_pipelines(shape, times, orders);
  // The last stage waits for 10 ns at the beginning.
  const PipelineResult with = simulate_pipelines(shape, times, orders, 0, {{0, 1, 0, 0, 10}});
  CHECK(with.step_ns == before.step_ns);
  CHECK(simulate_pipelines(shape, times, orders, 0, {{0, 1, 0, 0, 11}}).step_ns ==
        before.step_ns + 1);
}

TEST_CASE("CrossPipe, Table 5: 1F1B and ZB-H1 over two data centres") {
  // Published, in seconds a micro-batch: latency and transfer in forward passes of 38 ms, a batch
  // of 16, and one of 32 that recomputes. The backward pass, 67 ms, and its weights' part, 21 ms,
  // are fitted on the first row alone.
  struct Row {
    double latency, transfer, of_16, of_32;
  };
  const std::vector<std::pair<std::string, std::vector<Row>>> table = {{"1f1b",
                                                                        {{0, 0, .151, .174},
                                                                         {.25, .25, .168, .193},
                                                                         {.25, 2, .241, .262},
                                                                         {2, .25, .242, .262},
                                                                         {2, 2, .321, .333}}},
                                                                       {"zb-h1",
                                                                        {{0, 0, .133, .168},
                                                                         {.25, .25, .150, .187},
                                                                         {.25, 2, .230, .259},
                                                                         {2, .25, .229, .258},
                                                                         {2, 2, .309, .331}}}};
  for (const auto& [order, rows] : table) {
    double sum = 0;
    for (const Row& row : rows) {
      for (const int batch : {16, 32}) {
        const PipelineShape shape = PipelineOrder(order).shape(8, batch);
        StageTimes stage = stage_of(38 * ms, 67 * ms, 21 * ms);
        if (batch == 32) stage.recompute_ns = 38 * ms;
        PipelineTimes times = alike(shape, stage);
        times.sends_wait = true;
        add_wan(times, shape, std::llround(row.transfer * 38e6), std::llround(row.latency * 38e6));
        const double published = batch == 16 ? row.of_16 : row.of_32;
        const double simulated =
            static_cast<double>(simulate(order, shape, times).step_ns) * 1e-9 / batch;
        INFO(order << " " << row.latency << " " << row.transfer << " " << batch << ": "
                   << simulated);
        CHECK(simulated == Approx(published).epsilon(0.03));
        sum += std::abs(simulated / published - 1);
      }
    }
    CHECK(sum / 10 < 0.015);
  }
}
