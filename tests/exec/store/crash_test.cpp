// Training is killed at random moments, also while it commits or moves to another store, and always
// goes on bit for bit from a commit that loses nothing but the steps that were running.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <random>

#include "tests/exec/store/crash_story.hpp"

namespace spillway::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t moments_by_default = 40;
#else
constexpr std::uint64_t moments_by_default = 200;
#endif
constexpr std::uint64_t moments_by_night = 2000;

// SPILLWAY_TEST_SEED: of the first story, to repeat a failure (whose message names it); with
// SPILLWAY_TEST_MOMENTS=1 only that one is told.
std::uint64_t from_environment(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

void kill_at_moments(std::uint64_t count) {
  const std::uint64_t wanted = from_environment("SPILLWAY_TEST_MOMENTS", count);
  std::uint64_t seed = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  CrashStories stories;
  for (; stories.moments().all() < wanted; ++seed) {
    INFO("seed " << seed << " (SPILLWAY_TEST_SEED=" << seed
                 << " SPILLWAY_TEST_MOMENTS=1 repeats its choices)");
    stories.tell(seed);
  }
  const Moments& moments = stories.moments();
  std::string text = fmt::format(
      "{} moments in {} trainings: {} power cuts, {} kills, {} of them over threads; {} before the "
      "first commit, {} while starting",
      moments.all(), moments.stories, moments.power_cuts, moments.kills, moments.over_threads,
      moments.before_first_commit, moments.starting);
  for (const auto& [policy, times] : moments.of_policy)
    text += fmt::format("\n  {:4} {}", times, policy);
  std::cout << text << std::endl;
  if (wanted < count) return;  // one is repeated
  CHECK(moments.all() >= wanted);
  // Of every kind there were some.
  CHECK(moments.power_cuts > wanted / 5);
  CHECK(moments.kills > wanted / 20);
  CHECK(moments.over_threads > wanted / 8);
  CHECK(moments.over_threads < moments.all() - wanted / 8);
  if (wanted < 200) return;
  CHECK(moments.before_first_commit > 0);
  CHECK(moments.starting > 0);
  for (const std::string& policy : crash_policies()) {
    INFO(policy);
    CHECK(moments.of_policy.count(policy) == 1);
  }
  CHECK(moments.of_policy.count("random") == 1);
}

}  // namespace

TEST_CASE("training that is killed again and again ends with the numbers of one that is not",
          "[store]") {
  kill_at_moments(moments_by_default);
}

TEST_CASE("committed training on a drive that fails goes on exactly, or stops and says where",
          "[store]") {
  const std::uint64_t by_default = moments_by_default / 2;
  const std::uint64_t wanted = from_environment("SPILLWAY_TEST_MOMENTS", by_default);
  std::uint64_t seed = from_environment("SPILLWAY_TEST_SEED", std::random_device{}());
  CrashStories stories;
  for (; stories.moments().faults < wanted; ++seed) {
    INFO("seed " << seed << " (SPILLWAY_TEST_SEED=" << seed
                 << " SPILLWAY_TEST_MOMENTS=1 repeats its choices)");
    stories.tell(seed, Trouble::faults);
  }
  const Moments& moments = stories.moments();
  std::cout << moments.faults << " faults in " << moments.stories
            << " trainings: " << moments.stopped << " stopped, " << moments.lost
            << " refused as damaged" << std::endl;
  if (wanted < by_default) return;  // one is repeated
  CHECK(moments.stopped > 0);
  CHECK(moments.stopped < moments.faults);
}

TEST_CASE("training that is killed two thousand times", "[store][nightly]") {
  kill_at_moments(moments_by_night);
}

}  // namespace spillway::test
