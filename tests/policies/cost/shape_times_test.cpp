// Products on a GPU by their shape: tiles, waves, memory, the table of shapes; and attention.
#include "policies/cost/shape_times.hpp"

#include <catch2/catch.hpp>

#include <map>
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

TEST_CASE("Attention goes at a rate of its own, slower for narrow heads and short sequences") {
  // Heads of 32 columns: (1 + 25/32) / (1 + 25/128) times as long as at the rate of the file;
  // sequences of 128 tokens: (1 + 550/128) / (1 + 550/2048) times.
  Problem problem = waves_problem();
  problem.machine.gpu.multiprocessors = 0;
  problem.machine.gpu.attention_flops = 0.25e14;
  const double attention = 4.0 * 4 * 128 * 128 * 128;  // both products, 4 sequences of 128 tokens
  const double all = forward_flops(problem);
  const double shorter = (1 + 550.0 / 128) / (1 + 550.0 / 2048);
  const double slower = (1 + 25.0 / 32) / (1 + 25.0 / 128) * shorter;
  CHECK(attention_slowdown(32, 128) == Approx(slower));
  CHECK(attention_slowdown(128, 2048) == Approx(1));
  CHECK(ShapeTimes(problem).seconds(forward_task(problem)) ==
        Approx((all - attention) / 1e14 + attention * slower / 0.25e14));
  problem.model.heads = problem.model.kv_heads = 1;
  CHECK(ShapeTimes(problem).seconds(forward_task(problem)) ==
        Approx((all - attention) / 1e14 + attention * shorter / 0.25e14));
}

TEST_CASE("With the rate of products, what a layer does beside them takes the bytes it moves") {
  // 512 tokens of 128 columns, in 16 bit, at nine tenths of 1e12 B/s; 3 us for each kernel.
  Problem problem = waves_problem();
  problem.machine.gpu.multiprocessors = 0;
  problem.machine.gpu.product_gain = 1.25;
  problem.machine.gpu.memory_bandwidth = 1e12;
  problem.machine.gpu.launch_ns = 10'000;
  const double column = 512 * 2 / 0.9e12, tensor = 128 * column, kernel = 3e-6;
  const auto beside = [&](const Task& task, double attention) {
    // Products go at the gain, or as fast as their matrices move; attention as gpu.flops says.
    const ShapeTimes times(problem);
    double products = 0;
    for (const auto& [in, out] : {std::pair(128, 384), {128, 128}, {128, 512}, {512, 128}}) {
      products += times.product_seconds({512, out, in}, 512);
      if (task.kind == TaskKind::backward) products += times.product_seconds({out, in, 512}, 512);
    }
    return times.seconds(task) - products - attention / 1e14 - kernel;
  };
  const double attention = 4.0 * 4 * 128 * 128 * 128;
  // Two norms read and write a tensor each, GELU reads and writes four: 12, in three kernels.
  CHECK(beside(forward_task(problem), attention) == Approx(12 * tensor + 3 * kernel));
  // Norms' backward 4 and 4, GELU's 12, the bias of q, k and v 3, attention's 2, in five kernels.
  CHECK(beside(backward_task(problem, saved_all(problem.model), false), 2 * attention) ==
        Approx(25 * tensor + 5 * kernel));
  // In two passes: the second has a product a matrix, and the first the rest.
  Task input = backward_task(problem, saved_all(problem.model), false), weights = input;
  input.kind = TaskKind::input_gradient;
  weights.kind = TaskKind::weight_gradient;
  double products = 0;
  for (const auto& [in, out] : {std::pair(128, 384), {128, 128}, {128, 512}, {512, 128}})
    products += ShapeTimes(problem).product_seconds({out, in, 512}, 512);
  CHECK(ShapeTimes(problem).seconds(weights) == Approx(products));
  CHECK(
      ShapeTimes(problem).seconds(input) + ShapeTimes(problem).seconds(weights) ==
      Approx(ShapeTimes(problem).seconds(backward_task(problem, saved_all(problem.model), false))));
  // The head's norm, forward and backward, and its logits, read and written, of 512 rows.
  const ShapeTimes times(problem);
  const double head = times.product_seconds({512, 256, 128}, 512) +
                      times.product_seconds({512, 128, 256}, 512) +
                      times.product_seconds({256, 128, 512}, 512);
  CHECK(times.seconds(head_task(problem)) - head == Approx(5 * tensor + 2 * 256 * column + kernel));
  // Without that key gpu.flops is of a whole layer.
  problem.machine.gpu.product_gain = 0;
  problem.machine.gpu.memory_bandwidth = 0;
  problem.machine.gpu.clock = 0.5;
  CHECK(ShapeTimes(problem).seconds(forward_task(problem)) ==
        Approx(forward_flops(problem) / 0.5e14));
}

TEST_CASE("A llama's layer moves what its own kernels do") {
  // Of docs/cuda.md, in hidden sizes, with F = 3.5 C and a quarter as many heads of keys: norms 4
  // and 8, rotation 2.5 and 2.5, SwiGLU 10.5 and 17.5, attention's backward 2.
  ModelSpec model = load_model("llama-7b");
  model.hidden = 4096;
  model.heads = 32;
  model.kv_heads = 8;
  model.ffn = 3584 * 4;
  double forward = 0, backward = 0;
  for (const LayerOperator& one : layer_operators(model, 1, 1)) {
    forward += one.moved / 4096;
    backward += one.backward_moved / 4096;
  }
  CHECK(forward == Approx(4 + 2.5 + 10.5));
  CHECK(backward == Approx(8 + 2.5 + 17.5 + 2));
}

namespace {

// FLOP/s of a layer, forward and backward.
double layer_rate(const std::string& machine, const std::string& model, std::int64_t batch,
                  const std::string& framework = own_framework,
                  const std::vector<std::string>& settings = {}) {
  Problem problem;
  problem.machine = load_machine(machine);
  problem.model = load_model(model, settings);
  problem.framework = framework;
  problem.workload.batch = problem.workload.micro_batch = batch;
  const Task forward = forward_task(problem),
             backward = backward_task(problem, saved_all(problem.model), false);
  const ShapeTimes times(problem);
  return (forward.flops + backward.flops) / (times.seconds(forward) + times.seconds(backward));
}

}  // namespace

TEST_CASE("Cards go at gpu.flops in layers as wide as those it was measured in, slower in others") {
  for (const std::string machine : {"rtx3090-12ssd", "rtx4080-12ssd", "rtx4090-12ssd"}) {
    INFO(machine);
    const double flops = load_machine(machine).gpu.flops;
    for (const std::string framework : {"spillway", "ratel"}) {
      // Its last waves of tiles cost an RTX 3090 or 4080 up to 3 %.
      CHECK(layer_rate(machine, "gpt-13b", 32, framework) == Approx(flops).epsilon(0.035));
      CHECK(layer_rate(machine, "gpt-175b", 32, framework) == Approx(flops).epsilon(0.06));
    }
    CHECK(layer_rate(machine, "gpt2-124m", 16) < 0.88 * flops);
    // Whose operators are passes of their own is slower the narrower the layers are.
    CHECK(layer_rate(machine, "gpt2-124m", 16, "ratel") <
          0.94 * layer_rate(machine, "gpt2-124m", 16));
    // Wider models, more tokens and wider heads are faster.
    CHECK(layer_rate(machine, "gpt2-1.5b", 16) > 1.03 * layer_rate(machine, "gpt2-124m", 16));
    CHECK(layer_rate(machine, "gpt2-124m", 16) > 1.05 * layer_rate(machine, "gpt2-124m", 1));
    const auto with_heads = [&](const char* heads) {
      return layer_rate(machine, "gpt-13b", 32, own_framework, {std::string("heads=") + heads});
    };
    CHECK(with_heads("20") > 1.001 * with_heads("40"));
    CHECK(with_heads("40") > 1.003 * with_heads("80"));
    CHECK(with_heads("80") > 1.006 * with_heads("160"));
  }
  // Whose rate was measured.
  for (const std::string framework : {"spillway", "ratel"}) {
    CHECK(layer_rate("rtx4090-12ssd", "gpt-13b", 32, framework) == Approx(160.35e12).epsilon(0.01));
  }
  // Of A100, H100 and H200 gpu.flops is of a product: layers are slower.
  CHECK(layer_rate("a100-80gb", "gpt-13b", 32) == Approx(0.96 * 271e12).epsilon(0.02));
  CHECK(layer_rate("h100-80gb", "gpt-13b", 32) == Approx(0.9 * 795e12).epsilon(0.02));
}

TEST_CASE(
    "No framework computes a layer faster than our own program, on any card and at any width") {
  // Every card that a file gives the rate of products: with gpu.flops of a product (a gain of 1),
  // and with that of a transformer block. Batches from less than a kernel batch to several.
  int cards = 0;
  for (const Machine& machine : builtin_machines()) {
    if (machine.gpu.product_gain <= 0) continue;
    ++cards;
    for (const char* model : {"gpt-13b", "llama-7b"}) {
      for (const char* hidden : {"2048", "5120", "12288"}) {
        for (const std::int64_t batch : {1, 4, 16, 32}) {
          const auto rate = [&](const std::string& framework) {
            const std::string heads = std::to_string(std::stoi(hidden) / 128);
            return layer_rate(machine.name, model, batch, framework,
                              {std::string("hidden=") + hidden, "heads=" + heads});
          };
          const double own = rate(own_framework);
          for (const std::string framework : {"ratel", "deepspeed-0.9", "internevo"}) {
            INFO(machine.name << ", " << model << ", hidden " << hidden << ", batch " << batch
                              << ", " << framework << ": " << rate(framework) / own);
            CHECK(rate(framework) <= own * (1 + 1e-9));
          }
        }
      }
    }
  }
  CHECK(cards >= 9);
}

TEST_CASE("Square products are as fast as they were measured, within a fifth") {
  // zzc0721/torch-performance-test-data, bf16, products of n cubed; large ones at the card's best.
  struct Published {
    std::int64_t multiprocessors;
    double best, bandwidth;                // TFLOP/s, GB/s
    std::map<std::int64_t, double> rates;  // TFLOP/s by size
  };
  const std::vector<Published> cards = {
      {128, 164.8, 1008, {{1024, 126.8}, {2048, 164.8}, {4096, 151.5}, {8192, 160.2}}},  // RTX 4090
      {170, 237, 1792, {{2048, 171.5}, {4096, 182.2}, {8192, 234.7}}},                   // RTX 5090
      {132, 797.5, 3350, {{2048, 676.6}, {4096, 788.7}, {8192, 797.5}}},                 // H100 SXM
      {68, 64.7, 760, {{1024, 50.1}, {2048, 58.9}, {4096, 61.5}, {8192, 63.6}}}};        // RTX 3080
  for (const Published& card : cards) {
    Problem problem = waves_problem();
    problem.machine.gpu.multiprocessors = card.multiprocessors;
    problem.machine.gpu.flops = card.best * 1e12;
    problem.machine.gpu.product_gain = 1;
    problem.machine.gpu.memory_bandwidth = card.bandwidth * 1e9;
    for (const auto& [size, rate] : card.rates) {
      INFO(card.multiprocessors << " multiprocessors, " << size);
      const auto n = static_cast<double>(size);
      const double seconds = ShapeTimes(problem).product_seconds({size, size, size}, size);
      CHECK(2 * n * n * n / seconds / 1e12 == Approx(rate).epsilon(0.2));
    }
  }
}

TEST_CASE("GPT-2 124M on an RTX 4090 is about as fast as others trained it") {
  // nanoGPT, PyTorch 2.0, micro-batches of 12: 29 % of 312 TFLOP/s by 6 N + 12 L C T FLOPs a token,
  // N without positions (karpathy/nanoGPT, issue 182). PyTorch's passes are deepspeed-0.9's here.
  Problem problem;
  problem.machine = load_machine("rtx4090-2ssd");
  problem.model = load_model("gpt2-124m");
  problem.workload.batch = problem.workload.micro_batch = 12;
  const double parameters = static_cast<double>(problem.model.parameters()) - 1024.0 * 768;
  const auto flops = [&](const std::string& framework) {
    problem.framework = framework;
    const Costs costs(problem);
    const double seconds =
        12 * (costs.forward_seconds() + costs.backward_seconds(saved_all(problem.model), false)) +
        costs.head_seconds() +
        static_cast<double>(problem.model.parameters()) / costs.rate(Work::gpu_optimizer);
    return 12 * 1024 * (6 * parameters + 12.0 * 12 * 768 * 1024) / seconds;
  };
  CHECK(flops("deepspeed-0.9") == Approx(0.29 * 312e12).epsilon(0.1));
  // Our own kernels are fused: 70 to 78 % of the best product, as llm.c has on A100 and A10.
  CHECK(flops(own_framework) > 0.65 * 165.7e12);
  CHECK(flops(own_framework) < 0.78 * 165.7e12);
}

TEST_CASE("Where products were measured by shape, a layer that was not is timed by them") {
  Problem problem = small_problem(round_machine());
  problem.machine.kernels.push_back({"forward", "another shape", 1e9, 1'000'000, 0, {}});
  const auto seconds = [&] { return KernelTimes(problem).estimate(forward_task(problem)); };
  CHECK(seconds().seconds == Approx(forward_flops(problem) / 1e9 * 1e-3));
  problem.machine.gpu.by_shape = {{512, 128, 0.5}};
  CHECK(seconds().seconds == Approx(ShapeTimes(problem).seconds(forward_task(problem))));
  CHECK(seconds().extrapolated);
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
