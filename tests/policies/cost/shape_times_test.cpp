// Products on a GPU by their shape: tiles, waves, memory, the table of shapes; and attention.
#include "policies/cost/shape_times.hpp"

#include <catch2/catch.hpp>

#include <random>

#include "policies/cost/costs.hpp"
#include "policies/framework/framework.hpp"
#include "tests/policies/cost/problems.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// 100 multiprocessors of 1e12 FLOP/s each, whose memory does not limit.
Problem waves_problem() {
  Machine machine = round_machine();
  machine.gpu.flops = 1e14;
  machine.gpu.multiprocessors = 100;
  machine.gpu.memory_bandwidth = 0;
  return small_problem(machine);
}

Task forward_task(const Problem& problem) {
  Task task;
  task.kind = TaskKind::forward;
  task.flops = forward_flops(problem);
  return task;
}

Task backward_task(const Problem& problem, SavedMask available, bool output) {
  Task task;
  task.kind = TaskKind::backward;
  task.available = available;
  task.recomputes_output = output;
  task.flops = backward_flops(problem, available, output);
  return task;
}

Task head_task(const Problem& problem) {
  Task task;
  task.kind = TaskKind::head;
  task.flops = head_flops(problem);
  return task;
}

}  // namespace

TEST_CASE(
    "The last wave of tiles takes as long as a full one, of the fastest tiles for the shape") {
  // 2560 x 1280 outputs are 10 x 10 tiles of 256 x 128: one wave of 100 multiprocessors, each of
  // 2 x 256 x 128 x 1024 FLOPs. Another row makes 110 such tiles, two waves; of 128 x 64 it makes
  // 21 x 20 = 420, five waves of a quarter of the area at 0.85 of the rate: 1.47 times as long,
  // less than by any other tile.
  const Problem problem = waves_problem();
  const ShapeTimes times(problem);
  const double wave = 2.0 * 256 * 128 * 1024 / 1e12;
  CHECK(times.product_seconds({2560, 1280, 1024}, 2560) == Approx(wave));
  CHECK(times.product_seconds({2561, 1280, 1024}, 2561) == Approx(wave * 5 / 4 / 0.85));
  CHECK(times.product_seconds({5120, 1280, 1024}, 5120) == Approx(2 * wave));
  // One output takes a whole tile of 64 x 64.
  CHECK(times.product_seconds({1, 1, 1024}, 1) == Approx(2.0 * 64 * 64 * 1024 / 1e12 / 0.7));
}

TEST_CASE("Products with few outputs cut their depth, for the price of adding up") {
  // Weights' gradient: 256 x 128 outputs, 65536 multiply-adds each. One tile keeps one of 100
  // multiprocessors busy; in 8 parts eight of them, and the 64 x 64 tiles all but four: 8 tiles in
  // 8 parts are 64, one wave of an eighth of the depth at 0.7 of the rate.
  Problem problem = waves_problem();
  const double whole = 2.0 * 64 * 64 * 65536 / 1e12 / 0.7;
  CHECK(ShapeTimes(problem).product_seconds({256, 128, 65536}, 65536) == Approx(whole));
  problem.machine.gpu.memory_bandwidth = 1e15;
  const double sums = 8.0 * 256 * 128 * 8 / 1e15;
  CHECK(ShapeTimes(problem).product_seconds({256, 128, 65536}, 65536) == Approx(whole / 8 + sums));
}

TEST_CASE("A product takes as long at least as its matrices take to move through GPU memory") {
  // One token: 4096 x 4096 parameters of 2 bytes, and two rows of activations, at 1 GB/s.
  Problem problem = waves_problem();
  problem.machine.gpu.memory_bandwidth = 1e9;
  const double bytes = 2.0 * (4096.0 * 4096 + 2 * 4096);
  CHECK(ShapeTimes(problem).product_seconds({1, 4096, 4096}, 1) == Approx(bytes / 1e9));
}

TEST_CASE("More tokens, columns or depth never take less time") {
  const unsigned seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto size = [&](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
  for (int round = 0; round < 2000; ++round) {
    Problem problem = waves_problem();
    problem.machine.gpu.multiprocessors = size(200);
    if (round % 2 == 0) problem.machine.gpu.memory_bandwidth = 1e9 * size(3000);
    const ShapeTimes times(problem);
    const ProductShape one{size(9000), size(9000), size(9000)};
    ProductShape more = one;
    more.rows += size(300);
    CHECK(times.product_seconds(more, 1) >= times.product_seconds(one, 1));
    more.columns += size(300);
    more.depth += size(300);
    CHECK(times.product_seconds(more, 1) >= times.product_seconds(one, 1));
  }
}

TEST_CASE("A task's products have all of its FLOPs, whatever is kept, trained or adapted") {
  // At half of the clock and with nothing else known of shapes, each FLOP takes twice as long.
  std::vector<Problem> problems = {waves_problem(), waves_problem(), waves_problem()};
  for (Problem& problem : problems) {
    problem.machine.gpu.multiprocessors = 0;
    problem.machine.gpu.clock = 0.5;
  }
  problems[1].model = load_model("llama-7b", {"layers=3"});
  problems[2].model = load_model("llama-7b", {"layers=3", "lora_rank=8"});
  for (const Problem& problem : problems) {
    const ShapeTimes times(problem);
    REQUIRE(times.known());
    const auto check = [&](const Task& task) {
      CHECK(times.seconds(task) == Approx(task.flops / 0.5e14).epsilon(1e-9));
    };
    check(forward_task(problem));
    check(head_task(problem));
    for (const bool output : {false, true}) {
      for (SavedMask mask = 0; mask <= saved_of_every_model; ++mask)
        check(backward_task(problem, mask, output));
    }
  }
}

TEST_CASE("Attention goes at a rate of its own, slower for narrow heads") {
  // Heads of 32 columns: (1 + 25/32) / (1 + 25/128) times as long as at the rate of the file.
  Problem problem = waves_problem();
  problem.machine.gpu.multiprocessors = 0;
  problem.machine.gpu.attention_flops = 0.25e14;
  const double attention = 4.0 * 4 * 128 * 128 * 128;  // both products, 4 sequences of 128 tokens
  const double all = forward_flops(problem);
  const double slower = (1 + 25.0 / 32) / (1 + 25.0 / 128);
  CHECK(ShapeTimes(problem).seconds(forward_task(problem)) ==
        Approx((all - attention) / 1e14 + attention * slower / 0.25e14));
  problem.model.heads = problem.model.kv_heads = 1;
  CHECK(ShapeTimes(problem).seconds(forward_task(problem)) ==
        Approx((all - attention) / 1e14 + attention / 0.25e14));
}

TEST_CASE("The table of shapes takes the place of waves: between its rows time is linear") {
  Problem problem = waves_problem();  // hidden size 128
  problem.machine.gpu.by_shape = {{1024, 128, 0.5}, {2048, 128, 0.8}, {2048, 512, 0.4}};
  const auto share = [&](std::int64_t tokens) {
    return 2.0 * 1000 * 1000 * 1000 / 1e14 /
           ShapeTimes(problem).product_seconds({1000, 1000, 1000}, tokens);
  };
  CHECK(share(1024) == Approx(0.5));
  CHECK(share(2048) == Approx(0.8));
  CHECK(share(9999) == Approx(0.8));
  CHECK(share(512) == Approx(0.25));
  // 1024 tokens take 2048 units of time, 2048 take 2560: 1536 take 2304.
  CHECK(share(1536) == Approx(1536.0 / 2304));
  problem.model.hidden = 256;  // half of the way from 128 to 512 by logarithm
  CHECK(share(2048) == Approx(0.6));
  problem.model.hidden = 4096;
  CHECK(share(2048) == Approx(0.4));
}

TEST_CASE("Kernels of our own work on the kernel batch of training, of others on all sequences") {
  Problem problem = waves_problem();
  problem.model.hidden = 4096;
  problem.workload.sequence = 2048;
  problem.workload.batch = problem.workload.micro_batch = 16;
  CHECK(sequences_of_kernel(problem) == 4);  // 2^25 elements of a residual stream
  problem.workload.sequences_at_once = 2;
  CHECK(sequences_of_kernel(problem) == 2);
  problem.framework = "ratel";
  CHECK(sequences_of_kernel(problem) == 16);
}

TEST_CASE("A GPU waits for the host where kernels are shorter than their starts") {
  // 8 operators of 1 ms each in forward, 8 again and 16 in a backward that recomputes all, and the
  // latency of the first; the FLOPs take microseconds.
  Problem problem = small_problem(round_machine());
  problem.machine.gpu.launch_ns = 1'000'000;
  const auto seconds = [&](const Task& task) { return Costs(problem).seconds(task); };
  CHECK(seconds(forward_task(problem)) == Approx(9e-3));
  CHECK(seconds(backward_task(problem, saved_none, true)) == Approx(25e-3));
  CHECK(seconds(backward_task(problem, saved_all(problem.model), false)) == Approx(17e-3));
  CHECK(seconds(head_task(problem)) == Approx(8e-3));
  // Kernels that take longer hide all starts but the first.
  problem.machine.gpu.flops = forward_flops(problem) / 0.1;
  CHECK(seconds(forward_task(problem)) == Approx(0.1 + 1e-3));
  problem.machine.gpu.flops = 1e15;
  // A framework's operators and hooks, in place of our own kernels: 20 of 2 ms and 6 modules of
  // 3 ms; backward twice as many and, with recomputation, as many again.
  problem.framework = "spillway:host.operators=20,host.operator=2ms,host.hook=3ms";
  CHECK(seconds(forward_task(problem)) == Approx(1e-3 + 40e-3 + 18e-3));
  CHECK(seconds(backward_task(problem, saved_none, true)) == Approx(1e-3 + 120e-3 + 36e-3));
  CHECK(seconds(backward_task(problem, saved_all(problem.model), false)) ==
        Approx(1e-3 + 80e-3 + 18e-3));
  // Kernels measured with our own program contain its starts, not another program's.
  problem.machine.kernels.push_back({"forward", "another shape", 1e9, 1, 0, {}});
  CHECK(seconds(forward_task(problem)) == Approx(1e-3 + 40e-3 + 18e-3));
  problem.framework = own_framework;
  CHECK(seconds(forward_task(problem)) < 2e-3);
}

TEST_CASE("A framework's waits take time of their own") {
  Problem problem = small_problem(round_machine());
  problem.machine.host.sync_ns = 1000;
  problem.framework = "spillway:host.sync=4us";
  Task barrier;
  CHECK(Costs(problem).seconds(barrier) == Approx(5e-6));
}
