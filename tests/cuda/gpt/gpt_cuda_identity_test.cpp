// What must not change a single bit of GptCuda's results: what is saved and what recomputed, the
// schedule of calls before, capturing them into a graph.
#include <catch2/catch.hpp>
#include <random>

#include "policies/model/saved.hpp"
#include "tests/cuda/model/model_step.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

struct Case {
  Problem problem;
  Units parameters;
  std::vector<std::int32_t> tokens, targets;

  StepOptions saving(SavedMask mask) const {
    StepOptions options;
    options.available = mask;
    options.recomputes_output = mask % 2 == 0;
    return options;
  }
  template <class Element>
  ModelStepResult run(SavedMask mask, const DeviceArray<std::byte>& workspace,
                      GeluBackward gelu_backward = GeluBackward::kernel) const {
    ModelStep<Element> step(problem, workspace, parameters, tokens, targets, saving(mask),
                            gelu_backward);
    step.enqueue();
    return step.result();
  }
};

// One micro-batch of four sequences of 9 tokens: tensors of a group start at no multiple of
// anything but their width.
template <class Element>
Case small_case(std::int64_t sequences_at_once) {
  const Problem problem =
      in_precision_of<Element>(gpt_problem(11, 1, 16, 2, 9, 4, 4), sequences_at_once);
  return {problem, random_parameters(problem.model, 5), random_tokens(problem, 6),
          random_tokens(problem, 7)};
}

template <class Element>
void check_masks(std::int64_t sequences_at_once, const std::vector<SavedMask>& masks,
                 GeluBackward how = GeluBackward::kernel) {
  INFO((std::is_same_v<Element, float> ? "fp32" : "bf16")
       << ", " << sequences_at_once << " sequences at once");
  const Case test = small_case<Element>(sequences_at_once);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(test.problem));
  const ModelStepResult saved = test.template run<Element>(gpt_saved::all, workspace, how);
  CHECK(std::isfinite(saved.loss));
  CHECK(saved.memory_respected);
  for (const SavedMask mask : masks) {
    INFO("available " << int{mask});
    const ModelStepResult result = test.template run<Element>(mask, workspace, how);
    CHECK(same_bits(result, saved));
    CHECK(result.memory_respected);
  }
  workspace.download();  // where its guards are checked
}

}  // namespace

TEST_CASE("GptCuda: gradients are bit-identical for every choice of saved activations", "[step]") {
  // Nothing, each tensor alone, all but each, and some others at random: of the 256 subsets a
  // policy could choose.
  const std::uint64_t seed = 20261121;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::vector<SavedMask> masks = {saved_none};
  for (int bit = 0; bit < gpt_saved::count; ++bit) {
    masks.push_back(static_cast<SavedMask>(1 << bit));
    masks.push_back(static_cast<SavedMask>(gpt_saved::all & ~(1 << bit)));
  }
  for (int i = 0; i < 8; ++i) masks.push_back(static_cast<SavedMask>(random() & gpt_saved::all));
  check_masks<bf16>(2, masks);
  check_masks<float>(2, masks);
  const std::vector<SavedMask> few = {saved_none, gpt_saved::statistics,
                                      gpt_saved::qkv | gpt_saved::residual | gpt_saved::fc};
  for (const std::int64_t at_once : {1, 4}) {
    check_masks<bf16>(at_once, few);
    check_masks<float>(at_once, few);
  }
}

TEST_CASE("GptCuda: with GELU's slope in the product, too, nothing hangs on what is saved",
          "[step]") {
  // GELU's output is then made by its forward kernel where it is not saved.
  const std::vector<SavedMask> masks = {saved_none, gpt_saved::fc, gpt_saved::gelu,
                                        gpt_saved::all & ~gpt_saved::gelu,
                                        gpt_saved::all & ~gpt_saved::fc};
  for (const GeluBackward how : {GeluBackward::dgelu, GeluBackward::dgelu_bgrad}) {
    INFO(name_of(how));
    check_masks<bf16>(2, masks, how);
    check_masks<float>(2, masks, how);
  }
}

TEST_CASE("GptCuda: all choices of saved activations are bit-identical", "[step][slow]") {
  std::vector<SavedMask> masks;
  for (int mask = 0; mask < 256; ++mask) masks.push_back(static_cast<SavedMask>(mask));
  check_masks<bf16>(2, masks);
}

TEST_CASE("GptCuda: a step leaves nothing behind that another would see", "[step]") {
  // The second step's first micro-batch starts the sums anew, and no product meets a new shape.
  const Case test = small_case<bf16>(2);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(test.problem));
  ModelStep<bf16> step(test.problem, workspace, test.parameters, test.tokens, test.targets,
                       test.saving(gpt_saved::qkv));
  step.enqueue();
  const ModelStepResult first = step.result();
  const std::size_t shapes = step.model().shapes();
  CHECK(shapes > 0);
  step.enqueue();
  CHECK(same_bits(step.result(), first));
  CHECK(step.model().shapes() == shapes);
}

TEST_CASE("GptCuda: a step captured into a graph has the bits of one that was not", "[step]") {
  const Case test = small_case<bf16>(2);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(test.problem));
  ModelStep<bf16> step(test.problem, workspace, test.parameters, test.tokens, test.targets,
                       test.saving(saved_none));
  step.enqueue();
  const ModelStepResult eager = step.result();
  CapturedStep captured(step);
  for (int replay = 0; replay < 2; ++replay) {
    CHECK(same_bits(captured.launch(), eager));
  }
}
