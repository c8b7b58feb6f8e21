// What does not fit: exit code 3, and a hint that, added to the command, makes it fit.
#include <catch2/catch.hpp>
#include <sstream>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using Words = std::vector<std::string>;

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

namespace {

// The settings of every change that a hint names: "A would make it fit; or B (a note); or C".
std::vector<Words> all_settings_in_hint(const Outcome& outcome) {
  std::string hint = lines_of(outcome.err).back();
  const std::string start = "  hint: ", claim = " would make it fit", next = "; or ";
  REQUIRE(hint.rfind(start, 0) == 0);
  hint = hint.substr(start.size()) + next;
  REQUIRE(hint.find(claim) != std::string::npos);
  hint.erase(hint.find(claim), claim.size());
  std::vector<Words> all;
  for (std::size_t at = 0, end; (end = hint.find(next, at)) != std::string::npos;
       at = end + next.size()) {
    std::istringstream words(hint.substr(at, std::min(end, hint.find(" (", at)) - at));
    Words settings;
    for (std::string word; words >> word;) settings.push_back(word);
    all.push_back(settings);
  }
  return all;
}

}  // namespace

TEST_CASE("Every change that a hint names is one the command takes, and makes it fit", "[slow]") {
  // The reserve of 56 GB makes 44 GB of 100 GB, which is too little. And too little of everything
  // else.
  const Words large = {"--model",  "gpt-65b",       "--machine", "rtx4090-12ssd",
                       "--policy", "zero-infinity", "--batch",   "32"};
  const std::vector<Words> commands = {
      large + Words{"--set", "ssd.count=4", "host.memory=100GB", "host.reserved=56GB"},
      large + Words{"--set", "ssd.capacity=1.2TB"}, large + Words{"--set", "ssd.count=0"},
      large + Words{"--micro-batch", "32", "--gpu-memory", "6GB"},
      Words{"--model", "gpt-175b", "--machine", "a100-80gb", "--policy", "auto", "--batch", "4",
            "--host-memory", "100GB"}};
  for (const Words& command : commands) {
    const Words arguments = Words{"estimate"} + command;
    INFO(Catch::StringMaker<Words>::convert(arguments));
    const Outcome outcome = run(arguments);
    INFO(outcome.err);
    REQUIRE(outcome.exit_code == 3);
    for (const Words& settings : all_settings_in_hint(outcome)) {
      INFO(Catch::StringMaker<Words>::convert(settings));
      const Outcome helped = run(arguments + settings);
      INFO(helped.err);
      CHECK(helped.exit_code == 0);
    }
  }
  const Outcome reserved = run(Words{"estimate"} + commands[0]);
  CHECK_THAT(reserved.err, Catch::Contains("(100.00 GB less the 56.00 GB of host.reserved)"));
  CHECK_THAT(reserved.err, Catch::Contains("of which host.reserved keeps 56GB"));
  CHECK_THAT(reserved.err, !Catch::Contains("a policy that uses the SSD"));
  const Outcome copies = run(Words{"estimate"} + commands[1]);
  CHECK_THAT(copies.err, Catch::Contains("with durability its store needs"));
  CHECK_THAT(copies.err, Catch::Contains("--durability off"));
}

TEST_CASE("compare fails only if no policy fits, and still shows the table") {
  const Words command = Words{"compare", "--machine", "testbed"} + tiny_problem();
  const Outcome none = run(command + Words{"--gpu-memory", "100KB"});
  check_complaint(none, 3, "does not fit", "would make it fit");
  CHECK_THAT(none.out, Catch::Contains("does not fit: gpu needs") && Catch::Contains("lacking"));
  const Outcome json = run(command + Words{"--gpu-memory", "100KB", "--json"});
  CHECK(json.exit_code == 3);
  for (const auto& policy : json.json()["policies"]) {
    CHECK(policy["fits"] == false);
    CHECK(policy["shortfall"]["tier"] == "gpu");
    const auto& gpu = policy["memory"]["gpu"];
    CHECK(policy["shortfall"]["bytes"].get<std::int64_t>() ==
          gpu["peak_bytes"].get<std::int64_t>() - gpu["capacity_bytes"].get<std::int64_t>());
    CHECK(gpu["margin"].get<double>() < 0);
  }
  // 6 MB hold a policy that offloads, not the whole model with its optimizer state.
  const Outcome some = run(command + Words{"--gpu-memory", "6MB", "--json"});
  CHECK(some.exit_code == 0);
  const nlohmann::json list = some.json()["policies"];
  CHECK(list[0]["policy"] == "resident");
  CHECK(list[0]["fits"] == false);
}

TEST_CASE("estimate says with what margin it fits, and by how much it does not") {
  const Words command =
      Words{"estimate", "--machine", "testbed", "--policy", "zero-infinity"} + tiny_problem();
  CHECK_THAT(run(command).out, Catch::Contains("\nfits: ") && Catch::Contains(" memory is left ("));
  // So do simulate, and tune of its plan.
  const Words tune = Words{"tune", "--machine", "testbed"} + tiny_problem();
  for (const Words& other : {Words{"simulate"} + Words(command.begin() + 1, command.end()), tune})
    CHECK_THAT(run(other).out,
               Catch::Contains("\nmemory: ") && Catch::Contains(" memory is left ("));
  const nlohmann::json fits = run(command + Words{"--json"}).json();
  CHECK(fits["shortfall"].is_null());
  const std::string tightest = fits["tightest"];
  for (const char* tier : {"gpu", "host", "ssd"})
    CHECK(fits["memory"][tightest]["margin"] <= fits["memory"][tier]["margin"]);
  const Outcome lacking = run(command + Words{"--gpu-memory", "100KB"});
  CHECK_THAT(lacking.out,
             Catch::Contains("\ndoes not fit: ") && Catch::Contains(" of gpu memory is lacking ("));
}
