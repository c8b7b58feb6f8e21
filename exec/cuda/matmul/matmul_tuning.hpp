// Tries what cuBLASLt's heuristics offer for a matrix product, and chooses.
//
// Only what changes no number may be chosen: an algorithm whose results have the bits of the
// heuristics' first. In which order an algorithm adds up follows from the algorithm and the shape,
// not from the numbers, so two samples of the very shape tell: random operands, and operands whose
// product is zero but for roundings (SampleNumbers), where next to every element differs when the
// order does. Thus two trainings whose measurements turn out differently, under two policies or on
// two days, still have equal bits.
//
// Of those the fastest is chosen where it beats the first by more than measurements scatter. All
// operands are written over as often as it takes: they must be of no use to anybody.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "exec/cuda/matmul/matmul_plan.hpp"

namespace spillway::cuda {

class MatmulTuning {
 public:
  // Algorithms that are asked for.
  static constexpr int most_candidates = 8;
  // Least gain in time that another than the first must show, as a share of the first's.
  static constexpr double least_gain = 0.03;
  // Device memory that it works in, on 256 bytes.
  static constexpr std::size_t memory_bytes = std::size_t{16} << 10;

  // `workspace`: that of the products. Calls wait for `stream`, which must not be captured.
  MatmulTuning(std::byte* memory, std::byte* workspace, cudaStream_t stream);
  ~MatmulTuning();
  MatmulTuning(const MatmulTuning&) = delete;
  MatmulTuning& operator=(const MatmulTuning&) = delete;

  // Which of the plan's candidates, the heuristics' first at the front, computes the product from
  // now on. Leaves the plan with some of them chosen.
  cublasLtMatmulAlgo_t choose(MatmulPlan& plan, const MatmulProduct& product,
                              const std::vector<cublasLtMatmulAlgo_t>& candidates);

 private:
  struct Bits;
  void fill_operands(const MatmulProduct& product, bool vanishes) const;
  // The result, and what it is added to.
  void fill_result(const MatmulProduct& product, bool vanishes) const;
  void fill_added(const void* data, const MatmulShape& shape, const MatmulOperand& operand,
                  std::uint64_t seed, bool vanishes) const;
  Bits bits_of(const MatmulPlan& plan, const MatmulProduct& product, bool vanishes) const;
  // Of `candidates` those with the bits of the first, which is one of them.
  std::vector<cublasLtMatmulAlgo_t> equal_to_first(
      MatmulPlan& plan, const MatmulProduct& product,
      const std::vector<cublasLtMatmulAlgo_t>& candidates, bool vanishes) const;
  // Seconds of one of `calls` calls in a row.
  double time(const MatmulPlan& plan, const MatmulProduct& product, int calls) const;

  std::byte *memory_, *workspace_;
  cudaStream_t stream_;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

}  // namespace spillway::cuda
