// What does not fit: exit code 3, and a hint that, added to the command, makes it fit.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

namespace {

// The options of `  hint: --gpu-memory 29351936B ... would make it fit; or ...`.
Words settings_in_hint(const Outcome& outcome) {
  const std::string hint = lines_of(outcome.err).back(), start = "  hint: ";
  const std::size_t end = hint.find(" would make it fit");
  REQUIRE(hint.rfind(start, 0) == 0);
  REQUIRE(end != std::string::npos);
  std::istringstream words(hint.substr(start.size(), end - start.size()));
  Words settings;
  for (std::string word; words >> word;) settings.push_back(word);
  return settings;
}

}  // namespace

TEST_CASE("The setting that the hint names makes it fit") {
  const TemporaryFolder folder;
  const Words on_testbed =
      Words{"--machine", "testbed", "--policy", "zero-infinity"} + tiny_problem();
  const std::vector<Words> too_little = {
      {"--gpu-memory", "100KB"},
      {"--set", "gpu.memory=100KB"},
      {"--host-memory", "100KB"},
      {"--set", "ssd.capacity=1MB"},
      {"--gpu-memory", "1MB", "--host-memory", "1MB", "--set", "ssd.capacity=1MB"}};
  for (const char* command : {"simulate", "estimate"}) {
    for (const Words& limits : too_little) {
      const Words arguments = Words{command} + on_testbed + limits;
      INFO(Catch::StringMaker<Words>::convert(arguments));
      const Outcome outcome = run(arguments);
      check_complaint(outcome, 3, "does not fit in", "would make it fit");
      const Outcome helped = run(arguments + settings_in_hint(outcome));
      INFO(helped.err);
      CHECK(helped.exit_code == 0);
    }
  }
}

TEST_CASE(
    "train follows the same hint, with and without a machine file, and leaves nothing before") {
  const TemporaryFolder folder;
  for (const Words& machine : {Words{}, Words{"--machine", "testbed"}}) {
    const Words arguments =
        tiny_training(folder) + machine + Words{"--gpu-memory", "100KB", "--host-memory", "1MB"};
    const Outcome outcome = run(arguments);
    check_refusal(outcome, 3, "does not fit in gpu memory: it needs", "would make it fit");
    CHECK(folder.listing() == Words{"text.txt"});
    const Outcome helped = run(arguments + settings_in_hint(outcome) + Words{"--quiet"});
    INFO(helped.err);
    CHECK(helped.exit_code == 0);
    std::filesystem::remove_all(folder / "run");
  }
}

TEST_CASE("compare fails only if no policy fits, and still shows the table") {
  const Words command = Words{"compare", "--machine", "testbed"} + tiny_problem();
  const Outcome none = run(command + Words{"--gpu-memory", "100KB"});
  check_complaint(none, 3, "does not fit", "would make it fit");
  CHECK_THAT(none.out, Catch::Contains("does not fit: gpu needs"));
  const Outcome json = run(command + Words{"--gpu-memory", "100KB", "--json"});
  CHECK(json.exit_code == 3);
  for (const auto& policy : json.json()["policies"]) CHECK(policy["fits"] == false);
  // 6 MB hold a policy that offloads, not the whole model with its optimizer state.
  const Outcome some = run(command + Words{"--gpu-memory", "6MB", "--json"});
  CHECK(some.exit_code == 0);
  const nlohmann::json list = some.json()["policies"];
  CHECK(list[0]["policy"] == "resident");
  CHECK(list[0]["fits"] == false);
}
