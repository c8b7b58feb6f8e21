#include "experiments/tune/front.hpp"

#include <catch2/catch.hpp>

namespace spillway {
namespace {

TrialPrice price(double seconds, std::uint64_t gpu, std::uint64_t host, double written) {
  TrialPrice one;
  one.runs = one.fits = true;
  one.step_seconds = seconds;
  one.peaks = {gpu, host, 0};
  one.bytes_written = written;
  return one;
}

TEST_CASE("a front has the plans that no other is better than in everything") {
  TrialPrice too_large = price(1, 1, 1, 0);
  too_large.fits = false;
  const std::map<Trial, TrialPrice> known = {
      {{1, "fastest"}, price(10, 900, 900, 50)}, {{1, "small"}, price(20, 100, 900, 50)},
      {{1, "worse"}, price(20, 950, 950, 50)},   {{1, "sparing"}, price(15, 900, 900, 0)},
      {{1, "alike"}, price(10.1, 899, 900, 50)},  // by 1 % at most
      {{1, "does not fit"}, too_large},
  };
  const std::vector<PricedTrial> front = pareto_front(known);
  REQUIRE(front.size() == 3);
  CHECK(front[0].first.policy == "fastest");
  CHECK(front[1].first.policy == "sparing");
  CHECK(front[2].first.policy == "small");
  for (const PricedTrial& one : front) {
    for (const PricedTrial& other : front)
      CHECK((one.first.policy == other.first.policy || !covers(other.second, one.second)));
  }
}

}  // namespace
}  // namespace spillway
