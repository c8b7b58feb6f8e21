// The sum of squares that AdamW tells beside its update.
#include <algorithm>
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "exec/cpu/adam.hpp"

using namespace spillway;

TEST_CASE(
    "AdamW tells the same sum of squares of a unit, cut anywhere on its grid, by any threads") {
  const std::vector<TensorLayout> layout = {{"a", 1, 3001, 0, false}, {"b", 310, 1000, 3001, true}};
  constexpr std::int64_t elements = 154 * element_alignment;
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(elements);
  for (float& value : gradient) value = normal(random);
  std::vector<float> master(elements), m(elements), v(elements), out(elements);
  const auto update = [&](int threads, std::int64_t first, std::int64_t count) {
    ThreadPool pool(threads);
    return adamw_update_unit(pool, master.data() + first, m.data() + first, v.data() + first,
                             gradient.data() + first, nullptr, out.data() + first, first, count,
                             layout, AdamStep());
  };
  const double whole = update(1, 0, elements).value();
  CHECK(whole == Approx(313'001).epsilon(0.01));
  CHECK(update(3, 0, elements).value() == whole);
  for (int round = 0; round < 10; ++round) {
    std::vector<std::int64_t> cuts = {0, 3001, elements};  // one where a tensor begins
    for (int k = 0; k < 4; ++k)
      cuts.push_back(static_cast<std::int64_t>(random() % 154) * element_alignment);
    std::sort(cuts.begin(), cuts.end());
    ExactSum pieces;
    for (std::size_t k = 0; k + 1 < cuts.size(); ++k)
      if (cuts[k] < cuts[k + 1]) pieces.add(update(2, cuts[k], cuts[k + 1] - cuts[k]));
    CHECK(pieces.value() == whole);
  }
}
