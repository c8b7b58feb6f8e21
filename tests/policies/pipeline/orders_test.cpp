// Orders of passes: complete, possible, and holding as many micro-batches as their papers say.
#include "policies/pipeline/orders.hpp"

#include <catch2/catch.hpp>

#include <algorithm>

#include "policies/pipeline/planned_order.hpp"
#include "tests/policies/input_error.hpp"

using namespace spillway;

namespace {

template <class Body>
std::string message_of(Body body) {
  return input_error(body).what();
}

// Stages that are alike, and transfers that take no time.
PipelineTimes alike(const PipelineShape& shape) {
  PipelineTimes times;
  StageTimes stage;
  stage.forward_ns = 10;
  stage.backward_ns = 20;
  stage.weight_ns = 10;
  times.stages.assign(static_cast<std::size_t>(shape.stages()), stage);
  times.outputs.resize(times.stages.size() - 1);
  times.gradients = times.outputs;
  return times;
}

std::vector<int> held_by(const std::string& text, int gpus, int micro_batches) {
  const PipelineOrder order(text);
  const PipelineShape shape = order.shape(gpus, micro_batches);
  const std::vector<PassOrder> orders = order.passes(shape, alike(shape));
  REQUIRE(orders.size() == 1);
  check_order(shape, orders.front());
  return most_held(orders.front());
}

}  // namespace

TEST_CASE("Every order runs every pass once, whatever the GPUs and micro-batches") {
  for (const PipelineOrderInfo& info : pipeline_orders()) {
    for (const std::string& text :
         {info.name, info.name + (info.name == "interleaved" ? ":chunks=3" : "")}) {
      for (const int gpus : {1, 2, 3, 4, 8}) {
        for (const int micro_batches : {1, 2, 3, 8, 24}) {
          const PipelineOrder order(text);
          if (!order.suits(gpus, micro_batches)) continue;
          INFO(text << " on " << gpus << " GPUs, " << micro_batches << " micro-batches");
          const PipelineShape shape = order.shape(gpus, micro_batches);
          for (const PassOrder& passes : order.passes(shape, alike(shape)))
            CHECK_NOTHROW(check_order(shape, passes));
        }
      }
    }
  }
}

TEST_CASE("GPipe holds all micro-batches, 1F1B one for each GPU from its own to the last") {
  CHECK(held_by("gpipe", 4, 12) == std::vector<int>{12, 12, 12, 12});
  CHECK(held_by("1f1b", 4, 12) == std::vector<int>{4, 3, 2, 1});
  CHECK(held_by("1f1b", 4, 2) == std::vector<int>{2, 2, 2, 1});
}

TEST_CASE("ZB-H1 holds on every GPU what the first one holds with 1F1B") {
  CHECK(held_by("zb-h1", 4, 12) == std::vector<int>{4, 4, 4, 4});
}

TEST_CASE("Interleaved 1F1B, as Megatron-LM has it, on the first of two GPUs with two chunks") {
  const PipelineOrder order("interleaved");
  const PipelineShape shape = order.shape(2, 4);
  const PassOrder passes = order.passes(shape, alike(shape)).front();
  // Warm-up: 2 (p - 1 - rank) + (chunks - 1) p = 4 forward passes, micro-batches in groups of two.
  const std::vector<Pass> begin(passes[0].begin(), passes[0].begin() + 6);
  CHECK(begin == std::vector<Pass>{{PassKind::forward, 0, 0},
                                   {PassKind::forward, 0, 1},
                                   {PassKind::forward, 2, 0},
                                   {PassKind::forward, 2, 1},
                                   {PassKind::forward, 0, 2},
                                   {PassKind::backward, 2, 0}});
  CHECK(message_of([] {
          PipelineOrder("interleaved").shape(4, 6);
        }).find("6 micro-batches do not divide into groups of 4") != std::string::npos);
}

TEST_CASE("Planned orders hold no more than they may") {
  for (const char* name : {"varuna", "atlas", "crosspipe"}) {
    for (const int held : {1, 2, 5}) {
      const std::vector<int> most =
          held_by(std::string(name) + ":held=" + std::to_string(held), 4, 12);
      CHECK(*std::max_element(most.begin(), most.end()) <= held);
    }
  }
  const std::vector<int> turning = held_by("crosspipe:held=2,turns=on", 4, 12);
  CHECK(*std::max_element(turning.begin(), turning.end()) <= 4);  // of two chunks
}

TEST_CASE("An order that cannot be is refused with the pass that is wrong") {
  const PipelineShape shape{2, 1, 1, false};
  const Pass f0{PassKind::forward, 0, 0}, b0{PassKind::backward, 0, 0};
  const Pass f1{PassKind::forward, 1, 0}, b1{PassKind::backward, 1, 0};
  CHECK_NOTHROW(check_order(shape, {{f0, b0}, {f1, b1}}));
  const auto why = [&](const PassOrder& order) {
    return message_of([&] { check_order(shape, order); });
  };
  CHECK(why({{f0}, {f1, b1}}).find("backward of stage 0 on micro-batch 0: it is missing") !=
        std::string::npos);
  CHECK(why({{f0, b0, b0}, {f1, b1}}).find("twice") != std::string::npos);
  CHECK(why({{b0, f0}, {f1, b1}}).find("waits for a pass that comes after") != std::string::npos);
  CHECK(why({{f0, b0, f1}, {b1}}).find("has no such pass") != std::string::npos);
  CHECK(why({{f0, {PassKind::input_gradient, 0, 0}}, {f1, b1}}).find("by half") !=
        std::string::npos);
}

TEST_CASE("Texts of orders: defaults are left out, what is wrong is named") {
  CHECK(PipelineOrder("interleaved:chunks=2").text() == "interleaved");
  CHECK(PipelineOrder("crosspipe:turns=on,held=3").text() == "crosspipe:held=3,turns=on");
  CHECK(message_of([] { PipelineOrder("1f1c"); }).find("unknown order") != std::string::npos);
  CHECK(message_of([] { PipelineOrder("1f1b:held=2"); }).find("no option held") !=
        std::string::npos);
  CHECK(message_of([] { PipelineOrder("atlas:held=0"); }).find("held=0 is not") !=
        std::string::npos);
}

TEST_CASE("Varuna recomputes while it would wait, and not right after the forward pass") {
  const PipelineOrder order("varuna:held=4");
  const PipelineShape shape = order.shape(4, 8);
  PipelineTimes times = alike(shape);
  for (StageTimes& stage : times.stages) stage.recompute_ns = 10;
  const PassOrder passes = order.passes(shape, times).front();
  const auto recomputes = [&](std::size_t gpu) {
    return std::count_if(passes[gpu].begin(), passes[gpu].end(),
                         [](const Pass& pass) { return pass.kind == PassKind::recompute; });
  };
  CHECK(recomputes(0) > 0);
  CHECK(recomputes(3) == 0);  // the last stage goes back at once
  for (const Pass& pass : passes[3])
    if (pass.kind == PassKind::backward) CHECK(pass.finds_all);
}

TEST_CASE("What is recomputed stays until the gradient of the weights is done") {
  const auto recomputed_by = [](const std::string& text, int gpus, int micro_batches) {
    const PipelineOrder order(text);
    const PipelineShape shape = order.shape(gpus, micro_batches);
    PipelineTimes times = alike(shape);
    for (StageTimes& stage : times.stages) stage.recompute_ns = 10;
    return most_recomputed(order.passes(shape, times).front());
  };
  // Layer by layer, within the pass.
  CHECK(recomputed_by("1f1b", 4, 12) == std::vector<int>{0, 0, 0, 0});
  // ZB-H1: GPU d has d weight gradients to do, and the one it works on.
  CHECK(recomputed_by("zb-h1", 4, 12) == std::vector<int>{1, 2, 3, 4});
  for (const int held : recomputed_by("varuna:held=6", 4, 12)) CHECK(held == 1);
}
