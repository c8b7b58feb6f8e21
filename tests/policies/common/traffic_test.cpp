// Bytes per steady step and link, against closed forms (symbols: traffic.hpp; the ZeRO policies:
// zero_traffic_test.cpp).
// The embedding's parameters rest on the GPU in every policy, so an update on the CPU sends E w
// back; it has two gradients (its own and the tied head's), so 2 E g leave.
#include <catch2/catch.hpp>

#include <fmt/format.h>

#include "policies/common/policy.hpp"
#include "policies/movement/step.hpp"
#include "tests/policies/common/traffic.hpp"

using namespace spillway;
using namespace spillway::test;

TEST_CASE(
    "Traffic of fuyou: 14 bytes a parameter read and written by the optimizer, gradients never on "
    "the SSD") {
  for (const Problem& problem : problems()) {
    const Symbols s(problem);
    INFO(text(problem));
    const std::uint64_t all = s.U * s.P + s.E, fetches = horizontal_fetches(s);
    const Traffic expected = {{{from_ssd, parameters}, fetches * s.P * s.w},
                              {{h2d, parameters}, fetches * s.P * s.w + s.E * s.w},
                              {{to_ssd, parameters}, s.U * s.P * s.w},
                              {{d2h, gradient}, s.M * s.U * s.P * s.g + s.E * s.g},
                              {{h2d, gradient}, (s.M - 1) * s.U * s.P * s.g},
                              {{d2h, head_gradient}, s.E * s.g},
                              {{from_ssd, state}, 12 * all},
                              {{to_ssd, state}, 12 * all},
                              {{d2h, checkpoint}, s.M * (s.U - 1) * s.A},
                              {{h2d, checkpoint}, s.M * (s.U - 1) * s.A}};
    for (const char* optimizer : {"optimized", "naive", "serial"}) {
      const Schedule schedule =
          steady(problem, fmt::format("fuyou:checkpoints_ssd=0,optimizer={}", optimizer));
      check_traffic_within(schedule, 2, expected, 4 * s.P * s.w, 0);
      for (const BufferInfo& buffer : schedule.buffers()) {
        const bool is_gradient = buffer.kind == gradient || buffer.kind == head_gradient;
        CHECK(!(is_gradient && buffer.tier == Tier::ssd));
      }
    }
    // All checkpoints that leave the GPU go on to the SSD, and come back, but for the last that
    // left: it would be read again before it is written.
    Traffic spilled = expected;
    spilled[{to_ssd, checkpoint}] = spilled[{from_ssd, checkpoint}] =
        s.U > 2 ? s.M * (s.U - 2) * s.A : 0;
    check_traffic_within(steady(problem, "fuyou:checkpoints_ssd=1"), 2, spilled, 4 * s.P * s.w, 0);
  }
}

TEST_CASE(
    "Fuyou in the paper's setting: Ratel (ICDE 2025), traffic by stage in bytes per parameter") {
  // One bf16 micro-batch: 2 read and 2 to the GPU in forward and again in backward (layer U-1, used
  // twice in a row, once), 2 of gradients from the GPU, 12 + 2 written.
  Problem problem = tiny_problem(1, 1);
  problem.model = load_model("gpt-13b", {"layers=8"});
  problem.workload.sequence = 1024;
  const Symbols s(problem);
  const Traffic traffic = traffic_of(steady(problem, "fuyou:checkpoints_ssd=0"), 2);
  const auto layers = static_cast<double>(s.U * s.P);
  const auto per_parameter = [&](TaskKind kind, BufferKind what, std::uint64_t embedding) {
    return static_cast<double>(traffic.at({kind, what}) - embedding) / layers;
  };
  // What is read for backward while it is still in host memory is not read again.
  CHECK(per_parameter(from_ssd, parameters, 0) <= 2 + 2 - 2.0 / 8);
  CHECK(per_parameter(from_ssd, parameters, 0) >= 2 + 2 - 2.0 / 8 - 4 * 2.0 / 8);
  CHECK(per_parameter(from_ssd, state, 12 * s.E) == Approx(12));
  CHECK(per_parameter(to_ssd, state, 12 * s.E) + per_parameter(to_ssd, parameters, 0) ==
        Approx(14));
  CHECK(per_parameter(d2h, gradient, 2 * s.E) == Approx(2));
  CHECK(traffic.count({h2d, gradient}) == 0);
  CHECK(traffic.at({d2h, checkpoint}) ==
        (s.U - 1) * 2 * 1024 * 5120 * 2);  // b s h elements of 2 bytes
}

TEST_CASE("Traffic of resident: none") {
  for (const Problem& problem : problems()) check_traffic(steady(problem, "resident"), 2, {});
}

namespace {

struct Fractions {
  double alpha, optimizer, parameters, checkpoints;
  bool snake;
  std::string policy() const {
    return fmt::format(
        "greedysnake:alpha={},optimizer_ssd={},parameters_ssd={},checkpoints_ssd={},snake={}",
        alpha, optimizer, parameters, checkpoints, snake ? "on" : "off");
  }
};

// Elements on the SSD of a layer that is cut at the delayed fraction, each part split alike.
struct OnSsd {
  std::uint64_t delayed = 0, rest = 0;
};
OnSsd on_ssd(std::uint64_t elements, double alpha, double fraction) {
  const std::uint64_t delayed = on_grid(elements, alpha);
  return {on_grid(delayed, fraction), on_grid(elements - delayed, fraction)};
}

// Vertical. Parameters are fetched for U layers going up and U-1 going down (the last runs once), a
// layer's gradient leaves once. The activation between layers of a micro-batch moves unless the
// next visit is of the same micro-batch, which in snake order (or with one micro-batch) happens
// once per boundary, U-1 times:
//   checkpoints   out: the inputs of all layers, U M, but for what the last layer uses at once and
//   nobody
//                      needs again, 1 (with one layer nothing moves);
//                 in: going up the inputs of layers 1 .. U-1 that are not still there, (U-1)(M-1);
//                     going down all inputs of layers U-2 .. 0, (U-1) M
//   activation gradients: handed from layer to layer, (U-1)(M-1) out and in
// In plain order every boundary moves all M. GreedySnake's code keeps the embedding's output, the
// input of layer 0, elsewhere: with it counted as here, its ((U-1) M - 1) out is our U M - 1. On
// the SSD: the state is read and written once. Parameters: the delayed part of those read going up
// was just updated in host memory and is not read. Checkpoints of all but the 2 first and 2 last
// micro-batches of layers 0 .. U-2.
Traffic vertical(const Symbols& s, const Fractions& f) {
  const bool turns = f.snake || s.M == 1;
  const std::uint64_t moved = turns ? s.M - 1 : s.M;
  const OnSsd state_ssd = on_ssd(s.P, f.alpha, f.optimizer),
              parameters_ssd = on_ssd(s.P, f.alpha, f.parameters);
  const std::uint64_t embedding_ssd = on_grid(s.E, f.optimizer);
  const std::uint64_t inner =
      s.M > 4 ? static_cast<std::uint64_t>(f.checkpoints * static_cast<double>(s.M - 4) + 0.5) : 0;
  // Going down, layer U-1's are still on the GPU and layer U-2's in host memory.
  const std::uint64_t turns_over = s.U > 2 ? s.U - 2 : 0;
  const std::uint64_t state_bytes =
      12 * (s.U * (state_ssd.delayed + state_ssd.rest) + embedding_ssd);
  return {
      {{h2d, parameters}, (2 * s.U - 1) * s.P * s.w + s.E * s.w},
      {{d2h, gradient}, s.U * s.P * s.g + s.E * s.g},
      {{d2h, head_gradient}, s.E * s.g},
      {{d2h, checkpoint}, s.U == 1 ? 0 : (s.U * s.M - (turns ? 1 : 0)) * s.A},
      {{h2d, checkpoint}, (s.U - 1) * (moved + s.M) * s.A},
      {{d2h, activation_gradient}, (s.U - 1) * moved * s.A},
      {{h2d, activation_gradient}, (s.U - 1) * moved * s.A},
      {{from_ssd, state}, state_bytes},
      {{to_ssd, state}, state_bytes},
      {{from_ssd, parameters},
       (s.U * parameters_ssd.rest + turns_over * (parameters_ssd.delayed + parameters_ssd.rest)) *
           s.w},
      {{to_ssd, parameters}, s.U * (parameters_ssd.delayed + parameters_ssd.rest) * s.w},
      {{to_ssd, checkpoint}, (s.U - 1) * inner * s.A},
      {{from_ssd, checkpoint}, (s.U - 1) * inner * s.A}};
}

}  // namespace

TEST_CASE(
    "Traffic of greedysnake: parameters twice per step, gradients once, activations between "
    "layers") {
  for (const Problem& problem : problems()) {
    for (const Fractions& f : {Fractions{0, 1, 1, 1, true}, Fractions{0.25, 1, 1, 1, true},
                               Fractions{0.4, 0.37, 0.71, 0.5, true}, Fractions{1, 1, 1, 1, true},
                               Fractions{0.25, 0, 0, 0, true}, Fractions{0.25, 1, 1, 1, false}}) {
      INFO(text(problem) << ", " << f.policy());
      const Schedule schedule = steady(problem, f.policy());
      const Symbols s(problem);
      check_traffic_within(schedule, 2, vertical(s, f), s.P * s.w, s.P * s.w);
      for (const BufferInfo& buffer : schedule.buffers()) {
        const bool is_gradient = buffer.kind == gradient || buffer.kind == head_gradient ||
                                 buffer.kind == activation_gradient;
        CHECK(!(is_gradient && buffer.tier == Tier::ssd));
      }
    }
  }
}

TEST_CASE("With a delayed optimizer the first step updates less and the epilogue the rest") {
  // alpha = 0.5 of 7 cells rounds to 4 (3.5 away from zero) of 2048 elements.
  const Problem problem = tiny_problem(3, 2);
  const Schedule schedule =
      build_schedule(problem, "greedysnake:alpha=0.5,optimizer_ssd=1,parameters_ssd=1", 3);
  std::map<int, std::uint64_t> updated;  // by step, in layers
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::optimizer && task.layer < 3) updated[task.step] += task.params;
  }
  CHECK(updated == std::map<int, std::uint64_t>{
                       {0, 3 * 3 * 2048}, {1, 3 * 7 * 2048}, {2, 3 * 7 * 2048}, {3, 3 * 4 * 2048}});
}

namespace {

// As the authors' program moves it, in snake order: the bytes of their control flow, replayed. They
// recompute the embedding instead of keeping its output, and keep its optimizer state in host
// memory. What their program moves for nothing is counted, too:
//   activation gradients  out: also the one that stays on the GPU for the next layer, U-1 times;
//                         in: one for a layer below layer 0
//   checkpoints           to the SSD: also those of the layer before the last two, which backward
//                         finds in host memory
Traffic as_coded(const Symbols& s, const Fractions& f) {
  const OnSsd state_ssd = on_ssd(s.P, f.alpha, f.optimizer),
              parameters_ssd = on_ssd(s.P, f.alpha, f.parameters);
  const std::uint64_t inner =
      s.M > 4 ? static_cast<std::uint64_t>(f.checkpoints * static_cast<double>(s.M - 4) + 0.5) : 0;
  const std::uint64_t boundaries = s.U - 1;
  const auto above = [&](std::uint64_t layers) { return s.U > layers ? s.U - layers : 0; };
  const std::uint64_t state_bytes = 12 * s.U * (state_ssd.delayed + state_ssd.rest);
  const std::uint64_t forward_in = above(2) * (s.M - 1);
  const std::uint64_t backward_in = s.U == 1 ? 0 : above(2) * s.M + s.M - 1;
  return {{{h2d, parameters}, (2 * s.U - 1) * s.P * s.w + s.E * s.w},
          {{d2h, gradient}, s.U * s.P * s.g + s.E * s.g},
          {{d2h, head_gradient}, s.E * s.g},
          {{d2h, checkpoint}, s.U == 1 ? 0 : (boundaries * s.M - 1) * s.A},
          {{h2d, checkpoint}, (forward_in + backward_in) * s.A},
          {{d2h, activation_gradient}, boundaries * s.M * s.A},
          {{h2d, activation_gradient}, (boundaries * (s.M - 1) + 1) * s.A},
          {{from_ssd, state}, state_bytes},
          {{to_ssd, state}, state_bytes},
          {{from_ssd, parameters},
           (s.U * parameters_ssd.rest + above(2) * (parameters_ssd.delayed + parameters_ssd.rest)) *
               s.w},
          {{to_ssd, parameters}, s.U * (parameters_ssd.delayed + parameters_ssd.rest) * s.w},
          {{to_ssd, checkpoint}, above(2) * inner * s.A},
          {{from_ssd, checkpoint}, above(3) * inner * s.A}};
}

}  // namespace

// 65B-like: 80 layers of 12 C^2 + 13 C parameters, 16 micro-batches of 2 sequences of 2048 tokens.
// In GB, as worked out from the authors' control flow: 256.1 parameters, 163.3 checkpoints and 79.6
// activation gradients in, 257.7 gradients, 84.8 checkpoints and 84.8 activation gradients out.
// Ours moves as much over PCIe to 2 %.
TEST_CASE(
    "Traffic of greedysnake and of the authors' program on a model of 65 billion parameters") {
  Problem problem = tiny_problem(3, 16);
  problem.model = load_model("gpt-65b");
  problem.workload.batch = 32;
  problem.workload.sequence = 2048;
  const Symbols s(problem);
  const Fractions f{0.25, 0.75, 0, 0.6, true};
  Traffic theirs = as_coded(s, f);
  const auto over_pcie = [](const Traffic& traffic) {
    double bytes = 0;
    for (const auto& [what, of] : traffic)
      bytes += what.first == h2d || what.first == d2h ? static_cast<double>(of) : 0;
    return bytes;
  };
  CHECK(over_pcie(traffic_of(steady(problem, f.policy()), 2)) ==
        Approx(over_pcie(theirs)).epsilon(0.02));
  theirs[{h2d, parameters}] -= s.E * s.w;
  theirs[{d2h, gradient}] -= s.E * s.g;
  const auto gb = [&](TaskKind kind, BufferKind what) {
    return static_cast<double>(theirs.at({kind, what})) * 1e-9;
  };
  CHECK(gb(h2d, parameters) == Approx(256.1).margin(0.05));
  CHECK(gb(h2d, checkpoint) == Approx(163.3).margin(0.05));
  CHECK(gb(h2d, activation_gradient) == Approx(79.6).margin(0.05));
  CHECK(gb(d2h, gradient) == Approx(257.7).margin(0.05));
  CHECK(gb(d2h, checkpoint) == Approx(84.8).margin(0.05));
  CHECK(gb(d2h, activation_gradient) == Approx(84.8).margin(0.05));
  CHECK(gb(from_ssd, state) == Approx(0.75 * 773.2).epsilon(1e-3));
}

// Of M micro-batches k = round(g M) keep their activation gradient on the GPU, those in the middle
// first; of the others all but the one that is handed on at the boundary go out and come back:
// (U-1) (M-1-k) activations each way (for k < M - 1), none with g = 1. Nothing else changes.
TEST_CASE("Traffic of greedysnake with activation gradients that stay on the GPU") {
  for (const char* updates : {"layer", "micro-batch"}) {
    for (const int micro_batches : {4, 5, 8}) {
      for (const double g : {0.0, 0.2, 0.5, 1.0}) {
        const Problem problem = tiny_problem(7, micro_batches);
        const Symbols s(problem);
        const auto k = static_cast<std::uint64_t>(g * micro_batches + 0.5);
        const std::uint64_t moved = k + 1 >= s.M ? 0 : (s.U - 1) * (s.M - 1 - k) * s.A;
        Traffic expected = traffic_of(
            steady(problem, fmt::format("greedysnake:gradients_gpu=0,updates={}", updates)), 2);
        INFO(text(problem) << ", g = " << g << ", updates=" << updates);
        expected[{d2h, activation_gradient}] = expected[{h2d, activation_gradient}] = moved;
        check_traffic(
            steady(problem, fmt::format("greedysnake:gradients_gpu={},updates={}", g, updates)), 2,
            expected);
      }
    }
  }
}
