// Fuyou's step times against what its paper published (Ratel, ICDE 2025): 13B, sequence 1024, one
// micro-batch, on rtx4090-12ssd. Figures of a plot, good to about 0.3 %.
#include <fmt/format.h>
#include <catch2/catch.hpp>

#include <cmath>

#include "policies/common/policy.hpp"
#include "sim/simulate.hpp"
#include "tests/policies/fuyou/paper_swap.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

Problem paper_problem(std::int64_t batch, const std::vector<std::string>& machine = {}) {
  Problem problem;
  problem.model = load_model("gpt-13b");
  problem.machine = load_machine("rtx4090-12ssd", machine);
  problem.workload = {batch, batch, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

double seconds_of(const Problem& problem, const std::string& policy) {
  const Schedule schedule = build_schedule(problem, policy, 6);
  REQUIRE(schedule.fits());
  return simulate(schedule).step_seconds;
}

struct Published {
  std::int64_t x;  // batch, or drives
  double seconds;
};

// Relative errors: their mean and the worst of them, without their signs.
struct Errors {
  void add(double simulated, double published) {
    const double error = std::abs(simulated / published - 1);
    sum += error;
    worst = std::max(worst, error);
    ++count;
  }
  double mean() const { return sum / count; }
  double sum = 0, worst = 0;
  int count = 0;
};

}  // namespace

TEST_CASE("Fig. 5a, 7: recomputing everything gives the published steps, batch 8 to 128") {
  const auto check = [](const std::string& optimizer, const std::vector<Published>& points,
                        double mean, double worst) {
    Errors errors;
    for (const auto& [batch, seconds] : points)
      errors.add(seconds_of(paper_problem(batch), "fuyou:swap=none,optimizer=" + optimizer),
                 seconds);
    INFO(optimizer << ": mean " << errors.mean() << ", worst " << errors.worst);
    CHECK(errors.mean() <= mean);
    CHECK(errors.worst <= worst);
  };
  check("optimized", {{8, 20.0}, {16, 20.2}, {32, 23.8}, {64, 43.8}, {128, 88.6}}, 0.05, 0.10);
  check("serial", {{8, 24.1}, {16, 27.0}, {32, 37.7}, {64, 58.2}}, 0.08, 0.08);
  check("naive", {{8, 21.9}, {16, 25.4}, {32, 33.1}, {64, 53.4}}, 0.10, 0.15);
}

TEST_CASE("Fig. 7: serial takes longer than naive, naive longer than optimized") {
  for (const std::int64_t batch : {8, 16, 32, 64}) {
    for (const char* swap : {"none", "0.2"}) {
      INFO("batch " << batch << ", swap " << swap);
      const auto seconds = [&](const char* optimizer) {
        return seconds_of(paper_problem(batch),
                          fmt::format("fuyou:swap={},optimizer={}", swap, optimizer));
      };
      // Published with everything recomputed; at batch 8, where the drives set the pace, swapping
      // brings the two closer than AdamW's rate is known.
      if (batch > 8 || swap == std::string("none")) CHECK(seconds("serial") > seconds("naive"));
      CHECK(seconds("naive") > seconds("optimized"));
    }
  }
}

TEST_CASE("Fig. 10b: the number of drives at batch 32, within 10 %") {
  // 37.5, 64.3, 81.1, 121.7 and 142.0 TFLOPS at 1.0402e11 FLOP per token.
  const double flops = 1.0402e11 * 32 * 1024 / 1e12;
  for (const auto& [drives, published] :
       {Published{1, flops / 37.5}, Published{2, flops / 64.3}, Published{3, flops / 81.1},
        Published{6, flops / 121.7}, Published{12, flops / 142.0}}) {
    INFO(drives << " drives");
    const Problem problem = paper_problem(32, {fmt::format("ssd.count={}", drives)});
    CHECK(seconds_of(problem, "fuyou:swap=none") == Approx(published).epsilon(0.10));
  }
}

TEST_CASE(
    "Fig. 9b on six drives: convex in what is swapped, least at the start for 24, inside for 48") {
  // Which machine the figure is from is not published: with twelve drives batch 24 would take less
  // than batch 32 does in Fig. 5a. Points are spread over all there is to swap.
  struct Curve {
    std::int64_t batch;
    SwapCase expected;
    double loss_from_everything;  // published: 17 % and 18 %
  };
  for (const Curve& curve :
       {Curve{24, SwapCase::inter_block, 0.17}, Curve{48, SwapCase::between, 0.18}}) {
    const Problem problem = paper_problem(curve.batch, {"ssd.count=6"});
    std::vector<double> seconds;
    constexpr int points = 9;
    // As the figure, from blocks' inputs alone and whole blocks recomputed; parameters are fetched
    // on demand in backward, as the authors' program does: what is not recomputed leaves the GPU
    // time to wait for them.
    seconds.push_back(seconds_of(problem, "fuyou:swap=none,backward_ahead=0"));
    for (int i = 1; i < points; ++i)
      seconds.push_back(seconds_of(
          problem, fmt::format("fuyou:swap={:g},backward_ahead=0", i / double{points - 1})));
    std::size_t least = 0;
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      INFO("batch " << curve.batch << ", point " << i << ": " << seconds[i] << " s");
      if (seconds[i] < seconds[least]) least = i;
      // No point lies above the middle of its neighbours, but for the pipeline's ends: 1 %.
      if (i > 0 && i + 1 < seconds.size())
        CHECK(seconds[i] <= (seconds[i - 1] + seconds[i + 1]) / 2 * 1.01);
    }
    INFO("batch " << curve.batch);
    if (curve.expected == SwapCase::inter_block) {
      CHECK(seconds.front() <= seconds[least] * 1.01);
    } else {
      CHECK(least > 0);
      CHECK(seconds.front() > seconds[least] * 1.03);  // published: 12 %
    }
    CHECK(seconds.back() / seconds[least] - 1 == Approx(curve.loss_from_everything).margin(0.06));
    // What the cost model chooses is as good as the best of the points.
    CHECK(seconds_of(problem, "fuyou:swap=auto,backward_ahead=0") <= seconds[least] * 1.01);
  }
}

TEST_CASE("The cost model's choice is never slower than recomputing everything") {
  for (const std::int64_t batch : {8, 32, 64, 96, 128}) {
    for (const char* optimizer : {"optimized", "naive", "serial"}) {
      for (const char* drives : {"ssd.count=1", "ssd.count=12"}) {
        INFO("batch " << batch << ", " << optimizer << ", " << drives);
        const Problem problem = paper_problem(batch, {drives});
        const std::string policy = fmt::format("fuyou:optimizer={}", optimizer);
        CHECK(seconds_of(problem, policy + ",swap=auto") <=
              seconds_of(problem, policy + ",swap=none") * 1.005);
      }
    }
  }
}

TEST_CASE("Recomputation is charged for what is recomputed: hardware FLOPs over model FLOPs") {
  // 3 forwards of blocks and head, and the down-projection (8 of 24 parts of the matrices) not
  // again.
  const Problem problem = paper_problem(8);
  const auto ratio = [&](const std::string& policy) {
    const SimulationResult result = simulate(build_schedule(problem, policy, 6));
    return result.hardware_tflops / result.model_tflops;
  };
  const double head = problem.model.head_forward_flops(8, 1024);
  const double blocks = problem.model.forward_flops(8, 1024) - head;
  const double down = 2.0 * 8 * 1024 * 5120 * 20480 * 40;
  CHECK(ratio("fuyou:swap=none") == Approx((4 * blocks + 3 * head) / (3 * (blocks + head))));
  CHECK(ratio("fuyou:swap=0") == Approx((4 * blocks - down + 3 * head) / (3 * (blocks + head))));
  CHECK(ratio("fuyou:swap=all") == Approx(1));
}
