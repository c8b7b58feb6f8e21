// A layer's backward in two passes on the CUDA backend has the bits of the whole backward, and
// writes nowhere beyond the memory that is planned for it.
#include <catch2/catch.hpp>

#include "tests/cuda/llama/llama_problems.hpp"
#include "tests/exec/document_batches.hpp"

namespace spillway::cuda {
namespace {

// Micro-batches of four sequences of 9 tokens: a kernel batch's tensors start at no multiple of
// anything but their width.
Problem two_micro_batches(const std::string& kind) {
  return kind == "gpt" ? gpt_problem(11, 1, 16, 2, 9, 8, 4) : small_llama(kind, 11, 1, 9, 8, 4);
}

// Nothing was saved, all was, and what each pass needs of what was not.
std::vector<SavedMask> masks_of(const ModelSpec& model) {
  const SavedMask all = saved_all(model);
  return {saved_none,
          all,
          saved_statistics,
          llama_saved::norm1 | llama_saved::qkv | llama_saved::norm2,
          llama_saved::attention | llama_saved::residual | llama_saved::gate_up,
          static_cast<SavedMask>(all & ~llama_saved::product),
          static_cast<SavedMask>(all & ~(llama_saved::norm1 | saved_statistics))};
}

struct Passes {
  Problem problem;
  GeluBackward gelu_backward = GeluBackward::kernel;
  const std::vector<std::int32_t>* starts = nullptr;

  template <class Element>
  void check(const std::vector<SavedMask>& masks) const {
    INFO(problem.model.name << (std::is_same_v<Element, float> ? ", fp32, " : ", bf16, ")
                            << problem.workload.sequences_at_once << " sequences at once, "
                            << problem.gradient_bytes() << " bytes of a gradient, GELU's by "
                            << name_of(gelu_backward));
    const Units parameters = random_parameters(problem.model, 5);
    const auto tokens = random_tokens(problem, 6), targets = random_tokens(problem, 7);
    const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
    const auto run = [&](SavedMask mask, bool weights_later) {
      StepOptions options;
      options.available = mask;
      options.recomputes_output = mask % 2 == 0;
      options.starts = starts;
      options.weights_later = weights_later;
      ModelStep<Element> step(problem, workspace, parameters, tokens, targets, options,
                              gelu_backward);
      step.enqueue();
      return step.result();
    };
    const ModelStepResult whole = run(saved_all(problem.model), false);
    CHECK(std::isfinite(whole.loss));
    for (const SavedMask mask : masks) {
      INFO("available " << int{mask});
      const ModelStepResult passes = run(mask, true);
      CHECK(same_bits(passes, whole));
      CHECK(passes.memory_respected);
    }
    workspace.download();  // where its guards are checked
  }
};

const std::vector<std::string> kinds = {"gpt", "llama", "qwen2", "qwen3", "mistral"};

TEST_CASE("CUDA: backward in two passes has the bits of the whole, whatever was saved", "[step]") {
  for (const std::string& kind : kinds) {
    const Passes narrow{in_precision_of<bf16>(two_micro_batches(kind), 2)};
    narrow.check<bf16>(masks_of(narrow.problem.model));
    const Passes wide{in_precision_of<float>(two_micro_batches(kind), 2)};
    wide.check<float>({saved_none, saved_all(wide.problem.model)});
  }
}

TEST_CASE("CUDA: backward in two passes, for kernel batches and gradients of any size", "[step]") {
  for (const std::string& kind : kinds) {
    for (const std::int64_t at_once : {1, 4})
      Passes{in_precision_of<bf16>(two_micro_batches(kind), at_once)}.check<bf16>({saved_none});
    for (const GradientWidth width : {GradientWidth::bits16, GradientWidth::bits32}) {
      Passes test{in_precision_of<bf16>(two_micro_batches(kind), 2)};
      test.problem.workload.gradient = width;
      test.problem.workload.batch = 4;  // one micro-batch: a sum over several takes 32 bits
      test.check<bf16>({saved_none});
    }
  }
}

TEST_CASE("CUDA: backward in two passes, with GELU's slope in the product", "[step]") {
  for (const GeluBackward how : {GeluBackward::dgelu, GeluBackward::dgelu_bgrad}) {
    const std::vector<SavedMask> masks = {saved_none, gpt_saved::all};
    Passes{in_precision_of<bf16>(two_micro_batches("gpt"), 2), how}.check<bf16>(masks);
    Passes{in_precision_of<float>(two_micro_batches("gpt"), 2), how}.check<float>(masks);
  }
}

TEST_CASE("CUDA: backward in two passes, of packed documents", "[step]") {
  for (const char* kind : {"gpt", "qwen3"}) {
    const Problem problem = in_precision_of<bf16>(two_micro_batches(kind), 2);
    const test::PackedDocuments packed(11, 9, 8, 6, 50);
    Passes{problem, GeluBackward::kernel, &packed.starts}.check<bf16>({saved_none});
  }
}

// With nothing saved.
ModelStep<bf16> in_two_passes(const Problem& problem, const DeviceArray<std::byte>& workspace) {
  StepOptions options;
  options.available = saved_none;
  options.weights_later = true;
  return {problem,
          workspace,
          random_parameters(problem.model, 5),
          random_tokens(problem, 6),
          random_tokens(problem, 7),
          options};
}

TEST_CASE("CUDA: backward in two passes, captured into a graph", "[step]") {
  const Problem problem = in_precision_of<bf16>(two_micro_batches("gpt"), 2);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
  ModelStep<bf16> step = in_two_passes(problem, workspace);
  step.enqueue();
  const ModelStepResult eager = step.result();
  CapturedStep captured(step);
  CHECK(same_bits(captured.launch(), eager));
}

TEST_CASE("CUDA: the second pass makes no matrix product that the whole backward does not",
          "[step]") {
  // So every product's algorithm is settled before the first step.
  const Problem problem = in_precision_of<bf16>(two_micro_batches("llama"), 2);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
  ModelStep<bf16> step = in_two_passes(problem, workspace);
  step.rehearse();
  const std::size_t shapes = step.model().shapes();
  step.enqueue();
  step.result();
  CHECK(step.model().shapes() == shapes);
}

}  // namespace
}  // namespace spillway::cuda
