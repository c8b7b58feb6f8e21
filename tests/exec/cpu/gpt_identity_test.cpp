// What must not change a single bit: how the batch is cut into micro-batches, what is saved and
// what recomputed, the kernel variant, the chunks of the head. What must change: another target's
// loss.
#include <catch2/catch.hpp>
#include <cmath>

#include "base/errors.hpp"
#include "policies/model/scratch.hpp"
#include "tests/exec/cpu/gpt_fixture.hpp"

using namespace spillway;

namespace {

struct Case {
  Problem problem;
  Units parameters;
  std::vector<std::int32_t> tokens, targets;

  explicit Case(const Problem& p)
      : problem(p),
        parameters(random_parameters(p.model, 5)),
        tokens(random_tokens(p, 6)),
        targets(random_tokens(p, 7)) {}
  ModelStepResult run(const StepOptions& options = {}) const {
    return run_step(problem, parameters, tokens, targets, options);
  }
};

// T = 70 needs two chunks of attention queries, the second a short one; C = 24 is no multiple
// of 16.
Case odd_sizes() { return Case(gpt_problem(37, 2, 24, 3, 70, 4, 2)); }

}  // namespace

TEST_CASE("Gradients and losses are bit-identical for every cut into micro-batches") {
  Case test = odd_sizes();
  test.problem.workload.micro_batch = 4;
  const ModelStepResult whole = test.run();
  CHECK(std::isfinite(whole.loss));
  for (const std::int64_t micro_batch : {1, 2}) {
    test.problem.workload.micro_batch = micro_batch;
    INFO("micro-batch " << micro_batch);
    CHECK(same_bits(test.run(), whole));
  }
}

TEST_CASE("Gradients are bit-identical for every choice of saved activations") {
  // All 256 masks: every subset a policy could choose; 0 means that forward saves nothing.
  // Two sequences of 9 tokens: a tensor's second sequence starts at no multiple of anything.
  const Case test(gpt_problem(11, 1, 8, 2, 9, 2, 2));
  const ModelStepResult saved = test.run();
  CHECK(saved.memory_respected);
  for (int mask = 0; mask < 256; ++mask) {
    INFO("available " << mask);
    StepOptions options;
    options.available = static_cast<SavedMask>(mask);
    options.recomputes_output = mask % 2 == 0;
    const ModelStepResult result = test.run(options);
    CHECK(same_bits(result, saved));
    CHECK(result.memory_respected);
  }
}

TEST_CASE("Recomputation and memory hold for two chunks of attention and odd sizes") {
  const Case test = odd_sizes();
  const ModelStepResult saved = test.run();
  CHECK(saved.memory_respected);
  for (const int mask : {0x00, 0x7f, 0xfb, 0x20 | 0x04, 0xff & ~0x40, 0x80}) {
    INFO("available " << mask);
    StepOptions options;
    options.available = static_cast<SavedMask>(mask);
    options.recomputes_output = mask % 2 == 0;
    const ModelStepResult result = test.run(options);
    CHECK(same_bits(result, saved));
    CHECK(result.memory_respected);
  }
}

TEST_CASE("The CPU works sequence by sequence, however many a GPU would work on at once") {
  Case test = odd_sizes();
  const ModelStepResult one = test.run();
  test.problem.workload.sequences_at_once = 2;
  for (const int mask : {0xff, 0x00, 0x24}) {
    INFO("available " << mask);
    StepOptions options;
    options.available = static_cast<SavedMask>(mask);
    const ModelStepResult result = test.run(options);
    CHECK(same_bits(result, one));
    CHECK(result.memory_respected);
  }
}

TEST_CASE("Gradients are bit-identical for every kernel variant") {
  const Case test = odd_sizes();
  StepOptions options;
  options.variant = CpuVariant::plain;
  const ModelStepResult plain = test.run(options);
  for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512}) {
    if (!cpu_variant_available(variant)) continue;
    options.variant = variant;
    INFO(cpu_kernels(variant).name);
    CHECK(same_bits(test.run(options), plain));
  }
}

TEST_CASE("The head works in chunks of tokens where the logits of a sequence would be too large") {
  // 64 MB of logits hold 16 of the 40 tokens at this vocabulary, so there are three chunks.
  const Case test(gpt_problem(1 << 20, 1, 2, 1, 40, 1, 1));
  REQUIRE(head_chunk_tokens(test.problem) == 16);
  const ModelStepResult result = test.run();
  CHECK(result.memory_respected);
  // Sum of the gradient of the logits over the vocabulary is zero for every token, so with all rows
  // of the table summed, sum_v dwte[v] = sum_tokens (sum_v dlogits[v]) norm = 0.
  double sums[2] = {0, 0}, sizes[2] = {0, 0};
  for (std::size_t i = 0; i < (2u << 20); ++i) {
    sums[i % 2] += static_cast<double>(result.head_gradient[i]);
    sizes[i % 2] += std::fabs(static_cast<double>(result.head_gradient[i]));
  }
  CHECK(sizes[0] > 0.01);
  CHECK(std::fabs(sums[0]) < 1e-5 * sizes[0]);
  CHECK(std::fabs(sums[1]) < 1e-5 * sizes[1]);
  for (const double loss : result.token_losses) CHECK(loss > 0.0);
}

TEST_CASE("The loss of a token depends on its target and on no later token") {
  Case test = odd_sizes();
  const ModelStepResult before = test.run();
  test.targets[5] = (test.targets[5] + 1) % 37;
  test.tokens[30] = (test.tokens[30] + 1) % 37;
  const ModelStepResult after = test.run();
  for (std::size_t i = 0; i < 280; ++i) {
    INFO("token " << i);
    const bool changes = i == 5 || (i >= 30 && i < 70);
    CHECK((before.token_losses[i] != after.token_losses[i]) == changes);
  }
}

TEST_CASE("A NaN in the weights reaches the loss") {
  Case test = odd_sizes();
  test.parameters[0][100] = std::numeric_limits<float>::quiet_NaN();
  CHECK(std::isnan(test.run().loss));
}

TEST_CASE("GptCpu accepts fp32 GPT problems only") {
  Problem problem = gpt_problem(37, 2, 24, 3, 70, 4, 2);
  problem.workload.precision = Precision::bf16;
  CHECK_THROWS_AS(GptCpu(problem), InputError);
  problem.workload.precision = Precision::fp32;
  problem.model.architecture = Architecture::llama;
  CHECK_THROWS_AS(GptCpu(problem), InputError);
}
