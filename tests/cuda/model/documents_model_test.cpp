// Documents packed into sequences, and targets that do not count, on the CUDA backend: against the
// CPU's step, and against each document alone.
#include <catch2/catch.hpp>

#include "tests/cuda/llama/llama_problems.hpp"
#include "tests/cuda/model/model_distance.hpp"
#include "tests/exec/document_batches.hpp"

namespace spillway::cuda {
namespace {

using test::PackedDocuments;

constexpr std::int64_t words = 37, length_of_all = 40;

Problem documents_problem(const std::string& kind, std::int64_t batch, std::int64_t micro_batch) {
  Problem problem = kind == "gpt" ? gpt_problem(words, 2, 32, 4, length_of_all, batch, micro_batch)
                                  : small_llama(kind, words, 2, length_of_all, batch, micro_batch);
  if (kind == "mistral") problem.model.window = 5;
  return problem;
}

// Tensor by tensor, of all units.
void check_all_gradients(const ModelSpec& model, const ModelStepResult& a, const ModelStepResult& b,
                         double bound) {
  const auto layers = static_cast<std::size_t>(model.layers);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    INFO("layer " << layer);
    check_unit(unit_layout(model, 0), a.gradients[layer], b.gradients[layer], bound);
  }
  const bool is_gpt = model.architecture == Architecture::gpt;
  const auto tables = unit_layout(model, embedding_unit(model));
  const auto end = tables.begin() + (is_gpt ? 2 : 1);  // tokens, positions
  check_unit({tables.begin(), end}, a.gradients[layers], b.gradients[layers], bound);
}

template <class Element>
void check_documents(const std::string& kind, const PackedDocuments& packed, double bound) {
  constexpr bool exact = std::is_same_v<Element, float>;
  INFO(kind << (exact ? ", fp32" : ", bf16"));
  Problem problem = documents_problem(kind, 4, 2);
  const ModelCase test = make_model_case(problem);
  StepOptions options;
  options.starts = &packed.starts;
  const ModelStepResult cpu = run_step(problem, rounded_units<Element>(test.parameters),
                                       packed.tokens, packed.targets, options);
  for (const SavedMask available : {saved_all(problem.model), saved_none}) {
    options.available = available;
    const ModelStepResult cuda =
        run_cuda_step<Element>(in_precision_of<Element>(problem, 2), test.parameters, packed.tokens,
                               packed.targets, options);
    check_losses(cuda, cpu, bound, counted(packed.targets));
    check_all_gradients(problem.model, cuda, cpu, bound);
  }
}

TEST_CASE("CUDA: packed documents have the CPU's losses and gradients", "[step][slow]") {
  for (const std::int64_t longest : {9, 40}) {
    const PackedDocuments packed(words, length_of_all, 4, longest, 50);
    for (const std::string kind : {"gpt", "llama", "qwen3", "mistral"}) {
      check_documents<float>(kind, packed, fp32_bound);
      check_documents<bf16>(kind, packed, 2 * bf16_bound);
    }
  }
}

TEST_CASE("CUDA: packed documents train as each of them alone", "[step]") {
  for (const std::string kind : {"gpt", "llama", "qwen2", "qwen3", "mistral"}) {
    INFO(kind);
    const Problem problem = documents_problem(kind, 2, 2);
    const PackedDocuments packed(words, length_of_all, 2, 16, 51);
    const ModelCase test = make_model_case(problem);
    StepOptions options;
    options.starts = &packed.starts;
    const ModelStepResult together =
        run_cuda_step<float>(in_precision_of<float>(problem, 1), test.parameters, packed.tokens,
                             packed.targets, options);
    ModelStepResult sum = together;
    for (auto& unit : sum.gradients) std::fill(unit.begin(), unit.end(), 0.0f);
    std::fill(sum.token_losses.begin(), sum.token_losses.end(), 0.0);
    for (const auto& [first, length] : packed.documents()) {
      const auto part = [&, begin = first, count = length](const std::vector<std::int32_t>& all) {
        const auto from = all.begin() + begin;
        return std::vector<std::int32_t>(from, from + count);
      };
      const auto tokens = part(packed.tokens), targets = part(packed.targets);
      if (counted(targets) == 0) continue;
      Problem alone = problem;
      alone.workload.sequence = length;
      alone.workload.batch = alone.workload.micro_batch = 1;
      const ModelStepResult result = run_cuda_step<float>(in_precision_of<float>(alone, 1),
                                                          test.parameters, tokens, targets, {});
      std::copy(result.token_losses.begin(), result.token_losses.end(),
                sum.token_losses.begin() + first);
      const float share =
          static_cast<float>(counted(targets)) / static_cast<float>(counted(packed.targets));
      for (std::size_t unit = 0; unit < sum.gradients.size(); ++unit)
        for (std::size_t i = 0; i < sum.gradients[unit].size(); ++i)
          sum.gradients[unit][i] += share * result.gradients[unit][i];
    }
    for (std::size_t row = 0; row < sum.token_losses.size(); ++row)
      CHECK(together.token_losses[row] == Approx(sum.token_losses[row]).margin(1e-5));
    check_all_gradients(problem.model, together, sum, fp32_bound);
  }
}

TEST_CASE("CUDA: packed documents have the same bits whatever is saved", "[step]") {
  for (const std::string kind : {"gpt", "qwen3", "mistral"}) {
    INFO(kind);
    const Problem problem = in_precision_of<bf16>(documents_problem(kind, 4, 2), 1);
    const PackedDocuments packed(words, length_of_all, 4, 12, 52);
    const ModelCase test = make_model_case(problem);
    StepOptions options;
    options.starts = &packed.starts;
    const auto run = [&](SavedMask available) {
      options.available = available;
      return run_cuda_step<bf16>(problem, test.parameters, packed.tokens, packed.targets, options);
    };
    const ModelStepResult saved = run(saved_all(problem.model));
    CHECK(std::isfinite(saved.loss));
    std::mt19937_64 random(18);
    for (int i = 0; i < 4; ++i)
      CHECK(same_bits(
          saved, run(static_cast<SavedMask>(i == 0 ? 0 : random() & saved_all(problem.model)))));
  }
}

}  // namespace
}  // namespace spillway::cuda
