// --plugin: policies of shared libraries, and what is said where one cannot be had.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>

#include "test_paths.hpp"
#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;
namespace fs = std::filesystem;

namespace {

std::string plugin(const std::string& name) { return SPILLWAY_PLUGINS_FOLDER "/" + name + ".so"; }

const Words with_hybrid = {"--plugin", plugin("hybrid")};

Words on_testbed(const std::string& command) {
  return Words{command, "--machine", "testbed"} + tiny_problem();
}

// While it lives, the environment names these plugins.
class NamedPlugins {
 public:
  explicit NamedPlugins(const std::string& paths) {
    ::setenv("SPILLWAY_PLUGINS", paths.c_str(), 1);
  }
  ~NamedPlugins() { ::unsetenv("SPILLWAY_PLUGINS"); }
  NamedPlugins(const NamedPlugins&) = delete;
  NamedPlugins& operator=(const NamedPlugins&) = delete;
};

}  // namespace

TEST_CASE("the policy of a plugin is simulated, compared, listed, and swept by its options") {
  const Outcome simulated =
      run(on_testbed("simulate") + with_hybrid + Words{"--policy", "hybrid:lower=0.25", "--json"});
  INFO(simulated.err);
  REQUIRE(simulated.exit_code == 0);
  CHECK(simulated.json()["policy"] == "hybrid:lower=0.25");
  CHECK(simulated.json()["step_seconds"] > 0.0);

  const json all = run(on_testbed("compare") + with_hybrid + Words{"--json"}).json()["policies"];
  const auto is_hybrid = [](const json& one) { return one["policy"] == "hybrid"; };
  CHECK(std::count_if(all.begin(), all.end(), is_hybrid) == 1);

  const json listed = run(Words{"policies", "--json"} + with_hybrid).json()["policies"].back();
  CHECK(listed["name"] == "hybrid");
  CHECK(listed["origin"]["kind"] == "plugin");
  CHECK(listed["origin"]["from"] == plugin("hybrid"));
  CHECK(listed["options"][0]["name"] == "lower");
  CHECK(listed["options"][0]["values"] == "a number from 0 to 1");

  const TemporaryFolder folder;
  const std::string file = folder.write(
      "s.toml",
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\nsequence = 16\nbatch = 4\n"
      "micro_batch = 1\npolicy = \"hybrid\"\n[[axis]]\n\"hybrid.lower\" = [0, 0.5, 1]\n");
  const Words sweep = Words{"sweep", file, "--out", folder / "out", "--json"} + with_hybrid;
  const Outcome swept = run(sweep);
  INFO(swept.err);
  CHECK(swept.exit_code == 0);
  CHECK(run(sweep).json()["run"] == 0);  // it has all of them
  check_refusal(run({"sweep", file, "--out", folder / "other"}), 2, "unknown policy hybrid", "");
}

TEST_CASE("a report of a plugin's trace explains it where the plugin is loaded") {
  const TemporaryFolder folder;
  const std::string trace = folder / "t.json.gz";
  REQUIRE(run(on_testbed("simulate") + with_hybrid +
              Words{"--policy", "hybrid", "--trace", trace, "--json"})
              .exit_code == 0);
  const auto page = [&](const Words& more) {
    const Outcome outcome = run(Words{"report", trace, "--out", folder / "r.html"} + more);
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
    return read_file(folder / "r.html");
  };
  CHECK_THAT(page({}), Catch::Contains("comes from the plugin"));
  const std::string explained = page(with_hybrid);
  CHECK_THAT(explained, !Catch::Contains("comes from the plugin"));
  CHECK(explained.size() > page({}).size());
}

TEST_CASE("plugins are named by the environment, too, and as often as one likes") {
  const NamedPlugins named(":" + plugin("hybrid"));
  for (const Words& more : {Words{}, with_hybrid, with_hybrid + with_hybrid}) {
    const Outcome outcome =
        run(on_testbed("simulate") + more + Words{"--policy", "hybrid", "--json"});
    INFO(outcome.err);
    CHECK(outcome.exit_code == 0);
  }
}

TEST_CASE("what is wrong with a plugin is said") {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& path, const std::string& what,
                           const std::string& hint) {
    INFO(path);
    check_refusal(
        run(on_testbed("simulate") + Words{"--plugin", path, "--policy", "resident", "--json"}), 2,
        what, hint);
  };
  const std::string missing = folder / "missing.so";
  refused(missing, "--plugin " + missing + ": No such file", "write-a-policy.md");
  refused(folder.path().string(), "this is no file", "shared library");
  refused(folder.write("text.so", "no library"), "cannot be loaded", "-shared");
  refused(plugin("no_plugin"), "no plugin: it has no spillway_plugin", "SPILLWAY_PLUGIN(CLASS)");
  refused(plugin("other_version"), "built for spillway 0.0.1, headers 0123456789abcdef, and this",
          "build it again");
  refused(plugin("lacks"), "undefined symbol", "build it again");
  refused(plugin("name_taken"), "there is a policy greedysnake already, which is built in",
          "another name");
  const fs::path copy = folder.path() / "copy.so";
  fs::copy_file(plugin("hybrid"), copy);
  check_refusal(run(on_testbed("simulate") + with_hybrid +
                    Words{"--plugin", copy.string(), "--policy", "hybrid"}),
                2, "there is a policy hybrid already, from " + plugin("hybrid"), "another name");
  check_refusal(run(on_testbed("simulate") + Words{"--policy", "hybrid"}), 2,
                "unknown policy 'hybrid'", "--plugin FILE");
  check_refusal(run(on_testbed("simulate") + with_hybrid + Words{"--policy", "hybrid:lower=2"}), 2,
                "policy hybrid: option lower=2 is not a number from 0 to 1", "share of the layers");
  const NamedPlugins named(missing);
  check_refusal(run({"policies"}), 2, "SPILLWAY_PLUGINS names", "write-a-policy.md");
}

TEST_CASE("a trace of a plugin's policy says which plugin it needs") {
  const TemporaryFolder folder;
  const std::string trace = folder / "trace.json";
  REQUIRE(run(on_testbed("simulate") + with_hybrid + Words{"--policy", "hybrid", "--trace", trace})
              .exit_code == 0);
  check_refusal(run({"validate", trace}), 2,
                trace + ": its policy hybrid comes from the plugin " + plugin("hybrid") +
                    ", which is not loaded",
                "--plugin " + plugin("hybrid"));
  const Outcome validated = run(Words{"validate", trace, "--json"} + with_hybrid);
  INFO(validated.err);
  CHECK(validated.exit_code == 0);
  CHECK(validated.json()["error"].get<double>() == Approx(0).margin(1e-9));
}

TEST_CASE("a plugin's policy trains bit for bit as resident does, and its run goes on", "[store]") {
  const TemporaryFolder folder;
  const auto training = [&](const std::string& run_folder, const std::string& policy) {
    return tiny_training(folder) + with_hybrid +
           Words{"--policy",     policy, "--steps",     "6",     "--json",
                 "--gpu-memory", "64MB", "--no-export", "--run", folder / run_folder};
  };
  const Outcome resident = run(training("resident", "resident"));
  const Outcome hybrid = run(training("hybrid", "hybrid:optimizer_ssd=0.5"));
  INFO(resident.err << hybrid.err);
  REQUIRE(resident.exit_code == 0);
  REQUIRE(hybrid.exit_code == 0);
  CHECK(recorded_losses(folder / "hybrid") == recorded_losses(folder / "resident"));
  CHECK(hybrid.json_lines().back()["weights_hash"] == resident.json_lines().back()["weights_hash"]);
  CHECK_THAT(read_file(fs::path(folder / "hybrid") / "config.toml"),
             Catch::Contains("plugin " + plugin("hybrid")));

  const Words resume = {"train", "--resume", "--run", folder / "hybrid", "--steps", "8", "--json"};
  check_refusal(run(resume), 2, "its policy hybrid comes from the plugin " + plugin("hybrid"),
                "--plugin " + plugin("hybrid"));
  const Outcome resumed = run(resume + with_hybrid);
  INFO(resumed.err);
  CHECK(resumed.exit_code == 0);
  CHECK(resumed.json_lines().front()["policy"] == "hybrid:optimizer_ssd=0.5");
  // Another policy needs no plugin.
  CHECK(run(Words{"train", "--resume", "--run", folder / "hybrid", "--steps", "9", "--json",
                  "--policy", "zero-infinity"})
            .exit_code == 0);
}
