// GptCuda against GptCpu: token losses, and every gradient, tensor by tensor.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "base/errors.hpp"
#include "exec/cuda/gpt/gpt_cuda.hpp"
#include "policies/model/scratch.hpp"
#include "tests/cuda/model/model_distance.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

void check_step(const Problem& problem, const ModelStepResult& cuda, const ModelStepResult& cpu,
                double bound) {
  check_losses(cuda, cpu, bound);
  const auto layers = static_cast<std::size_t>(problem.model.layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    INFO("layer " << layer);
    check_unit(unit_layout(problem.model, 0), cuda.gradients[layer], cpu.gradients[layer], bound);
  }
  const auto embedding = unit_layout(problem.model, embedding_unit(problem.model));
  {
    INFO("embedding");
    check_unit({embedding[0], embedding[1]}, cuda.gradients[layers], cpu.gradients[layers], bound);
  }
  INFO("head");
  check_unit({embedding[0], embedding[2], embedding[3]}, cuda.head_gradient, cpu.head_gradient,
             bound);

  // Nothing contributes to padding, to positions beyond the sequence, to the final norm from the
  // embedding, to the position table from the head.
  const std::int64_t c = problem.model.hidden, t = problem.workload.sequence;
  const std::int64_t positions = embedding[1].offset, norm = embedding[2].offset;
  const std::int64_t end = problem.model.embedding_parameters();
  const std::int64_t padded = unit_elements(problem.model, problem.model.layers);
  CHECK(zeros(cuda.gradients[layers], positions + t * c, padded));
  CHECK(zeros(cuda.head_gradient, positions, norm));
  CHECK(zeros(cuda.head_gradient, end, padded));
  CHECK(
      zeros(cuda.gradients[0], problem.model.layer_parameters(), unit_elements(problem.model, 0)));
}

template <class Element>
void check_against_cpu(const ModelCase& test, std::int64_t sequences_at_once) {
  constexpr bool exact = std::is_same_v<Element, float>;
  INFO((exact ? "fp32" : "bf16") << ", " << sequences_at_once << " sequences at once");
  const ModelStepResult cpu =
      run_step(test.problem, rounded_units<Element>(test.parameters), test.tokens, test.targets);
  const Problem problem = in_precision_of<Element>(test.problem, sequences_at_once);
  const ModelStepResult cuda =
      run_cuda_step<Element>(problem, test.parameters, test.tokens, test.targets);
  check_step(problem, cuda, cpu, exact ? fp32_bound : bf16_bound);
}

}  // namespace

TEST_CASE("GptCuda: losses and all gradients are the CPU's, for groups of any size", "[step]") {
  // Two micro-batches of four sequences, two layers, three heads of 8, a token table of 37 rows,
  // which the head takes for 64.
  const ModelCase test = make_model_case(gpt_problem(37, 2, 24, 3, 20, 8, 4));
  for (const std::int64_t at_once : {1, 2, 4}) {
    check_against_cpu<float>(test, at_once);
    check_against_cpu<bf16>(test, at_once);
  }
}

TEST_CASE("GptCuda: attention in several tiles, with a head of 64", "[step]") {
  const ModelCase test = make_model_case(gpt_problem(67, 1, 64, 1, 70, 2, 2));
  check_against_cpu<float>(test, 2);
  check_against_cpu<bf16>(test, 2);
}

template <class Element>
void check_backward_scratch(const ModelCase& test, SavedMask available) {
  const Problem problem = in_precision_of<Element>(test.problem, 2);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
  ModelStep<Element> step(problem, workspace, test.parameters, test.tokens, test.targets,
                          {.available = available});
  step.enqueue();
  // Memory starts as 0xff in every byte: sixteen of them in a row are no numbers that were stored.
  constexpr std::size_t chunk = 16;
  const std::vector<std::byte> scratch = step.backward_scratch();
  std::size_t used = 0, end = 0;
  for (std::size_t at = 0; at < scratch.size(); at += chunk) {
    const auto begin = scratch.begin() + static_cast<std::ptrdiff_t>(at);
    if (std::all_of(begin, begin + chunk, [](std::byte b) { return b == std::byte{0xff}; }))
      continue;
    used += chunk;
    end = at + chunk;
  }
  INFO(sizeof(Element) << " bytes, available " << int{available});
  CHECK(scratch.size() == backward_scratch_bytes(problem, available));
  CHECK(used >= scratch.size() * 97 / 100);
  CHECK(end + buffer_alignment > scratch.size());
}

TEST_CASE("GptCuda: backward uses the scratch that is planned for it, but for padding", "[step]") {
  // The guards of device memory show that nothing beyond it is written. Two sequences of 64 tokens
  // at once and 64 channels make tensors of whole pages of 4096 bytes; only the gradients, with
  // attention's dots behind them, end inside a page.
  const ModelCase test = make_model_case(gpt_problem(37, 1, 64, 4, 64, 2, 2));
  for (const int available :
       {int{gpt_saved::all}, int{saved_none}, gpt_saved::fc | gpt_saved::statistics}) {
    check_backward_scratch<bf16>(test, static_cast<SavedMask>(available));
    check_backward_scratch<float>(test, static_cast<SavedMask>(available));
  }
}

TEST_CASE("GptCuda: sequences of one token with many heads, whose dots lie in scratch", "[step]") {
  const ModelCase test = make_model_case(gpt_problem(37, 1, 200, 25, 1, 2, 2));
  check_against_cpu<float>(test, 2);
  check_against_cpu<bf16>(test, 1);
}

TEST_CASE("GptCuda: one micro-batch in bf16 has bf16 gradients", "[step]") {
  // Whose roundings, once a group, are as those of the activations.
  const ModelCase test = make_model_case(gpt_problem(37, 1, 16, 2, 12, 4, 4));
  const Problem problem = in_precision_of<bf16>(test.problem, 2);
  REQUIRE(problem.gradient_bytes() == 2);
  check_against_cpu<bf16>(test, 2);
  check_against_cpu<bf16>(test, 4);
}

TEST_CASE("GptCuda: a token table that nothing follows is not read beyond its end", "[step]") {
  // (67 + 16) x 24 + 2 x 24 = 2040 elements, padded to 2048; 128 rows would be 3072.
  const ModelCase test = make_model_case(gpt_problem(67, 1, 24, 3, 16, 2, 2));
  check_against_cpu<float>(test, 1);
  check_against_cpu<bf16>(test, 2);
}

TEST_CASE("GptCuda: the head's chunks fill the scratch planned for it, and no more", "[step]") {
  // The rows of the head are as many as fit, or all; beyond 128 a multiple of 128.
  const auto shape_of = [](Problem problem) {
    const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
    const TestStream stream;
    const GptCuda<bf16> gpt(problem, ModelWorkspace::carve(problem, workspace.data()), stream);
    return std::pair{gpt.head_rows(), gpt.logits_stride()};
  };
  Problem problem = in_precision_of<bf16>(gpt_problem(50257, 1, 768, 12, 1024, 8, 8), 1);
  // Rows of 2 x (50304 + 2 x 768) + 8 = 103688 bytes in 333 x 4 x (50257 + 2 x 768 + 2) bytes: 665.
  CHECK(shape_of(problem) == std::pair<std::int64_t, std::int64_t>{640, 50304});
  problem.workload.batch = problem.workload.micro_batch = 1;
  CHECK(shape_of(problem).first == 512);  // 1024 in two chunks
  CHECK(shape_of(in_precision_of<bf16>(gpt_problem(37, 1, 24, 3, 20, 4, 4), 1)).first <= 80);
}

TEST_CASE("GptCuda: one step of a small model", "[step][sanitizer][few]") {
  const ModelCase test = make_model_case(gpt_problem(37, 1, 24, 3, 20, 4, 2));
  check_against_cpu<float>(test, 2);
  check_against_cpu<bf16>(test, 2);
}

TEST_CASE("GptCuda: a NaN in the weights reaches the loss", "[step]") {
  ModelCase test = make_model_case(gpt_problem(37, 1, 16, 2, 12, 2, 2));
  test.parameters[0][100] = std::numeric_limits<float>::quiet_NaN();
  const Problem problem = in_precision_of<bf16>(test.problem, 2);
  CHECK(std::isnan(run_cuda_step<bf16>(problem, test.parameters, test.tokens, test.targets).loss));
}

TEST_CASE("GptCuda accepts GPT models of widths it can compute", "[step]") {
  const auto make = [](const Problem& problem) {
    const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
    const TestStream stream;
    GptCuda<float>(problem, ModelWorkspace::carve(problem, workspace.data()), stream);
  };
  CHECK_NOTHROW(make(gpt_problem(37, 2, 24, 3, 70, 4, 2)));
  CHECK_THROWS_AS(make(gpt_problem(37, 2, 12, 3, 70, 4, 2)), InputError);
  CHECK_THROWS_AS(make(gpt_problem(37, 2, 24, 6, 70, 4, 2)), InputError);
}
