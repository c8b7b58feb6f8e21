// Low-rank adapters and frozen layers on the CUDA backend, against the CPU's, and what must not
// change a single bit of their results.
//
// In bf16 an adapted product is rounded twice where a plain one is once, A x and the gradient of A
// x are rounded, too, and so gradients go through about twice as many roundings: they are held to
// twice what they are without adapters (model_distance.hpp; of a llama, llama_cuda_test.cpp).
#include <catch2/catch.hpp>

#include "tests/cuda/llama/llama_problems.hpp"
#include "tests/cuda/model/model_distance.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

// Scaled by a quarter, B A is smaller than W beside it: more would drive softmax into saturation,
// where roundings decide everything.
Problem with_adapters(Problem problem, const std::string& targets, double dropout,
                      std::int64_t rank = 8) {
  problem.model.lora_rank = rank;
  problem.model.lora_alpha = 0.25 * static_cast<double>(rank);
  problem.model.lora_targets = targets;
  problem.model.lora_dropout = dropout;
  return problem;
}

Problem small_gpt(std::int64_t layers, std::int64_t batch, std::int64_t micro_batch) {
  return gpt_problem(37, layers, 24, 3, 20, batch, micro_batch);
}

std::string describe(const Problem& problem) {
  return problem.model.name + " " + problem.model.lora_targets + " dropout " +
         std::to_string(problem.model.lora_dropout) + " micro-batch " +
         std::to_string(problem.workload.micro_batch) + " of " +
         std::to_string(problem.workload.sequences_at_once) + " at once";
}

// The gradients of all layers that are trained, with zeros as padding; of frozen ones there are
// none.
void check_gradients(const ModelSpec& model, const ModelStepResult& cuda,
                     const ModelStepResult& cpu, double bound) {
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    INFO("layer " << layer);
    const auto& gradient = cuda.gradients[static_cast<std::size_t>(layer)];
    REQUIRE(static_cast<std::int64_t>(gradient.size()) == trained_elements(model, layer));
    if (gradient.empty()) continue;
    const auto layout = unit_layout(model, layer);
    check_unit(layout, gradient, cpu.gradients[static_cast<std::size_t>(layer)], bound);
    std::int64_t end = 0;
    for (const TensorLayout& tensor : layout)
      if (tensor.trained) end = tensor.offset + tensor.elements();
    if (end < trained_elements(model, layer))
      CHECK(zeros(gradient, end, trained_elements(model, layer)));
  }
  CHECK(cuda.gradients.back().empty());
  REQUIRE(cuda.head_gradient.size() == cpu.head_gradient.size());
  if (!cuda.head_gradient.empty())
    check_unit(unit_layout(model, head_unit(model)), cuda.head_gradient, cpu.head_gradient, bound);
}

template <class Element>
void check_against_cpu(const ModelCase& test, std::int64_t sequences_at_once) {
  constexpr bool exact = std::is_same_v<Element, float>;
  const Problem problem = in_precision_of<Element>(test.problem, sequences_at_once);
  INFO((exact ? "fp32 " : "bf16 ") << describe(problem));
  const ModelStepResult cpu =
      run_step(test.problem, rounded_units<Element>(test.parameters), test.tokens, test.targets);
  const ModelStepResult cuda =
      run_cuda_step<Element>(problem, test.parameters, test.tokens, test.targets);
  const double bf16_gradients =
      (problem.model.architecture == Architecture::gpt ? 2 : 4) * bf16_bound;
  check_losses(cuda, cpu, exact ? fp32_bound : 2 * bf16_bound);
  check_gradients(problem.model, cuda, cpu, exact ? fp32_bound : bf16_gradients);
}

struct Step {
  Problem problem;
  Units parameters = random_parameters(problem.model, 5);
  std::vector<std::int32_t> tokens = random_tokens(problem, 6), targets = random_tokens(problem, 7);
  DeviceArray<std::byte> workspace{model_workspace_bytes(problem)};

  explicit Step(const Problem& p) : problem(p) {}
  template <class Element>
  ModelStepResult run(const StepOptions& options = {},
                      GeluBackward gelu_backward = GeluBackward::kernel) const {
    ModelStep<Element> step(problem, workspace, parameters, tokens, targets, options,
                            gelu_backward);
    step.enqueue();
    const ModelStepResult result = step.result();
    workspace.download();  // where its guards are checked
    CHECK(std::isfinite(result.loss));
    CHECK(result.memory_respected);
    return result;
  }
};

// Nothing saved, each tensor alone, all but each.
template <class Element>
void check_masks(const Problem& in_fp32, std::int64_t sequences_at_once) {
  const Step test(in_precision_of<Element>(in_fp32, sequences_at_once));
  INFO(describe(test.problem));
  const SavedMask all = saved_all(test.problem.model);
  const ModelStepResult saved = test.template run<Element>();
  std::vector<SavedMask> masks = {saved_none};
  for (const SavedTensor& tensor : saved_tensors(test.problem.model)) {
    masks.push_back(tensor.bit);
    masks.push_back(static_cast<SavedMask>(all & ~tensor.bit));
  }
  for (const SavedMask mask : masks) {
    INFO("available " << int{mask});
    StepOptions options;
    options.available = mask;
    options.recomputes_output = mask % 2 == 0;
    CHECK(same_bits(test.template run<Element>(options), saved));
  }
}

}  // namespace

TEST_CASE("Adapters on CUDA: losses and gradients are the CPU's", "[step][adapters][slow]") {
  for (const double dropout : {0.0, 0.2}) {
    for (const char* targets : {"all-linear", "c_attn,mlp.c_proj"}) {
      const ModelCase test = make_model_case(with_adapters(small_gpt(2, 4, 2), targets, dropout));
      for (const std::int64_t at_once : {1, 2}) {
        check_against_cpu<float>(test, at_once);
        check_against_cpu<bf16>(test, at_once);
      }
    }
    for (const std::string& kind : llama_kinds) {
      for (const char* targets : {"all-linear", "q_proj,v_proj"}) {
        const ModelCase test =
            make_model_case(with_adapters(small_llama(kind, 37, 2, 20, 4, 2), targets, dropout));
        check_against_cpu<float>(test, 2);
        check_against_cpu<bf16>(test, 2);
      }
    }
  }
}

TEST_CASE("Adapters on CUDA: any rank, and bf16 gradients of one micro-batch", "[step][adapters]") {
  for (const std::int64_t rank : {1, 3, 4, 16}) {
    INFO("rank " << rank);
    const ModelCase test =
        make_model_case(with_adapters(small_gpt(1, 2, 2), "all-linear", 0.1, rank));
    REQUIRE(in_precision_of<bf16>(test.problem, 2).gradient_bytes() == 2);
    check_against_cpu<float>(test, 2);
    check_against_cpu<bf16>(test, 2);
  }
}

TEST_CASE("Adapters on CUDA: one step of a small model", "[step][adapters][sanitizer][few]") {
  check_against_cpu<bf16>(
      make_model_case(with_adapters(small_llama("qwen2", 37, 1, 20, 2, 2), "all-linear", 0.2)), 2);
}

TEST_CASE("Adapters on CUDA: gradients are bit-identical for every choice of saved activations",
          "[step][adapters][slow]") {
  const Problem gpt = gpt_problem(11, 1, 16, 2, 9, 4, 4);
  check_masks<bf16>(with_adapters(gpt, "all-linear", 0.2), 2);
  check_masks<float>(with_adapters(gpt, "c_proj", 0), 4);
  for (const char* kind : {"qwen2", "qwen3"}) {
    check_masks<bf16>(with_adapters(small_llama(kind, 11, 1, 9, 4, 4), "all-linear", 0.2), 2);
    check_masks<bf16>(with_adapters(small_llama(kind, 11, 1, 9, 4, 4), "q_proj,v_proj", 0, 3), 1);
  }
}

#ifdef SPILLWAY_EMULATED_GPU  // the head's products are larger for larger micro-batches
TEST_CASE("Adapters on CUDA emulated: gradients are bit-identical for any cut into micro-batches",
          "[step][adapters]") {
  const auto check = [](const Problem& base, std::vector<std::int64_t> cuts, auto element) {
    using Element = decltype(element);
    ModelStepResult first;
    for (const std::int64_t micro_batch : cuts) {
      Problem problem = in_precision_of<Element>(base, 1);
      problem.workload.micro_batch = micro_batch;
      INFO(describe(problem));
      const ModelStepResult result = Step(problem).template run<Element>();
      if (micro_batch == cuts.front()) first = result;
      CHECK(same_bits(result, first));
    }
  };
  for (const char* targets : {"all-linear", "q_proj,v_proj"}) {
    const Problem llama = with_adapters(small_llama("qwen3", 37, 1, 20, 4, 1), targets, 0.2);
    check(llama, {1, 2, 4}, float{});
    check(llama, {1, 2}, bf16{});  // whose one micro-batch has gradients in bf16
  }
  check(with_adapters(small_gpt(1, 4, 1), "all-linear", 0.2), {1, 2, 4}, float{});
}
#endif

TEST_CASE("Adapters on CUDA: with B at zero, losses are the model's own to the bit",
          "[step][adapters]") {
  for (const Problem& base : {small_gpt(1, 4, 2), small_llama("mistral", 37, 1, 20, 4, 2)}) {
    const Step plain(in_precision_of<bf16>(base, 2));
    Step adapted(in_precision_of<bf16>(with_adapters(base, "all-linear", 0.5), 2));
    for (std::int64_t unit = 0; unit < unit_count(base.model); ++unit) {
      const auto at = static_cast<std::size_t>(unit);
      const auto first = trained_elements(adapted.problem.model, unit);
      std::copy(plain.parameters[at].begin(), plain.parameters[at].end(),
                adapted.parameters[at].begin() + first);
    }
    for (const AdaptedMatrix& one : adapted_matrices(adapted.problem.model)) {
      const auto b = adapted.parameters[0].begin() + one.b;
      std::fill(b, b + one.rows * adapted.problem.model.lora_rank, 0.0f);
    }
    CHECK(adapted.run<bf16>().token_losses == plain.run<bf16>().token_losses);
  }
}

TEST_CASE("Adapters on CUDA: how GELU's backward is computed decides nothing where it has adapters",
          "[step][adapters]") {
  const Step test(in_precision_of<bf16>(with_adapters(small_gpt(1, 4, 2), "mlp.c_proj", 0.2), 2));
  const ModelStepResult expected = test.run<bf16>();
  CHECK(same_bits(test.run<bf16>({}, GeluBackward::dgelu_bgrad), expected));
  // Elsewhere it is cuBLASLt's epilogue, whose sums a frozen bias has no use for.
  const ModelCase other = make_model_case(with_adapters(small_gpt(1, 4, 2), "c_attn", 0));
  const Step fused(in_precision_of<bf16>(other.problem, 2));
  const ModelStepResult kernel = fused.run<bf16>();
  for (const GeluBackward how : {GeluBackward::dgelu, GeluBackward::dgelu_bgrad}) {
    const ModelStepResult result = fused.run<bf16>({}, how);
    check_losses(result, kernel, bf16_bound);
    check_gradients(fused.problem.model, result, kernel, 2 * bf16_bound);
  }
}

TEST_CASE("Adapters on CUDA: every product is met before training", "[step][adapters]") {
  for (const Problem& base : {small_gpt(1, 4, 2), small_llama("qwen3", 37, 1, 20, 4, 2)}) {
    for (const double dropout : {0.0, 0.2}) {
      const Step test(in_precision_of<bf16>(with_adapters(base, "all-linear", dropout), 1));
      ModelStep<bf16> step(test.problem, test.workspace, test.parameters, test.tokens,
                           test.targets);
      step.rehearse();
      const std::size_t shapes = step.model().shapes();
      step.enqueue();
      step.result();
      CHECK(step.model().shapes() == shapes);
    }
  }
}

TEST_CASE("Adapters on CUDA: a captured step has the dropout of the step that replays it",
          "[step][adapters]") {
  const Step test(in_precision_of<bf16>(
      with_adapters(small_llama("qwen2", 11, 1, 9, 4, 2), "all-linear", 0.3), 2));
  ModelStep<bf16> step(test.problem, test.workspace, test.parameters, test.tokens, test.targets);
  step.enqueue();
  const ModelStepResult eager = step.result();
  CHECK(same_bits(eager, test.run<bf16>()));
  CapturedStep captured(step);
  for (const std::int64_t number : {1, 2, 1}) {
    StepOptions options;
    options.step_noise = step_noise_key(1, number);
    step.set_noise(options.step_noise);
    const ModelStepResult replayed = captured.launch();
    CHECK(same_bits(replayed, test.run<bf16>(options)));
    CHECK(same_bits(replayed, eager) == (number == 1));
  }
}

TEST_CASE("Frozen layers on CUDA: what is trained has the bits it has where everything is",
          "[step][adapters]") {
  // The tied head is frozen, the other one is not.
  for (const Problem& base : {small_gpt(3, 4, 2), small_llama("llama", 37, 3, 20, 4, 2)}) {
    const Step all(in_precision_of<bf16>(base, 2));
    const ModelStepResult expected = all.run<bf16>();
    Problem problem = all.problem;
    problem.model.frozen_layers = 2;
    const ModelStepResult result = Step(problem).run<bf16>();
    CHECK(result.token_losses == expected.token_losses);
    CHECK(same_bits(result.gradients[2], expected.gradients[2]));
    CHECK(result.gradients[0].empty());
    CHECK(result.gradients[1].empty());
    CHECK(result.gradients[3].empty());
    CHECK(result.head_gradient.empty() == base.model.tied);
    if (!base.model.tied) CHECK(same_bits(result.head_gradient, expected.head_gradient));
  }
}
