// Bytes of what lies between the two passes of a layer's backward.
#include "policies/model/weight_operands.hpp"

#include <catch2/catch.hpp>

#include "tests/policies/schedules.hpp"

using namespace spillway;

namespace {

// Micro-batches of 4 sequences of 128 tokens, C = 64: of a column, what 512 rows take is a multiple
// of 4096 bytes for every tensor below.
Problem wide_rows(Backend backend) {
  Problem problem = test::tiny_problem(2, 1);
  problem.model.hidden = 64;
  problem.model.heads = problem.model.kv_heads = 4;
  problem.model.ffn = 4 * 64;
  problem.workload.batch = problem.workload.micro_batch = 4;
  problem.workload.sequence = problem.model.positions = 128;
  problem.workload.precision = Precision::bf16;
  problem.workload.sequences_at_once = 2;
  problem.trains_on = backend;
  return problem;
}

}  // namespace

TEST_CASE("Operands of the weights' gradient: on the CPU, activations and fp32 gradients") {
  // Gradients of the output (C), of up (4C), norm2 (C), the residual (C), qkv (3C), norm1 (C); of
  // activations norm1, attention, residual, norm2 (C each), GELU (4C), and the statistics in fp32,
  // two of each norm and one of each head.
  const Problem problem = wide_rows(Backend::cpu);
  const std::uint64_t gradients = 512 * 11 * 64 * 4;
  CHECK(weight_operand_bytes(problem, gpt_saved::all) == gradients);
  CHECK(weight_operand_bytes(problem, saved_none) ==
        gradients + 512 * 8 * 64 * 2 + 512 * (4 + 4) * 4);
}

TEST_CASE("Operands of the weights' gradient: on a GPU, those of the matrices, and sums") {
  // Gradients of the output (C), of up (4C), the residual (C) and qkv (3C) in bf16. The sums: of
  // both norms (4C) and of the biases of qkv (3C), the projection (C), up (4C) and down (C) in
  // fp32, for two kernel batches, which 6656 bytes are padded to 8192. Of activations norm1,
  // attention, norm2 (C each) and GELU (4C).
  const Problem problem = wide_rows(Backend::cuda);
  CHECK(vector_elements(problem.model) == 13 * 64);
  const std::uint64_t always = 512 * 9 * 64 * 2 + 8192;
  CHECK(weight_operand_bytes(problem, gpt_saved::all) == always);
  CHECK(weight_operand_bytes(problem, saved_none) == always + 512 * 7 * 64 * 2);
}
