// GreedySnake's linear program and its search, against figures worked out elsewhere.
#include "policies/greedysnake/greedysnake_lp.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/errors.hpp"
#include "policies/model/units.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;

namespace {

// GPT-65B-like: 80 layers of 3 * 2^28 parameters, micro-batches of two sequences of 2048 tokens at
// hidden 8192; PCIe at 24 GB/s, SSD 6 and 5 GB/s, Adam at 1.5e9 parameters/s, 400 GB of DRAM.
DriveRates drives_by(SsdLaw law, double mixed_gain = 1) {
  Machine::Ssd ssd;
  ssd.law = law;
  ssd.mixed_gain = mixed_gain;
  return drive_rates(ssd, {6e9, 5e9, 7e9});
}

GreedySnakeInputs like_65b() {
  GreedySnakeInputs in;
  in.units = 80;
  in.unit_parameters = 805306368;
  in.activation_elements = 33554432;
  in.forward_seconds = 0.035;
  in.backward_seconds = 0.070;
  in.other_seconds = 0.05;
  in.gpu_memory = 1e10;
  in.host_memory = 4e11;
  in.pcie = 24e9;
  in.drives = drives_by(SsdLaw::simplex);
  in.adam_rate = 1.5e9;
  return in;
}

}  // namespace

// Step, forward and backward time of a layer as an independent restatement of the model in another
// solver gives them, to the digits printed here.
TEST_CASE("GreedySnake's linear program gives the golden step times to every digit") {
  struct Golden {
    int micro_batches;
    double alpha, step, forward, backward;
  };
  for (const Golden& g : {Golden{1, 0, 201.582, .07270, 2.44645},
                          {4, 0, 213.252, .14, 2.52314},
                          {8, 0, 228.435, .28, 2.57044},
                          {8, .10, 209.323, .29184, 2.31969},
                          {16, 0, 258.803, .56, 2.66503},
                          {16, .25, 224.355, .75314, 2.04130},
                          {24, .12, 270.000, .84, 2.52},
                          {32, 0, 360.000, 1.12, 3.36}}) {
    INFO(g.micro_batches << " micro-batches, alpha " << g.alpha);
    const auto plan = solve_greedysnake(like_65b(), g.micro_batches, g.alpha);
    REQUIRE(plan);
    CHECK(plan->step_seconds == Approx(g.step).margin(0.0006).epsilon(0));
    CHECK(plan->unit_forward_seconds == Approx(g.forward).margin(0.000006).epsilon(0));
    CHECK(plan->unit_backward_seconds == Approx(g.backward).margin(0.000006).epsilon(0));
  }
}

// f = (24 T b C^2 + 4 b T^2 C) / 200 TFLOP/s, b = 2 f, P = 12 C^2 + 13 C; alpha by the 1 % rule.
TEST_CASE("GreedySnake's search chooses alpha as its authors do: step times of 65B and 175B") {
  struct Shape {
    double hidden, units, sequences, gpu_memory;
    std::vector<std::pair<int, double>> steps;
  };
  for (const Shape& shape :
       {Shape{8192, 80, 2, 1e10, {{1, 195.5}, {16, 224.2}, {24, 265.1}, {32, 353.4}}},
        Shape{12288, 96, 1, 5e9, {{1, 785}, {16, 814}, {64, 941}}}}) {
    GreedySnakeInputs in = like_65b();
    const double c = shape.hidden, b = shape.sequences, t = 2048;
    in.units = shape.units;
    in.unit_parameters = 12 * c * c + 13 * c;
    in.activation_elements = b * t * c;
    in.forward_seconds = (24 * t * b * c * c + 4 * b * t * t * c) / 200e12;
    in.backward_seconds = 2 * in.forward_seconds;
    in.gpu_memory = shape.gpu_memory;
    for (const auto& [micro_batches, step] : shape.steps) {
      INFO(shape.units << " layers, " << micro_batches << " micro-batches");
      const auto plan = best_alpha(in, micro_batches);
      REQUIRE(plan);
      CHECK(plan->step_seconds == Approx(step).epsilon(0.001));
    }
  }
}

TEST_CASE("GreedySnake's model with many micro-batches is bound by compute") {
  // M (2 f + b) a layer, and the head.
  const double compute = 80 * 0.140 + 0.05;
  CHECK(best_alpha(like_65b(), 40)->step_seconds / 40 == Approx(compute).epsilon(0.01));
  // Delaying gains little with one micro-batch, most in between, nothing once bound by compute.
  const auto gain = [](int micro_batches) {
    return solve_greedysnake(like_65b(), micro_batches, 0)->step_seconds /
           best_alpha(like_65b(), micro_batches)->step_seconds;
  };
  CHECK(gain(1) < 1.05);
  CHECK(gain(16) > 1.10);
  CHECK(gain(32) == 1);
}

// Whatever is chosen keeps the constraints it was chosen under: here host memory (4) and the stash
// (5), written out once more.
TEST_CASE("GreedySnake's placements keep host memory and find room for the delayed gradients") {
  const GreedySnakeInputs base = like_65b();
  for (int micro_batches : {1, 3, 4, 5, 9, 40}) {
    for (double alpha : {0.0, 0.05, 0.3, 0.8, 1.0}) {
      for (double memory : {1e11, 2e11, 3e11, 6e11, 2e12}) {
        GreedySnakeInputs in = base;
        in.host_memory = memory;
        const auto plan = solve_greedysnake(in, micro_batches, alpha);
        if (!plan) continue;
        INFO(micro_batches << " micro-batches, alpha " << alpha << ", " << memory << " bytes");
        const double A = in.activation_elements * 2, P = in.unit_parameters, L = in.units,
                     M = micro_batches, late = std::max(alpha, 1 - alpha);
        const double x_c = plan->checkpoints_ssd, x_p = plan->parameters_ssd,
                     x_o = plan->optimizer_ssd, g = plan->gradients_gpu;
        const double used = (1 - x_c) * M * A * L + (1 - g) * M * A +
                            x_c * A * std::min(M, 4.0) * L + x_c * A * std::max(M - 4, 0.0) * 2 +
                            (1 - x_p) * P * L * 2 + x_p * P * 2 + (1 - x_o) * P * L * 12 +
                            late * P * 8 + late * P * 36 * x_o + x_p * (1 - alpha) * P * 4;
        CHECK(used <= memory * (1 + 1e-6));
        CHECK(alpha * (1 - x_p) * P * L * 2 + (1 - x_c) * M * A * L >=
              alpha * P * L * 4 * (1 - 1e-6));
        CHECK(g * M * A <= in.gpu_memory * (1 + 1e-6));
      }
    }
  }
}

TEST_CASE("GreedySnake's model says when nothing fits, and what input is wrong") {
  GreedySnakeInputs in = like_65b();
  in.host_memory = 1e10;
  CHECK(!solve_greedysnake(in, 8, 0.1));
  CHECK(!best_alpha(in, 8));
  // One micro-batch has too few checkpoints to lay 80 % of the gradients under.
  CHECK(!solve_greedysnake(like_65b(), 1, 0.8));
  // With memory of their own it takes longer than with less of them: there is less for the rest.
  in = like_65b();
  in.stash_may_grow = true;
  const auto grown = solve_greedysnake(in, 1, 0.8);
  REQUIRE(grown);
  CHECK(grown->step_seconds > solve_greedysnake(in, 1, 0.03)->step_seconds);
  CHECK(solve_greedysnake(in, 16, 0.25)->step_seconds ==
        Approx(solve_greedysnake(like_65b(), 16, 0.25)->step_seconds));
  in = like_65b();
  in.drives.read = 0;
  CHECK_THROWS_AS(solve_greedysnake(in, 1, 0), InputError);
  CHECK_THROWS_WITH(solve_greedysnake(in, 1, 0), Catch::Contains("SSD read rate"));
  CHECK_THROWS_WITH(solve_greedysnake(like_65b(), 1, 1.5), Catch::Contains("alpha = 1.5"));
  CHECK_THROWS_WITH(solve_greedysnake(like_65b(), 0, 0), Catch::Contains("micro-batches is 0"));
}

// x_o 12 P (1/R + 1/W) is the most one pass pays where times add; drives that read while they
// write pay the larger of both, and a cap on both together, or a mix that gains, lies between.
TEST_CASE("GreedySnake's model under the laws of the SSD") {
  GreedySnakeInputs in = like_65b();
  const double adds = solve_greedysnake(in, 1, 0)->step_seconds;
  in.drives = drives_by(SsdLaw::capped);
  const double capped = solve_greedysnake(in, 1, 0)->step_seconds;
  in.drives = drives_by(SsdLaw::duplex);
  const double independent = solve_greedysnake(in, 1, 0)->step_seconds;
  CHECK(independent < capped);
  CHECK(capped < adds);
  CHECK(adds / independent > 1.6);
  const auto mixed = [&](double gain) {
    in.drives = drives_by(SsdLaw::mixed, gain);
    return solve_greedysnake(in, 1, 0)->step_seconds;
  };
  CHECK(mixed(1) == Approx(adds).epsilon(1e-9));
  CHECK(mixed(1.3) < adds);
  CHECK(mixed(1.3) > independent);
  CHECK(mixed(2) == Approx(independent).epsilon(1e-9));
}

TEST_CASE("GreedySnake's model gives the same on every thread") {
  std::vector<double> steps(4);
  std::vector<std::thread> threads;
  for (double& step : steps) {
    threads.emplace_back([&step] { step = best_alpha(like_65b(), 12)->step_seconds; });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double step : steps) CHECK(step == best_alpha(like_65b(), 12)->step_seconds);
}

TEST_CASE("The inputs of GreedySnake's model follow from model, machine and workload") {
  Problem problem = test::tiny_problem(3, 8);
  problem.model = load_model("gpt-65b");
  problem.machine =
      load_machine("a100-80gb", {"gpu.flops=200TFLOPS", "gpu.launch=0s", "gpu.multiprocessors=0",
                                 "gpu.attention_flops=0FLOPS", "gpu.product_gain=0"});
  problem.workload = {16, 2, 2048, Precision::bf16, GradientWidth::automatic};
  const GreedySnakeInputs in = greedysnake_inputs(problem, Costs(problem));
  CHECK(in.units == 80);
  CHECK(in.unit_parameters == Approx(12.0 * 8192 * 8192 + 13 * 8192).epsilon(1e-5));
  CHECK(in.activation_elements == 2 * 2048 * 8192);
  CHECK(in.forward_seconds ==
        Approx((24.0 * 4096 * 8192 * 8192 + 4.0 * 2 * 2048 * 2048 * 8192) / 200e12));
  CHECK(in.backward_seconds == Approx(2 * in.forward_seconds));
  CHECK(in.other_seconds == Approx(6.0 * 4096 * 8192 * 50257 / 200e12));
  CHECK(in.gradient_bytes == 4);
  // With 16-bit moments 4 bytes a parameter of the embedding's state are free, and AdamW, which
  // moves 16 + 4 + 2 bytes in place of 24 + 4 + 2, is faster by as much.
  Problem narrow = problem;
  narrow.workload.moments = MomentWidth::bf16;
  const GreedySnakeInputs less = greedysnake_inputs(narrow, Costs(narrow));
  CHECK(in.moment_bytes == 4);
  CHECK(less.moment_bytes == 2);
  CHECK(less.host_memory - in.host_memory ==
        4.0 * static_cast<double>(unit_elements(problem.model, problem.model.layers)));
  CHECK(less.adam_rate == Approx(in.adam_rate * 30 / 22));
  CHECK(in.gpu_memory < static_cast<double>(problem.machine.gpu.memory));
  CHECK(in.host_memory < static_cast<double>(problem.machine.host.memory));
  REQUIRE(in.drives.limits.size() == 3);
  CHECK(in.drives.limits[2].name == "ssd.total");
  // A measured kernel of just this shape counts, whatever the FLOP/s say.
  Task task;
  task.kind = TaskKind::forward;
  problem.machine.kernels.push_back({"forward", kernel_shape(problem, task), 1, 50'000'000, 0, {}});
  CHECK(greedysnake_inputs(problem, Costs(problem)).forward_seconds == 0.05);
  problem.machine.ssd.write = 0;
  CHECK_THROWS_WITH(greedysnake_inputs(problem, Costs(problem)), Catch::Contains("ssd.write"));
}
