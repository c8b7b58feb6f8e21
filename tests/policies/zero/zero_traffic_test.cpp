// The ZeRO policies' bytes per steady step, against closed forms (symbols: traffic.hpp). W is the
// width of a gradient at the boundary: 4, or 2 where asked for and the gradient is of 16 bit.
#include <catch2/catch.hpp>

#include "policies/zero/zero_fetch.hpp"
#include "tests/policies/common/traffic.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

// No tensor is kept from one use to the next: every micro-step fetches everything twice.
constexpr const char* streaming = "max_reuse_distance=0";

std::string with(const std::string& policy, const std::string& options) {
  return policy + (policy.find(':') == std::string::npos ? ":" : ",") + options;
}

Traffic zero_infinity(const Symbols& s, std::uint64_t W) {
  const std::uint64_t all = s.U * s.P + s.E, fetched = 2 * s.U * s.P * s.M;
  return {{{from_ssd, parameters}, fetched * s.w},
          {{h2d, parameters}, fetched * s.w + s.E * s.w},
          {{to_ssd, parameters}, s.U * s.P * s.w},
          // Out after every micro-batch, and back: straight, or to be added to.
          {{d2h, gradient}, s.M * s.U * s.P * s.g + all * W},
          {{h2d, gradient}, s.M * s.U * s.P * s.g},
          // At the boundary through the optimizer's slots to the SSD, and back into them.
          {{d2h, state}, s.E * W},
          {{to_ssd, gradient}, all * W},
          {{to_ssd, head_gradient}, s.E * W},
          {{from_ssd, state}, 12 * all},
          {{from_ssd, gradient}, all * W},
          {{from_ssd, head_gradient}, s.E * W},
          {{to_ssd, state}, 12 * all},
          {{d2h, checkpoint}, s.M * s.U * s.A},
          {{h2d, checkpoint}, s.M * s.U * s.A}};
}

Traffic without(Traffic traffic, const std::vector<std::pair<TaskKind, BufferKind>>& keys) {
  for (const auto& key : keys) traffic.erase(key);
  return traffic;
}

}  // namespace

TEST_CASE("Traffic of zero-infinity: parameters twice per micro-batch, gradients through the SSD") {
  for (const Problem& problem : problems()) {
    const Symbols s(problem);
    INFO(text(problem));
    const Traffic expected = zero_infinity(s, 4);
    for (const char* options :
         {streaming, "max_reuse_distance=0,pipeline_read=on,pipeline_write=on",
          "max_reuse_distance=0,sub_group_size=3000,pipeline_read=on",
          "max_reuse_distance=0,prefetch_bucket_size=0,param_buffer_count=1,reduce_bucket_size=1",
          "max_reuse_distance=0,max_live_parameters=1,param_buffer_count=20",
          "max_reuse_distance=0,pinned_rounding=off,overflow_check=off,recompute=needed"}) {
      INFO(options);
      check_traffic(steady(problem, with("zero-infinity", options)), 2, expected);
    }
    const std::string policy = with("zero-infinity", streaming);
    check_traffic(steady(problem, with(policy, "gradient_bytes=2")), 2,
                  zero_infinity(s, std::max<std::uint64_t>(2, s.g)));
    Traffic pinned = expected;  // the last block's input is used at once
    pinned[{d2h, checkpoint}] = pinned[{h2d, checkpoint}] = s.M * (s.U - 1) * s.A;
    check_traffic(steady(problem, with(policy, "checkpoints=host")), 2, pinned);
    check_traffic(steady(problem, with(policy, "checkpoints=gpu")), 2,
                  without(expected, {{d2h, checkpoint}, {h2d, checkpoint}}));
  }
}

TEST_CASE("Traffic of zero-infinity with less on the SSD") {
  for (const Problem& problem : problems()) {
    const Symbols s(problem);
    INFO(text(problem));
    const std::string policy = with("zero-infinity", streaming);
    const Traffic expected = zero_infinity(s, 4);
    const Traffic in_host = without(expected, {{from_ssd, parameters}, {to_ssd, parameters}});
    check_traffic(steady(problem, with(policy, "parameters=host")), 2, in_host);
    // All parameters are among the first 1e9 elements.
    check_traffic(steady(problem, with(policy, "max_in_cpu=1e9")), 2, in_host);
    // They stay on the GPU: only the updated ones go there.
    Traffic on_gpu = in_host;
    on_gpu[{h2d, parameters}] = (s.U * s.P + s.E) * s.w;
    check_traffic(steady(problem, "zero-infinity:parameters=gpu"), 2, on_gpu);
    check_traffic(steady(problem, with(policy, "param_persistence_threshold=1e9")), 2, on_gpu);
    // The optimizer takes the accumulators that are in host memory anyway, and the embedding's.
    Traffic kept = without(
        expected,
        {{d2h, state}, {to_ssd, gradient}, {to_ssd, head_gradient}, {from_ssd, head_gradient}});
    kept[{d2h, gradient}] = (s.M * s.U * s.P + s.E) * s.g;
    kept.erase({from_ssd, gradient});
    kept[{d2h, head_gradient}] = s.E * s.g;
    check_traffic(steady(problem, with(policy, "gradients=host")), 2, kept);
  }
}

TEST_CASE("What is used again soon is fetched once per micro-batch") {
  // Forward, recomputation and backward: after the last tensor of the last block come that block's
  // others, P - t of them; of the block before, with one block of P in between three times over.
  Problem problem = tiny_problem(3, 2);
  const Symbols s(problem);
  const std::uint64_t last_tensor = unit_tensors(problem.model, 0).back().elements;
  CHECK(reuse_distance(problem.model, 2, unit_tensors(problem.model, 2).size() - 1) ==
        s.P - last_tensor);
  CHECK(reuse_distance(problem.model, 1, unit_tensors(problem.model, 1).size() - 1) ==
        3 * s.P + s.P - last_tensor);
  const auto read = [&](std::uint64_t distance) {
    return traffic_of(steady(problem, fmt::format("zero-infinity:max_reuse_distance={}", distance)),
                      2)[{from_ssd, parameters}];
  };
  CHECK(read(0) == 2 * 2 * 3 * s.P * s.w);
  CHECK(read(s.P) == 2 * (2 * 3 - 1) * s.P * s.w);          // all of the last block
  CHECK(read(4 * s.P) == 2 * (2 * 3 - 2) * s.P * s.w);      // and of the one before
  CHECK(read(1'000'000'000) == 2 * 3 * s.P * s.w);          // everything
  CHECK(read(s.P - last_tensor) == 2 * 2 * 3 * s.P * s.w);  // just too far
  // 13B: the last block's 0.3e9 elements; the block before is 0.94e9 and more away, and 1.2e9 in
  // its last tensor.
  const ModelSpec large = load_model("gpt-13b");
  std::uint64_t kept = 0;
  for (int block = 0; block < 40; ++block) {
    const auto tensors = unit_tensors(large, block);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (reuse_distance(large, block, t) < 1'000'000'000) kept += tensors[t].elements;
    }
  }
  CHECK(kept == static_cast<std::uint64_t>(unit_elements(large, 39)));
}

TEST_CASE("ZeRO-Infinity in bytes per parameter: 20 read, 18 written, 6 each way over PCIe") {
  // One bf16 micro-batch, blocks only: 2 + 2 of parameters, 12 of state and 4 of gradient read; 4,
  // 12 and 2 written; 4 of parameters and 2 of gradients to the GPU, 2 + 4 of gradients from it.
  Problem problem = tiny_problem(1, 1);
  problem.model = load_model("gpt-13b", {"layers=8"});
  problem.workload.sequence = 1024;
  const Symbols s(problem);
  Traffic traffic =
      traffic_of(steady(problem, "zero-infinity:max_reuse_distance=0,checkpoints=gpu"), 2);
  const std::uint64_t blocks = s.U * s.P;
  CHECK(traffic[{from_ssd, parameters}] + traffic[{from_ssd, state}] +
            traffic[{from_ssd, gradient}] + traffic[{from_ssd, head_gradient}] ==
        20 * blocks + (12 + 8) * s.E);
  CHECK(traffic[{to_ssd, parameters}] + traffic[{to_ssd, state}] + traffic[{to_ssd, gradient}] +
            traffic[{to_ssd, head_gradient}] ==
        18 * blocks + (12 + 8) * s.E);
  CHECK(traffic[{h2d, parameters}] + traffic[{h2d, gradient}] == 6 * blocks + 2 * s.E);
  CHECK(traffic[{d2h, gradient}] + traffic[{d2h, state}] == 6 * blocks + 8 * s.E);
}

TEST_CASE("Traffic of zero-offload: gradients to the host and back, and once more in fp32") {
  for (const Problem& problem : problems()) {
    const Symbols s(problem);
    INFO(text(problem));
    const std::uint64_t all = s.U * s.P + s.E;
    const auto offload = [&](std::uint64_t boundary, std::uint64_t W, std::uint64_t fetched) {
      return Traffic{{{d2h, gradient}, s.M * s.U * s.P * s.g + boundary + s.E * W},
                     {{h2d, gradient}, s.M * s.U * s.P * s.g},
                     {{d2h, head_gradient}, s.E * W},
                     {{h2d, parameters}, fetched}};
    };
    const std::uint64_t fp32 = s.U * s.P * 4, paper = std::max<std::uint64_t>(2, s.g);
    const std::uint64_t streamed = (2 * s.U * s.P * s.M + s.E) * s.w;
    check_traffic(steady(problem, "zero-offload:parameters=gpu"), 2, offload(fp32, 4, all * s.w));
    check_traffic(steady(problem, "zero-offload:parameters=gpu,sub_group_size=3000"), 2,
                  offload(fp32, 4, all * s.w));
    check_traffic(steady(problem, "zero-offload:parameters=gpu,gradient_bytes=2"), 2,
                  offload(0, paper, all * s.w));
    check_traffic(steady(problem, with("zero-offload:parameters=host", streaming)), 2,
                  offload(fp32, 4, streamed));
  }
}
