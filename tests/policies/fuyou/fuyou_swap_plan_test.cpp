// The cost model and the algorithm of Ratel (ICDE 2025), section IV-D, one equation at a time.
// Symbols: L layers of hidden size h, b sequences of s tokens, P parameters, 16 bits.

#include <catch2/catch.hpp>

#include <random>

#include "policies/model/operators.hpp"
#include "tests/policies/fuyou/paper_swap.hpp"
#include "tests/policies/schedules.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

DriveRates drives_by(SsdLaw law, const Machine::Ssd::Row& rates, double mixed_gain = 1) {
  Machine::Ssd ssd;
  ssd.law = law;
  ssd.mixed_gain = mixed_gain;
  return drive_rates(ssd, rates);
}
DriveRates times_add(double read, double write) {
  return drives_by(SsdLaw::simplex, {read, write, 0});
}

constexpr auto all = OptimizerOverlap::all, nothing_of_it = OptimizerOverlap::nothing;
constexpr double gib = 1024.0 * 1024 * 1024;

Problem paper_problem(const std::string& model, std::int64_t batch,
                      const std::vector<std::string>& machine = {}) {
  Problem problem;
  problem.model = load_model(model);
  problem.machine = load_machine("rtx4090-12ssd", machine);
  problem.workload = {batch, batch, 1024, Precision::bf16, GradientWidth::automatic};
  return problem;
}

double sum(const std::vector<SwapOperator>& operators, double SwapOperator::*what) {
  double total = 0;
  for (const SwapOperator& one : operators) total += one.*what;
  return total;
}

// 13B on twelve SSDs in the paper's round numbers: P = 13e9, 20 GB/s each way, 21 GB/s of PCIe.
SwapModel round_numbers() {
  SwapModel model;
  model.gpu_forward = 950.0 / 160;  // 950e12 FLOPs at 160e12 a second
  model.gpu_backward = 2 * model.gpu_forward;
  model.gpu_flops = 160e12;
  model.link = 21e9;
  model.drives = times_add(20e9, 20e9);
  model.parameter_bytes = model.gradient_bytes = 2 * 13e9;
  model.state_bytes = 12 * 13e9;
  model.host_available_bytes = 600e9;
  return model;
}

// A step and operators whose every quantity is random, some of them 0.
struct Random {
  explicit Random(unsigned seed) : random(seed) {
    model.gpu_forward = between(0.1, 100);
    model.gpu_backward = between(0.1, 200);
    model.gpu_flops = between(1, 20);
    model.link = between(1, 30);
    const auto law = static_cast<SsdLaw>(random() % 4);
    model.drives = drives_by(law, {between(1, 30), between(1, 30), between(1, 30)}, between(1, 2));
    model.parameter_bytes = between(0, 100);
    model.state_bytes = between(0, 100);
    model.gradient_bytes = between(0, 100);
    model.host_available_bytes = between(0, 300);
    model.inter_block_bytes = between(0, 20);
    model.overlap = static_cast<OptimizerOverlap>(random() % 3);
    model.micro_batches = 1 + static_cast<int>(random() % 3);
    const int count = 1 + static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i)
      operators.push_back({"one", 0, 0, random() % 5 == 0 ? 0 : between(0, 100), between(1, 50)});
    operators = by_benefit(operators);
    recomputed = sum(operators, &SwapOperator::flops) + between(0, 50);
  }
  double between(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  }

  std::mt19937 random;
  SwapModel model;
  std::vector<SwapOperator> operators;
  double recomputed = 0;
};

}  // namespace

TEST_CASE(
    "Activations as the paper counts them: 34 s b h L bytes, 2 s b h L of them between layers") {
  for (const char* name : {"gpt-6b", "gpt-13b", "gpt-30b", "gpt-65b", "gpt-135b", "gpt-175b",
                           "gpt-276b", "gpt-412b"}) {
    for (const std::int64_t batch : {1, 24, 32}) {
      INFO(name << ", batch " << batch);
      const Problem problem = paper_problem(name, batch);
      const double sbhl =
          1024.0 * static_cast<double>(batch * problem.model.hidden * problem.model.layers);
      CHECK(paper_inter_block_bytes(problem) == 2 * sbhl);
      CHECK(paper_inter_block_bytes(problem) +
                sum(paper_swap_operators(problem), &SwapOperator::bytes) ==
            34 * sbhl);
    }
  }
  // 13B at batch 32: 12.5 GiB between layers, 212.5 GiB in all.
  const Problem problem = paper_problem("gpt-13b", 32);
  CHECK(paper_inter_block_bytes(problem) == 12.5 * gib);
  CHECK(paper_inter_block_bytes(problem) +
            sum(paper_swap_operators(problem), &SwapOperator::bytes) ==
        212.5 * gib);
}

TEST_CASE(
    "Activations as Spillway keeps them: the paper's without mlp-proj, with fp32 statistics") {
  const Problem problem = paper_problem("gpt-13b", 32);
  const double tokens = 32 * 1024, layers = 40, heads = 40, h = 5120;
  const double statistics = 4 * (4 + heads) * tokens * layers;
  CHECK(sum(swap_operators(problem), &SwapOperator::bytes) ==
        (32 - 2) * tokens * h * layers + statistics);
  // And, padded to 4096 bytes a tensor, what a buffer of them takes: here nothing to pad.
  CHECK(static_cast<double>(saved_bytes(problem, gpt_saved::all)) * layers ==
        sum(swap_operators(problem), &SwapOperator::bytes));
}

TEST_CASE("Eq. 6: 4 h FLOPs per byte for mlp-proj, h for the other products, in the code's order") {
  const Problem problem = paper_problem("gpt-13b", 8);
  const auto paper = by_benefit(paper_swap_operators(problem));
  std::string order;
  for (const SwapOperator& one : paper) {
    if (one.layer == 0) order += one.name + " ";
    if (one.name == "mlp-proj") CHECK(offload_benefit(one) == 4 * 5120);
    if (one.name == "attn-proj" || one.name == "qkv" || one.name == "fc")
      CHECK(offload_benefit(one) == 5120);
    if (one.name == "attention") CHECK(offload_benefit(one) == 2 * 1024);
    if (one.name == "norms" || one.name == "gelu") CHECK(offload_benefit(one) == 0);
  }
  CHECK(order == "mlp-proj attn-proj qkv fc attention norms gelu ");
  // Ties: the lower index first, operator by operator.
  CHECK(paper[40].name == "attn-proj");
  for (std::size_t i = 0; i < paper.size(); ++i) CHECK(paper[i].layer == static_cast<int>(i % 40));
  // Ours: the same order; attention also keeps its log-sum-exp.
  order.clear();
  for (const SwapOperator& one : by_benefit(swap_operators(problem)))
    if (one.layer == 39) order += one.name + " ";
  CHECK(order == "attn-proj qkv fc attention norm-1 norm-2 gelu ");
  CHECK(offload_benefit({"free", 0, 0, 1, 0}) > 1e300);
}

TEST_CASE(
    "What an operator saves is what backward is not charged: sums over any set of operators") {
  for (const char* name : {"gpt-13b", "llama-7b"}) {
    const Problem problem = paper_problem(name, 2);
    std::vector<SwapOperator> layer;
    for (const SwapOperator& one : swap_operators(problem))
      if (one.layer == 0) layer.push_back(one);
    REQUIRE(layer.size() == 7);
    const double nothing = recompute_flops(problem, saved_none, false);
    SavedMask every = 0;
    for (unsigned set = 0; set < 128; ++set) {
      SavedMask mask = 0;
      double saved = 0;
      for (std::size_t i = 0; i < 7; ++i) {
        if ((set >> i & 1) == 0) continue;
        mask = static_cast<SavedMask>(mask | layer[i].tensors);
        saved += layer[i].flops;
      }
      INFO(name << " set " << set);
      CHECK(recompute_flops(problem, mask, false) == Approx(nothing - saved).margin(1));
      every = static_cast<SavedMask>(every | mask);
    }
    CHECK(every == gpt_saved::all);
    CHECK(recompute_flops(problem, gpt_saved::all, false) == 0);
  }
  // A whole layer forward is what is recomputed with nothing kept, down-projection included.
  const Problem problem = paper_problem("gpt-13b", 2);
  CHECK(recompute_flops(problem, saved_none, true) == problem.model.layer_forward_flops(2, 1024));
  // Attention without its log-sum-exp: the scores, half of it, are computed again.
  const double scores = 2.0 * 2 * 1024 * 1024 * 5120;
  const auto without_statistics = static_cast<SavedMask>(gpt_saved::all & ~gpt_saved::statistics);
  CHECK(recompute_flops(problem, without_statistics, false) == scores);
}

TEST_CASE("Eq. 2: forward is as long as the longest of GPU, swapping, parameters, SSD") {
  SwapModel model = round_numbers();
  CHECK(forward_seconds(model, 0) == Approx(950.0 / 160));
  CHECK(forward_seconds(model, 210e9) == Approx(210.0 / 21));
  model.gpu_forward = model.gpu_backward = 0;
  CHECK(forward_seconds(model, 0) == Approx(26.0 / 20));  // 2P / BW_S2M > 2P / BW_G
  model.drives = times_add(52e9, 20e9);
  CHECK(forward_seconds(model, 0) == Approx(26.0 / 21));
  model.host_available_bytes = 100e9;  // 200e9 swapped, 100e9 of it spilled
  CHECK(forward_seconds(model, 200e9) == Approx(200.0 / 21));
  model.drives = times_add(52e9, 5e9);
  CHECK(forward_seconds(model, 200e9) == Approx(26.0 / 52 + 100.0 / 5));
}

TEST_CASE(
    "Eq. 3: what host memory does not hold spills, neither less than nothing nor more than all") {
  SwapModel model;
  model.host_available_bytes = 100;
  CHECK(spilled_bytes(model, 60) == 0);
  CHECK(spilled_bytes(model, 100) == 0);
  CHECK(spilled_bytes(model, 130) == 30);
  model.host_available_bytes = 0;
  CHECK(spilled_bytes(model, 130) == 130);
}

TEST_CASE("Eq. 5: with P = 13e9 and SSDs of 20 GB/s each way, their term is 18.2 s") {
  SwapModel model = round_numbers();
  model.gpu_forward = model.gpu_backward = 0;
  CHECK(backward_seconds(model, 0, 0, all) == Approx(18.2));  // 14P/20e9 + 14P/20e9
  CHECK(backward_seconds(model, 0, 0, nothing_of_it) == Approx(26.0 / 20));
  model.drives = times_add(20e9, 10e9);
  CHECK(backward_seconds(model, 0, 0, all) == Approx(9.1 + 18.2));
  model.host_available_bytes = 50e9;  // 90e9 swapped, 40e9 spilled: read back
  CHECK(backward_seconds(model, 90e9, 0, all) == Approx((182.0 + 40) / 20 + 18.2));
  model = round_numbers();
  CHECK(backward_seconds(model, 0, 3200e12, all) == Approx((2 * 950.0 + 3200) / 160));
  model.drives = times_add(1e15, 1e15);
  CHECK(backward_seconds(model, 0, 0, all) == Approx(2 * 950.0 / 160));
  CHECK(backward_seconds(model, 400e9, 0, all) == Approx((26.0 + 400) / 21));
  model.gradient_bytes = 600e9;
  CHECK(backward_seconds(model, 400e9, 0, all) == Approx(600.0 / 21));
}

TEST_CASE("Eq. 1: T_f + T_b, where the optimizer counts in the last backward, or beside it") {
  SwapModel model = round_numbers();
  const double forward = 950.0 / 160, gpu = 2 * 950.0 / 160;
  CHECK(step_seconds(model, 0, 0) == Approx(forward + 18.2));
  model.overlap = OptimizerOverlap::nothing;  // 2P read under backward, 12P and 14P after it
  CHECK(step_seconds(model, 0, 0) == Approx(forward + gpu + 26 * 13.0 / 20));
  model.overlap = OptimizerOverlap::writes;  // 12P read beside it
  CHECK(step_seconds(model, 0, 0) == Approx(forward + gpu + 12 * 13.0 / 20));
  model.gpu_forward = model.gpu_backward =
      1e-4;  // 2P read and 14P written take longer than the GPU, which is instant
  CHECK(step_seconds(model, 0, 0) == Approx(2 * 13.0 / 20 + 16 * 13.0 / 20 + 12 * 13.0 / 20));
  model = round_numbers();
  model.micro_batches = 3;
  CHECK(step_seconds(model, 0, 0) == Approx(3 * forward + 2 * gpu + 18.2));
}

TEST_CASE("Eq. 7: FLOP_r falls by whole operators, and within the next one in proportion") {
  const std::vector<SwapOperator> operators = {{"a", 0, 0, 60, 10}, {"b", 0, 0, 40, 20}};
  CHECK(recomputed_flops(operators, 130, 0) == 130);
  CHECK(recomputed_flops(operators, 130, 5) == 100);
  CHECK(recomputed_flops(operators, 130, 10) == 70);
  CHECK(recomputed_flops(operators, 130, 25) == 40);
  CHECK(recomputed_flops(operators, 130, 30) == 30);
  CHECK(recomputed_flops(operators, 130, 99) == 30);
}

TEST_CASE("Eq. 8: the step time is convex in the swapped bytes") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random one(seed);
    const auto curve = swap_curve(one.model, one.operators, one.recomputed);
    REQUIRE(curve.size() == one.operators.size() + 1);
    double slope = -1e300;
    for (std::size_t i = 1; i < curve.size(); ++i) {
      const double next =
          (curve[i].seconds - curve[i - 1].seconds) / (curve[i].swapped - curve[i - 1].swapped);
      CHECK(next >= slope - 1e-9);
      slope = next;
      CHECK(curve[i].recomputed_flops ==
            Approx(recomputed_flops(one.operators, one.recomputed,
                                    curve[i].swapped - one.model.inter_block_bytes))
                .margin(1e-6));
    }
  }
}

TEST_CASE("Algorithm 1 finds the fastest prefix of the operators") {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    Random one(seed);
    const auto curve = swap_curve(one.model, one.operators, one.recomputed);
    const auto chosen =
        choose_swaps(one.model, one.operators, one.model.inter_block_bytes, one.recomputed);
    double least = curve[0].seconds;
    for (const SwapPoint& point : curve) least = std::min(least, point.seconds);
    CHECK(curve[chosen.size()].seconds == Approx(least));
    const SwapCase which = swap_case(curve);
    CHECK((which == SwapCase::inter_block) == (chosen.empty()));
  }
}

TEST_CASE(
    "Algorithm 1 from nothing goes on to A_interBlock even where that makes the step longer") {
  SwapModel model;
  model.link = 1;  // the longer the more is swapped
  model.inter_block_bytes = 25;
  const std::vector<SwapOperator> operators = {
      {"a", 0, 0, 0, 10}, {"b", 0, 0, 0, 10}, {"c", 0, 0, 0, 10}, {"d", 0, 0, 0, 10}};
  CHECK(choose_swaps(model, operators, 0, 0).size() == 3);  // 30 bytes, the first to reach 25
  model.inter_block_bytes = 35;
  CHECK(choose_swaps(model, operators, 0, 0).size() == 4);
  CHECK(choose_swaps(model, operators, 35, 0).empty());
}

TEST_CASE(
    "The three cases: Ratel's 13B at batch 24 and 48 on six SSDs, and where the GPU is slow") {
  const auto which = [](const Problem& problem) {
    const SwapModel model = swap_model(problem, Costs(problem), 600e9);
    return swap_case(
        swap_curve(model, by_benefit(paper_swap_operators(problem)),
                   static_cast<double>(problem.model.layers) * forward_flops(problem)));
  };
  CHECK(which(paper_problem("gpt-13b", 24, {"ssd.count=6"})) == SwapCase::inter_block);
  CHECK(which(paper_problem("gpt-13b", 48, {"ssd.count=6"})) == SwapCase::between);
  CHECK(which(paper_problem("gpt-13b", 48, {"gpu.flops=20TFLOPS"})) == SwapCase::everything);
}

TEST_CASE("Swapping within a number of bytes takes whole operators, in order") {
  const std::vector<SwapOperator> operators = {{"a", 0, gpt_saved::qkv, 3, 10},
                                               {"b", 1, gpt_saved::fc, 2, 10},
                                               {"c", 0, gpt_saved::fc, 1, 5}};
  CHECK(swaps_within(operators, 0).empty());
  CHECK(swaps_within(operators, 19).size() == 1);
  CHECK(swaps_within(operators, 20).size() == 2);
  CHECK(swaps_within(operators, 25).size() == 3);
  CHECK(swap_masks(swaps_within(operators, 25), 3) ==
        std::vector<SavedMask>{gpt_saved::qkv | gpt_saved::fc, gpt_saved::fc, saved_none});
  CHECK(swap_masks({}, 2) == std::vector<SavedMask>{saved_none, saved_none});
}
