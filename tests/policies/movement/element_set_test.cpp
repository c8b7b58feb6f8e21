// Which elements of a unit were updated: against a list of single elements.
#include "policies/movement/element_set.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

using namespace spillway;

TEST_CASE("A set of elements holds exactly what was added, in whatever order") {
  constexpr std::uint64_t elements = 60;
  const unsigned seed = GENERATE(1U, 2U, 3U, 4U, 5U);
  INFO("seed " << seed);
  std::mt19937 random(seed);
  ElementSet set;
  std::vector<bool> expected(elements, false);
  for (int call = 0; call < 200; ++call) {
    const std::uint64_t from = random() % elements;
    const std::uint64_t to = from + 1 + random() % std::min<std::uint64_t>(7, elements - from);
    bool is_taken = false;
    for (std::uint64_t e = from; e < to; ++e) is_taken = is_taken || expected[e];
    REQUIRE(set.holds_any_of(from, to) == is_taken);
    if (is_taken) continue;
    set.add(from, to);
    for (std::uint64_t e = from; e < to; ++e) expected[e] = true;
    std::uint64_t held = 0;
    for (std::uint64_t e = 0; e < elements; ++e) {
      REQUIRE(set.contains(e) == expected[e]);
      if (expected[e]) ++held;
    }
    REQUIRE(set.size() == held);
    std::vector<bool> not_missing(elements, true);
    for (const ElementSet::Run& run : set.missing(elements)) {
      REQUIRE(run.from < run.to);
      for (std::uint64_t e = run.from; e < run.to; ++e) not_missing[e] = false;
    }
    REQUIRE(not_missing == expected);
  }
}

TEST_CASE("Parts added in a row leave one gap at most, whichever way they go") {
  for (const bool down : {false, true}) {
    ElementSet set;
    for (std::uint64_t part = 0; part < 10; ++part) {
      const std::uint64_t from = 5 * (down ? 9 - part : part);
      set.add(from, from + 5);
      CHECK(set.missing(50).size() == (part == 9 ? 0 : 1));
    }
  }
}
