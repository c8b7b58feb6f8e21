// Policy texts: "greedysnake:alpha=0.2,snake=off" and anything else.
#include "policies/common/policy.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace spillway;

SPILLWAY_FUZZ_TARGET(policy) {
  std::string canonical;
  if (!fuzz::accepted([&] { canonical = canonical_policy(fuzz::text_of(input)); })) return;
  fuzz::require(fuzz::accepted([&] { static_cast<void>(make_policy(fuzz::text_of(input))); }),
                "a text that has a canonical form makes a policy");
  std::string again;
  fuzz::require(fuzz::accepted([&] { again = canonical_policy(canonical); }),
                "the canonical text of a policy is one");
  fuzz::require(again == canonical, "the canonical text is its own canonical text");
}
