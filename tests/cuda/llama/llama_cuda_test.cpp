// LlamaCuda against LlamaCpu, and what must not change a single bit of its results.
//
// Gradients in bf16 are held to twice what a GPT's are (model_distance.hpp). SwiGLU multiplies two
// functions of its input: a relative error of the input comes out about twice as large, where GELU
// lets it through once. And queries and keys are tensors of their own here, where a GPT's are
// measured together with values: their gradients are differences, p (dP - D), smaller than what
// they are made of, which is rounded alike.
#include <catch2/catch.hpp>
#include <random>

#include "base/errors.hpp"
#include "tests/cuda/llama/llama_problems.hpp"
#include "tests/cuda/model/model_distance.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

constexpr double llama_bf16_bound = 2 * bf16_bound;

// The gradients of all units, tied or not. Nothing contributes to padding.
void check_gradients(const ModelSpec& model, const ModelStepResult& cuda,
                     const ModelStepResult& cpu, double bound) {
  const auto padding_is_zero = [&](const std::vector<float>& unit, std::int64_t number) {
    const std::int64_t end = unit_parameters(model, number);
    return end == unit_elements(model, number) || zeros(unit, end, unit_elements(model, number));
  };
  const auto layers = static_cast<std::size_t>(model.layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    INFO("layer " << layer);
    check_unit(unit_layout(model, 0), cuda.gradients[layer], cpu.gradients[layer], bound);
    CHECK(padding_is_zero(cuda.gradients[layer], 0));
  }
  {
    INFO("embedding");
    const std::int64_t unit = embedding_unit(model);
    check_unit({unit_layout(model, unit)[0]}, cuda.gradients[layers], cpu.gradients[layers], bound);
    CHECK(padding_is_zero(cuda.gradients[layers], unit));
  }
  INFO("head");
  check_unit(unit_layout(model, head_unit(model)), cuda.head_gradient, cpu.head_gradient, bound);
  CHECK(padding_is_zero(cuda.head_gradient, head_unit(model)));
}

template <class Element>
void check_against_cpu(const ModelCase& test, std::int64_t sequences_at_once) {
  constexpr bool exact = std::is_same_v<Element, float>;
  INFO(test.problem.model.name << (exact ? ", fp32, " : ", bf16, ") << sequences_at_once
                               << " sequences at once");
  const ModelStepResult cpu =
      run_step(test.problem, rounded_units<Element>(test.parameters), test.tokens, test.targets);
  const Problem problem = in_precision_of<Element>(test.problem, sequences_at_once);
  const ModelStepResult cuda =
      run_cuda_step<Element>(problem, test.parameters, test.tokens, test.targets);
  check_losses(cuda, cpu, exact ? fp32_bound : bf16_bound);
  check_gradients(problem.model, cuda, cpu, exact ? fp32_bound : llama_bf16_bound);
}

struct Masks {
  Problem problem;
  Units parameters = random_parameters(problem.model, 5);
  std::vector<std::int32_t> tokens = random_tokens(problem, 6), targets = random_tokens(problem, 7);
  DeviceArray<std::byte> workspace{model_workspace_bytes(problem)};

  explicit Masks(const Problem& p) : problem(p) {}
  template <class Element>
  ModelStepResult run(SavedMask mask) const {
    StepOptions options;
    options.available = mask;
    options.recomputes_output = mask % 2 == 0;
    ModelStep<Element> step(problem, workspace, parameters, tokens, targets, options);
    step.enqueue();
    return step.result();
  }
};

// One micro-batch of four sequences of 9 tokens: tensors of a kernel batch start at no multiple of
// anything but their width. Nothing is saved, each tensor alone, all but each, and some at random.
template <class Element>
void check_masks(const std::string& kind, std::int64_t sequences_at_once) {
  INFO(kind << (std::is_same_v<Element, float> ? ", fp32, " : ", bf16, ") << sequences_at_once
            << " sequences at once");
  const Masks test(in_precision_of<Element>(small_llama(kind, 11, 1, 9, 4, 4), sequences_at_once));
  const SavedMask all = saved_all(test.problem.model);
  const ModelStepResult saved = test.template run<Element>(all);
  CHECK(std::isfinite(saved.loss));
  CHECK(saved.memory_respected);
  std::vector<SavedMask> masks = {saved_none};
  for (const SavedTensor& tensor : saved_tensors(test.problem.model)) {
    masks.push_back(tensor.bit);
    masks.push_back(static_cast<SavedMask>(all & ~tensor.bit));
  }
  std::mt19937_64 random(17);
  for (int i = 0; i < 3; ++i) masks.push_back(static_cast<SavedMask>(random() & all));
  for (const SavedMask mask : masks) {
    INFO("available " << int{mask});
    const ModelStepResult result = test.template run<Element>(mask);
    CHECK(same_bits(result, saved));
    CHECK(result.memory_respected);
  }
  test.workspace.download();  // where its guards are checked
}

}  // namespace

TEST_CASE("LlamaCuda: losses and all gradients are the CPU's, for groups of any size", "[step]") {
  // Two micro-batches of four sequences, two layers, a vocabulary of 37, which the head takes for
  // 64 where that is within its unit.
  for (const std::string& kind : llama_kinds) {
    const ModelCase test = make_model_case(small_llama(kind, 37, 2, 20, 8, 4));
    for (const std::int64_t at_once : {1, 4}) {
      check_against_cpu<float>(test, at_once);
      check_against_cpu<bf16>(test, at_once);
    }
  }
}

TEST_CASE("LlamaCuda: attention in several tiles, with groups, heads of 64 and a window",
          "[step]") {
  for (const char* kind : {"qwen2", "mistral"}) {
    Problem problem = llama_problem(kind, 67, 1, 64, 2, 140, 1, 1);
    problem.model.ffn = 136;
    problem.model.head_width = 64;
    if (problem.model.window > 0) problem.model.window = 40;
    const ModelCase test = make_model_case(problem);
    check_against_cpu<float>(test, 1);
    check_against_cpu<bf16>(test, 1);
  }
}

TEST_CASE("LlamaCuda: one micro-batch in bf16 has bf16 gradients", "[step]") {
  for (const std::string& kind : llama_kinds) {
    const ModelCase test = make_model_case(small_llama(kind, 37, 1, 12, 4, 4));
    REQUIRE(in_precision_of<bf16>(test.problem, 2).gradient_bytes() == 2);
    check_against_cpu<bf16>(test, 4);
  }
}

TEST_CASE("LlamaCuda: gradients are bit-identical for every choice of saved activations",
          "[step][slow]") {
  for (const std::string& kind : llama_kinds) {
    check_masks<bf16>(kind, 2);
  }
  check_masks<float>("qwen3", 2);
}

TEST_CASE("LlamaCuda: a step captured into a graph has the bits of one that was not", "[step]") {
  for (const char* kind : {"qwen2", "qwen3"}) {
    const Masks test(in_precision_of<bf16>(small_llama(kind, 11, 1, 9, 4, 4), 2));
    ModelStep<bf16> step(test.problem, test.workspace, test.parameters, test.tokens, test.targets);
    step.enqueue();
    const ModelStepResult eager = step.result();
    CapturedStep captured(step);
    for (int replay = 0; replay < 2; ++replay) {
      CHECK(same_bits(captured.launch(), eager));
    }
  }
}

TEST_CASE("LlamaCuda: one step of a small model", "[step][sanitizer][few]") {
  for (const char* kind : {"qwen2", "qwen3", "mistral"}) {
    const ModelCase test = make_model_case(small_llama(kind, 37, 1, 20, 4, 2));
    check_against_cpu<float>(test, 2);
    check_against_cpu<bf16>(test, 2);
  }
}

TEST_CASE("LlamaCuda accepts models of widths it can compute", "[step]") {
  const auto make = [](const Problem& problem) {
    const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
    const TestStream stream;
    make_model_cuda<float>(problem, ModelWorkspace::carve(problem, workspace.data()), stream);
  };
  Problem problem = small_llama("qwen3", 37, 1, 20, 4, 2);
  CHECK_NOTHROW(make(problem));
  problem.model.head_width = 20;
  CHECK_THROWS_AS(make(problem), InputError);
  problem.model.head_width = 16;
  problem.model.ffn = 70;
  CHECK_THROWS_AS(make(problem), InputError);
}
