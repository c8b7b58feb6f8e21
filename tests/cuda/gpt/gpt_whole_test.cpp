// The check of llm.c's test_gpt2: logits, loss and every gradient of a whole step, tensor by
// tensor, against a GPT-2 in fp64 (gpt_fp64.hpp), which is itself held to PyTorch.
//
// Of each tensor two distances count: |a - b| / |b| in the 2-norm, and the largest |a - b|, which
// may be as large a share of the largest |b| as the norms may of each other: roundings are about as
// large for every element of a tensor. In fp32, sums of some hundred products are a few times 2^-24
// off; logits come through some ten of them, gradients through thirty: 2e-6 and 5e-6 are four times
// what is seen. In bf16 it is 2^-9 at most for each rounding of an activation, 0.001 on average:
// 0.02 and 0.03 are twice what is seen. The fp64 side starts from the same rounded parameters.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

#include "tests/cuda/gpt/gpt_fp64.hpp"
#include "tests/cuda/model/model_step.hpp"
#include "tests/exec/cpu/gpt_pytorch.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

// Two distances per tensor, and a table of them.
class Distances {
 public:
  template <class Number>
  void add(const std::string& name, const Number* actual, const double* expected, std::size_t n,
           double bound) {
    double difference = 0, size = 0, apart = 0, largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double d = std::fabs(static_cast<double>(actual[i]) - expected[i]);
      difference += d * d;
      size += expected[i] * expected[i];
      apart = std::isnan(d) ? INFINITY : std::max(apart, d);
      largest = std::max(largest, std::fabs(expected[i]));
    }
    const double norm = std::sqrt(difference / size);
    // Of nothing but zeros no distance is known: that fails, too.
    const bool good = n > 0 && norm <= bound && apart <= bound * largest;
    agree_ = agree_ && good;
    table_ += fmt::format("{:2} {:24} {:6} {:8.1e} {:8.1e} {:8.1e} {:8.1e}\n", good ? "" : "!!",
                          name, n, norm, apart, largest, bound);
  }
  bool agree() const { return agree_; }
  std::string table() const {
    return fmt::format("{:2} {:24} {:>6} {:>8} {:>8} {:>8} {:>8}\n", "", "tensor", "size", "2-norm",
                       "apart", "largest", "bound") +
           table_;
  }

 private:
  bool agree_ = true;
  std::string table_;
};

// Gradients by name; the token table's is the sum of what its two uses contribute.
void add_gradients(Distances& distances, const Problem& problem, const ModelStepResult& step,
                   const Fp64Step& expected, double bound) {
  for (std::size_t unit = 0; unit < step.gradients.size(); ++unit) {
    const bool embedding = unit + 1 == step.gradients.size();
    for (const TensorLayout& tensor : layout_of(problem.model, unit)) {
      const auto offset = static_cast<std::size_t>(tensor.offset);
      const auto n = static_cast<std::size_t>(tensor.rows * tensor.columns);
      std::vector<double> sum(n);
      for (std::size_t i = 0; i < n; ++i) {
        sum[i] = static_cast<double>(step.gradients[unit][offset + i]);
        if (embedding) sum[i] += static_cast<double>(step.head_gradient[offset + i]);
      }
      distances.add(full_name(problem.model, unit, tensor.name), sum.data(),
                    expected.gradients[unit].data() + offset, n, bound);
    }
  }
}

template <class Element>
Distances cuda_distances(const ModelCase& test, std::int64_t sequences_at_once,
                         std::int64_t least_chunks,
                         GeluBackward gelu_backward = GeluBackward::kernel) {
  constexpr bool exact = std::is_same_v<Element, float>;
  const Problem problem = in_precision_of<Element>(test.problem, sequences_at_once);
  const Fp64Step expected =
      run_fp64_step(problem, rounded_units<Element>(test.parameters), test.tokens, test.targets);
  const DeviceArray<std::byte> workspace(model_workspace_bytes(problem));
  ModelStep<Element> step(problem, workspace, test.parameters, test.tokens, test.targets, {},
                          gelu_backward);
  const std::int64_t rows = problem.workload.micro_batch * problem.workload.sequence;
  CHECK(rows > (least_chunks - 1) * step.model().head_rows());
  step.keep_logits();
  step.enqueue();
  const ModelStepResult result = step.result();
  const std::vector<float> logits = step.logits();
  REQUIRE(logits.size() == expected.logits.size());

  Distances distances;
  const double near = exact ? 2e-6 : 0.02, bound = exact ? 5e-6 : 0.03;
  distances.add("logits", logits.data(), expected.logits.data(), logits.size(), near);
  distances.add("token losses", result.token_losses.data(), expected.token_losses.data(),
                expected.token_losses.size(), near);
  distances.add("loss", &result.loss, &expected.loss, 1, near);
  add_gradients(distances, problem, result, expected, bound);
  return distances;
}

}  // namespace

TEMPLATE_TEST_CASE("GptCuda: logits, loss and all gradients of a step are those of fp64", "[step]",
                   float, bf16) {
  // Two micro-batches of four sequences of 70 tokens: two tiles of attention, and chunks of the
  // head that end within sequences. A token table of 211 rows, a prime.
  const ModelCase test = make_model_case(gpt_problem(211, 2, 48, 2, 70, 8, 4));
  const auto check = [&](std::int64_t sequences_at_once, std::int64_t least_chunks) {
    const auto distances = cuda_distances<TestType>(test, sequences_at_once, least_chunks);
    INFO(sequences_at_once << " sequences at once\n" << distances.table());
    CHECK(distances.agree());
  };
  check(1, 3);
  check(4, 1);
}

TEMPLATE_TEST_CASE("GptCuda: gradients are those of fp64 with GELU's slope in the product",
                   "[step]", float, bf16) {
  // As many roundings as with the kernel, but one less of each gradient; the sums of a bias are
  // rounded once a group more. Groups of one and of several sequences, in two micro-batches.
  const ModelCase test = make_model_case(gpt_problem(53, 1, 48, 2, 20, 8, 4));
  for (const GeluBackward how : {GeluBackward::dgelu, GeluBackward::dgelu_bgrad}) {
    for (const std::int64_t at_once : {1, 4}) {
      const auto distances = cuda_distances<TestType>(test, at_once, 1, how);
      INFO(name_of(how) << ", " << at_once << " sequences at once\n" << distances.table());
      CHECK(distances.agree());
    }
  }
}

TEMPLATE_TEST_CASE("GptCuda: logits, loss and all gradients of PyTorch's GPT-2", "[step]", float,
                   bf16) {
  const PyTorchReference reference;
  const Problem problem = reference.problem();
  const ModelCase test{problem, reference_parameters(reference, problem.model),
                       reference.tensor<std::int32_t>("tokens"),
                       reference.tensor<std::int32_t>("targets")};
  const auto distances = cuda_distances<TestType>(test, 2, 1);
  INFO(distances.table());
  CHECK(distances.agree());
}

TEST_CASE("The GPT-2 in fp64 that the GPU is held to is PyTorch's", "[step]") {
  // What PyTorch computed in fp64 is stored in fp32, losses in fp64.
  const PyTorchReference reference;
  const Problem problem = reference.problem();
  const Fp64Step step = run_fp64_step(problem, reference_parameters(reference, problem.model),
                                      reference.tensor<std::int32_t>("tokens"),
                                      reference.tensor<std::int32_t>("targets"));
  Distances distances;
  const auto expected = reference.tensor<double>("token_losses");
  distances.add("token losses", step.token_losses.data(), expected.data(), expected.size(), 1e-12);
  for (std::size_t unit = 0; unit < step.gradients.size(); ++unit) {
    for (const TensorLayout& tensor : layout_of(problem.model, unit)) {
      const std::string name = full_name(problem.model, unit, tensor.name);
      const auto theirs = doubles(reference.tensor<float>("gradients." + name));
      distances.add(name, step.gradients[unit].data() + tensor.offset, theirs.data(), theirs.size(),
                    1e-7);
    }
  }
  INFO(distances.table());
  CHECK(distances.agree());
}
