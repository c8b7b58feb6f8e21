// The sum over ranks by a kernel: in the order of the ranks, one rounding for each addition.
#include "exec/cuda/ranks/add_up.hpp"

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/cuda/device_memory.hpp"

using namespace spillway;
using namespace spillway::cuda;

namespace {

// `first`: elements that the operands lie behind the start of their memory.
template <class Element>
void check_sum(std::size_t ranks, std::size_t n, std::size_t first, bool adds, bool in_place) {
  INFO(ranks << " ranks, " << n << " elements of " << sizeof(Element) << " bytes from " << first
             << ", adds " << adds << ", in place " << in_place);
  std::vector<std::vector<Element>> of_rank;
  std::vector<std::unique_ptr<DeviceArray<Element>>> memory;
  std::vector<const std::byte*> from;
  for (std::size_t r = 0; r < ranks; ++r) {
    // Of very different sizes, so that another order has other bits.
    const float deviation = static_cast<float>(r % 5 + 1) * (r % 2 == 0 ? 1e4f : 1e-1f);
    of_rank.push_back(random_normal<Element>(first + n, deviation, r + 1));
    memory.push_back(std::make_unique<DeviceArray<Element>>(of_rank.back()));
    from.push_back(reinterpret_cast<const std::byte*>(memory.back()->data() + first));
  }
  const std::vector<Element> apart = random_normal<Element>(first + n, 3, 99);
  const DeviceArray<Element> sums_apart(apart);
  const std::vector<Element>& before = in_place ? of_rank[ranks / 2] : apart;
  const DeviceArray<Element>& sums = in_place ? *memory[ranks / 2] : sums_apart;
  const TestStream stream;
  add_up(from, reinterpret_cast<std::byte*>(sums.data() + first), static_cast<std::int64_t>(n),
         sizeof(Element), adds, stream);
  stream.wait();
  std::vector<Element> expected = before;  // what lies before them stays
  for (std::size_t i = first; i < first + n; ++i) {
    float sum = to_float(of_rank[0][i]);
    for (std::size_t r = 1; r < ranks; ++r) sum += to_float(of_rank[r][i]);
    if (adds) sum += to_float(before[i]);
    expected[i] = from_float<Element>(sum);
  }
  CHECK(same_bits(sums.download(), expected));
}

TEST_CASE("CUDA: sums over ranks are added in their order, bit by bit", "[sanitizer]") {
  for (const std::size_t ranks : {1u, 2u, 3u, 8u, 64u}) {
    for (const std::size_t n : {1u, 7u, 64u, 5003u}) {
      for (const std::size_t first : {0u, 3u}) {
        check_sum<float>(ranks, n, first, false, false);
        check_sum<float>(ranks, n, first, true, false);
        check_sum<float>(ranks, n, first, false, true);
        check_sum<bf16>(ranks, n, first, false, true);
        check_sum<bf16>(ranks, n, first, true, false);
      }
    }
  }
}

}  // namespace
