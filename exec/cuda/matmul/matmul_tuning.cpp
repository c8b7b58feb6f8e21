#include "exec/cuda/matmul/matmul_tuning.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "exec/cuda/device/launch.hpp"
#include "exec/cuda/matmul/sample_numbers.hpp"

namespace spillway::cuda {

namespace {

constexpr int rounds = 5;
// Calls that are timed in a row take about so long, so that an event's own time does not count.
constexpr double seconds_in_a_row = 200e-6;
constexpr int most_calls = 20;
double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// From the first to the last element of a result.
std::size_t extent(const MatmulOperand& operand, cudaDataType_t type) {
  const std::int64_t elements = (operand.columns - 1) * operand.stride + operand.rows;
  return static_cast<std::size_t>(elements) * bytes_of(type);
}

// Which dimension of A and of B is summed over (matmul_plan.hpp says how products are laid out).
SummedOver summed_over_of_a(MatmulForm form) {
  return form == MatmulForm::linear ? SummedOver::rows : SummedOver::columns;
}
SummedOver summed_over_of_b(MatmulForm form) {
  return form == MatmulForm::weight_gradient ? SummedOver::columns : SummedOver::rows;
}

struct Candidate {
  cublasLtMatmulAlgo_t algorithm;
  int calls = 1;
  std::vector<double> seconds = {};
};

}  // namespace

// What a product leaves: its result and, of some, the sums over its rows.
struct MatmulTuning::Bits {
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  std::uint64_t result = 0, sums = 0;
  bool operator==(const Bits&) const = default;
};

MatmulTuning::MatmulTuning(std::byte* memory, std::byte* workspace, cudaStream_t stream)
    : memory_(memory), workspace_(workspace), stream_(stream) {
  static_assert(digest_workspace_bytes <= memory_bytes);
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&start_, cudaEventDefault));
  SPILLWAY_CUDA(cudaEventCreateWithFlags(&end_, cudaEventDefault));
}

MatmulTuning::~MatmulTuning() {
  if (start_ != nullptr) static_cast<void>(cudaEventDestroy(start_));
  if (end_ != nullptr) static_cast<void>(cudaEventDestroy(end_));
}

// What is added would hide what is left of a sum that vanishes.
void MatmulTuning::fill_added(const void* data, const MatmulShape& shape,
                              const MatmulOperand& operand, std::uint64_t seed,
                              bool vanishes) const {
  void* const to = const_cast<void*>(data);
  if (!vanishes) return fill(to, shape.result_type, operand, {seed}, stream_);
  SPILLWAY_CUDA(cudaMemsetAsync(to, 0, extent(operand, shape.result_type), stream_));
}

void MatmulTuning::fill_operands(const MatmulProduct& product, bool vanishes) const {
  const MatmulShape& shape = product.shape;
  fill(const_cast<void*>(product.a), shape.type, shape.a,
       {1, vanishes, false, summed_over_of_a(shape.form)}, stream_);
  fill(const_cast<void*>(product.b), shape.type, shape.b,
       {2, vanishes, true, summed_over_of_b(shape.form)}, stream_);
  if (product.gelu_input != nullptr)
    fill(const_cast<void*>(product.gelu_input), shape.result_type, shape.d, {3}, stream_);
  if (product.c != product.d) fill_added(product.c, shape, shape.c, 4, vanishes);
}

void MatmulTuning::fill_result(const MatmulProduct& product, bool vanishes) const {
  const MatmulShape& shape = product.shape;
  // A bias that is added, or the sums of another algorithm.
  if (product.bias != nullptr)
    fill_added(product.bias, shape, {shape.d.rows, 1, shape.d.rows}, 5, vanishes);
  fill_added(product.d, shape, shape.d, 6, vanishes);
}

MatmulTuning::Bits MatmulTuning::bits_of(const MatmulPlan& plan, const MatmulProduct& product,
                                         bool vanishes) const {
  const MatmulShape& shape = product.shape;
  fill_result(product, vanishes);
  Bits bits;
  bits.status = plan.run(product, workspace_, stream_);
  if (bits.status != CUBLAS_STATUS_SUCCESS) return bits;
  bits.result = digest(product.d, extent(shape.d, shape.result_type), memory_, stream_);
  if (shape.form == MatmulForm::gelu_gradient && product.bias != nullptr) {
    const std::size_t sums = static_cast<std::size_t>(shape.d.rows) * bytes_of(shape.result_type);
    bits.sums = digest(product.bias, sums, memory_, stream_);
  }
  return bits;
}

std::vector<cublasLtMatmulAlgo_t> MatmulTuning::equal_to_first(
    MatmulPlan& plan, const MatmulProduct& product,
    const std::vector<cublasLtMatmulAlgo_t>& candidates, bool vanishes) const {
  std::vector<cublasLtMatmulAlgo_t> equal = {candidates.front()};
  fill_operands(product, vanishes);
  plan.choose(candidates.front());
  const Bits expected = bits_of(plan, product, vanishes);
  require_product(expected.status, "cublasLtMatmul", product.shape);
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    plan.choose(candidates[i]);
    if (bits_of(plan, product, vanishes) == expected) equal.push_back(candidates[i]);
  }
  return equal;
}

double MatmulTuning::time(const MatmulPlan& plan, const MatmulProduct& product, int calls) const {
  SPILLWAY_CUDA(cudaEventRecord(start_, stream_));
  for (int i = 0; i < calls; ++i)
    require_product(plan.run(product, workspace_, stream_), "cublasLtMatmul", product.shape);
  SPILLWAY_CUDA(cudaEventRecord(end_, stream_));
  SPILLWAY_CUDA(cudaEventSynchronize(end_));
  float milliseconds = 0;
  SPILLWAY_CUDA(cudaEventElapsedTime(&milliseconds, start_, end_));
  return static_cast<double>(milliseconds) / 1e3 / calls;
}

cublasLtMatmulAlgo_t MatmulTuning::choose(MatmulPlan& plan, const MatmulProduct& product,
                                          const std::vector<cublasLtMatmulAlgo_t>& candidates) {
  SPILLWAY_ASSERT(!candidates.empty());
  std::vector<cublasLtMatmulAlgo_t> usable = {candidates.front()};
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    // What is recorded must be of use to the training that goes on with it.
    if (plan.check(candidates[i]) == CUBLAS_STATUS_SUCCESS) usable.push_back(candidates[i]);
  }
  for (const bool vanishes : {true, false})
    usable = equal_to_first(plan, product, usable, vanishes);
  if (usable.size() == 1) return usable.front();

  std::vector<Candidate> equal;
  for (const cublasLtMatmulAlgo_t& algorithm : usable) equal.push_back({algorithm});
  for (Candidate& one : equal) {
    plan.choose(one.algorithm);
    const double seconds = time(plan, product, 1);
    one.calls = static_cast<int>(
        std::clamp(std::ceil(seconds_in_a_row / std::max(seconds, 1e-9)), 1.0, double{most_calls}));
  }
  // In turn, so that clocks that rise or fall meanwhile favour none of them.
  for (int round = 0; round < rounds; ++round) {
    for (Candidate& one : equal) {
      plan.choose(one.algorithm);
      one.seconds.push_back(time(plan, product, one.calls));
    }
  }
  const auto fastest =
      std::min_element(equal.begin(), equal.end(), [](const Candidate& a, const Candidate& b) {
        return median_of(a.seconds) < median_of(b.seconds);
      });
  const bool gains =
      median_of(fastest->seconds) < (1 - least_gain) * median_of(equal.front().seconds);
  return gains ? fastest->algorithm : equal.front().algorithm;
}

}  // namespace spillway::cuda
