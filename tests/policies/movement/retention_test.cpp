// Retention by kind as text.
#include "policies/movement/retention.hpp"

#include <catch2/catch.hpp>

#include <string>

using namespace spillway;

TEST_CASE("A retention is what its text says") {
  for (const char* text : {"never", "nearest", "slots(1)", "slots(12)"}) {
    const auto retention = parse_retention(text);
    REQUIRE(retention);
    CHECK(to_text(*retention) == text);
  }
  CHECK(parse_retention("slots(3)")->most == 3);
  for (const char* text : {"", "often", "slots", "slots()", "slots(0)", "slots(-1)", "slots(1.5)",
                           "slots(2", "slots(4294967295)", "nearest "})
    CHECK(!parse_retention(text));
}

TEST_CASE("One retention holds for every kind, and a list for the kinds that it names") {
  const auto all = parse_retention_by_kind("slots(2)");
  REQUIRE(all);
  for_kinds(*all,
            [](const char*, Retention retention) { CHECK(retention == Retention::slots(2)); });
  const auto some = parse_retention_by_kind("saved:nearest+gradients:slots(4)+parameters:never");
  REQUIRE(some);
  RetentionByKind expected;
  expected.saved = Retention::nearest();
  expected.gradients = Retention::slots(4);
  CHECK(*some == expected);
}

TEST_CASE("A list with an unknown kind, a kind twice or a bad retention is refused") {
  for (const char* text : {"", "+", "saved", "saved:", "saved:often", "weights:nearest",
                           "saved:nearest+", "+saved:nearest", "saved:nearest+saved:never",
                           "saved:nearest+nearest", "saved:nearest,gradients:never"})
    CHECK(!parse_retention_by_kind(text));
}
