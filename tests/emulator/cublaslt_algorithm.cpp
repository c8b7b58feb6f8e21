#include "tests/emulator/cublaslt_algorithm.hpp"

#include "tests/emulator/calls.hpp"

namespace emulator {

Order order_of(int algorithm) {
  if (machine().first_product_splits && algorithm <= 2) return {2, algorithm == 2};
  switch (algorithm) {
    case 2:
      return {2, false};
    case 4:
      return {4, false};
    case 5:
      return {1, true};
    default:  // other tiles and stages: the order of the first
      return {};
  }
}

bool offered(int algorithm, std::int64_t k, std::uint32_t reductions) {
  constexpr std::int64_t least_of_a_part = 8;
  const int parts = order_of(algorithm).parts;
  return parts == 1 || ((reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0 &&
                        k >= parts * least_of_a_part);
}

}  // namespace emulator
