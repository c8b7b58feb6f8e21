// The ZeRO policies' bytes per steady step by direction, alone and as DeepSpeed runs them (symbols:
// traffic.hpp).
#include <catch2/catch.hpp>

#include <map>

#include "policies/model/tensors.hpp"
#include "tests/policies/common/traffic.hpp"

using namespace spillway;
using namespace spillway::test;

namespace {

std::map<TaskKind, std::uint64_t> moved(const Problem& problem, const std::string& policy) {
  std::map<TaskKind, std::uint64_t> bytes;
  for (const auto& [key, count] : traffic_of(steady(problem, policy), 2)) bytes[key.first] += count;
  return bytes;
}

Problem one_micro_batch_of_13b() {
  Problem problem = tiny_problem(1, 1);
  problem.model = load_model("gpt-13b", {"layers=8"});
  problem.workload.sequence = 1024;
  return problem;
}

}  // namespace

TEST_CASE("ZeRO-Infinity as DeepSpeed runs it: 20 bytes a parameter read, 18 written, 6 each way") {
  // One bf16 micro-batch, layers only: 2 + 2 of parameters, 12 of state and 4 of gradient read; 4,
  // 12 and 2 written; 4 of parameters and 2 of gradients to the GPU, 2 + 4 of gradients from it.
  Problem problem = one_micro_batch_of_13b();
  problem.framework = "deepspeed-0.9";
  const Symbols s(problem);
  const std::uint64_t layers = s.U * s.P;
  auto bytes = moved(problem, "zero-infinity:max_reuse_distance=0,checkpoints=gpu");
  CHECK(bytes[TaskKind::read] == 20 * layers + (12 + 8) * s.E);
  CHECK(bytes[TaskKind::write] == 18 * layers + (12 + 8) * s.E);
  CHECK(bytes[TaskKind::h2d] == 6 * layers + 2 * s.E);
  CHECK(bytes[TaskKind::d2h] == 6 * layers + 8 * s.E);
}

TEST_CASE("ZeRO-Infinity in our own program: gradients cross once, in their own width") {
  const Problem problem = one_micro_batch_of_13b();
  const Symbols s(problem);
  const std::uint64_t layers = s.U * s.P;
  auto bytes = moved(problem, "zero-infinity:max_reuse_distance=0,checkpoints=gpu");
  CHECK(bytes[TaskKind::read] == 18 * layers + (12 + 4) * s.E);
  CHECK(bytes[TaskKind::write] == 16 * layers + (12 + 4) * s.E);
  CHECK(bytes[TaskKind::h2d] == 4 * layers + 2 * s.E);
  CHECK(bytes[TaskKind::d2h] == 2 * layers + 4 * s.E);
}

TEST_CASE("ZeRO-Infinity with less on the SSD reads and writes less") {
  const Problem problem = one_micro_batch_of_13b();
  const Symbols s(problem);
  const std::uint64_t layers = s.U * s.P;
  const std::string base = "zero-infinity:max_reuse_distance=0,checkpoints=gpu,";
  CHECK(moved(problem, base + "parameters=host")[TaskKind::read] == 14 * layers + 16 * s.E);
  // All parameters are among the first so many elements.
  CHECK(moved(problem, base + "max_in_cpu=1e12")[TaskKind::read] == 14 * layers + 16 * s.E);
  CHECK(moved(problem, base + "gradients=host")[TaskKind::read] == 16 * layers + 12 * s.E);
  // On the GPU only the updated ones arrive.
  CHECK(moved(problem, base + "parameters=gpu")[TaskKind::h2d] == 2 * layers + 2 * s.E);
}

TEST_CASE("What is used again soon is fetched once per micro-batch") {
  // Forward, recomputation and backward: after the last tensor of the last layer come that layer's
  // others, P - t of them; of the layer before, with one layer of P in between three times over.
  Problem problem = tiny_problem(3, 2);
  const Symbols s(problem);
  const std::uint64_t last_tensor = unit_tensors(problem.model, 0).back().elements;
  const auto read = [&](std::uint64_t distance) {
    return traffic_of(steady(problem, fmt::format("zero-infinity:max_reuse_distance={}", distance)),
                      2)[{from_ssd, parameters}];
  };
  // Layer 0 ends a micro-batch and begins the next one: it is fetched once for both.
  CHECK(read(0) == (2 * 2 * 3 - 1) * s.P * s.w);
  CHECK(read(s.P) == (2 * (2 * 3 - 1) - 1) * s.P * s.w);          // all of the last layer
  CHECK(read(4 * s.P) == (2 * (2 * 3 - 2) - 1) * s.P * s.w);      // and of the one before
  CHECK(read(1'000'000'000) == 2 * 3 * s.P * s.w);                // everything
  CHECK(read(s.P - last_tensor) == (2 * 2 * 3 - 1) * s.P * s.w);  // just too far
}

TEST_CASE(
    "ZeRO-Offload as DeepSpeed runs it: gradients to the host and back, and once more in fp32") {
  Problem problem = one_micro_batch_of_13b();
  problem.framework = "deepspeed-0.9";
  const Symbols s(problem);
  const std::uint64_t layers = s.U * s.P;
  auto bytes = moved(problem, "zero-offload:parameters=gpu");
  CHECK(bytes[TaskKind::d2h] == 6 * layers + 8 * s.E);
  CHECK(bytes[TaskKind::h2d] == 4 * layers + 2 * s.E);
  bytes = moved(problem, "zero-offload:parameters=host,max_reuse_distance=0");
  CHECK(bytes[TaskKind::h2d] == 6 * layers + 2 * s.E);
}
