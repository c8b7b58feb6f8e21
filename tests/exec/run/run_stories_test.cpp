// Whatever users do to the folders of their runs, nothing is lost and nothing of others is touched.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

#include "tests/exec/run/run_story.hpp"

namespace spillway::test {
namespace {

void tell(std::uint64_t first, std::uint64_t count) {
  RunStories stories;
  if (const char* one = std::getenv("SPILLWAY_RUN_STORY")) return stories.tell(std::stoull(one));
  for (std::uint64_t seed = first; seed < first + count; ++seed) stories.tell(seed);
  std::string text;
  for (const auto& [deed, times] : stories.deeds().done)
    text += deed + " " + std::to_string(times) + ", ";
  text += "refused: ";
  for (const auto& [deed, times] : stories.deeds().refused)
    text += deed + " " + std::to_string(times) + ", ";
  std::cerr << count << " stories from seed " << first << ": " << text << "\n";
}

TEST_CASE("runs that are copied, moved, linked, killed and resumed lose nothing", "[store]") {
  tell(1, 20);
}

TEST_CASE("200 stories of runs that are copied, moved, linked, killed and resumed",
          "[store][slow]") {
  tell(1000, 200);
}

}  // namespace
}  // namespace spillway::test
