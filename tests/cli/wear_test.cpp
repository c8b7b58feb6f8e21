// What is written to the drives, in every command that tells of it; and that all choose alike.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words on_testbed(const std::string& command, const std::string& policy = "") {
  const Words words = Words{command, "--machine", "testbed"} + tiny_problem();
  return policy.empty() ? words : words + Words{"--policy", policy};
}

}  // namespace

TEST_CASE("Commits count as written, also where no step writes anything") {
  for (const char* command : {"estimate", "simulate"}) {
    INFO(command);
    const Words words = on_testbed(command, "zero-offload");
    const json durable = run(words + Words{"--durability", "interval=10", "--json"}).json();
    REQUIRE(durable["lanes"]["ssd.write"]["bytes"] == 0);
    // 12 bytes of state for each of gpt-tiny's parameters, every 10 steps.
    const double copied = durable["durability"]["bytes_copied_per_commit"];
    CHECK(copied >= 12 * 800'000);
    CHECK(durable["ssd_bytes_written_per_step"].get<double>() >= copied / 10);
    CHECK(durable["memory"]["ssd"]["peak_bytes"] == durable["durability"]["store_bytes"]);
    CHECK(durable["memory"]["ssd"]["peak_bytes"].get<double>() >= 2 * copied);
    CHECK(durable["wear"]["bytes_per_day"].get<double>() ==
          Approx(durable["ssd_bytes_written_per_step"].get<double>() * 86'400 /
                 durable["step_seconds"].get<double>()));
    const json off = run(words + Words{"--durability", "off", "--json"}).json();
    CHECK(off["ssd_bytes_written_per_step"] == 0);
    CHECK(off["memory"]["ssd"]["peak_bytes"] == 0);
    CHECK(off["durability"]["commit_every"] == 0);
    const Outcome text = run(words);
    CHECK_THAT(text.out, Catch::Contains("of optimizer state that rests in memory"));
    CHECK_THAT(text.out, Catch::Contains(" a step by commits)"));
  }
  const json compared =
      run(on_testbed("compare", "zero-offload") + Words{"--durability", "step", "--json"}).json();
  CHECK(compared["policies"][0]["ssd_bytes_written_per_step"] > 9'600'000);
}

TEST_CASE("Another program commits nothing, unless it is asked to") {
  for (const char* command : {"estimate", "simulate"}) {
    INFO(command);
    const Words words =
        on_testbed(command, "zero-infinity") + Words{"--framework", "deepspeed-0.9", "--json"};
    const json theirs = run(words).json();
    CHECK(theirs["durability"]["commit_every"] == 0);
    CHECK(theirs["durability"]["second_copies_bytes"] == 0);
    const json committed = run(words + Words{"--durability", "step"}).json();
    CHECK(committed["durability"]["commit_every"] == 1);
    CHECK(committed["memory"]["ssd"]["peak_bytes"] > theirs["memory"]["ssd"]["peak_bytes"]);
  }
}

TEST_CASE("When the drives' write cache is full is told wherever wear is, and when it never is") {
  for (const char* command : {"estimate", "simulate"}) {
    INFO(command);
    const Words words = on_testbed(command, "zero-infinity") + Words{"--durability", "off"};
    CHECK(run(words + Words{"--json"}).json()["wear"]["cache_bytes"].is_null());
    CHECK_THAT(run(words).out, !Catch::Contains("write cache"));
    const Words cache = words + Words{"--set", "ssd.cache=1GB", "--set", "ssd.cache_write=2GB/s"};
    const json full = run(cache + Words{"--json"}).json();
    CHECK(full["wear"]["cache_bytes"] == 1'000'000'000);
    // Less what is written before the first step, which is no more than ever rests on the drives.
    const double steps = full["wear"]["steps_until_cache_full"].get<double>();
    const double written = full["ssd_bytes_written_per_step"].get<double>();
    CHECK(steps * written < 1e9);
    CHECK(steps * written >= 1e9 - full["memory"]["ssd"]["peak_bytes"].get<double>());
    CHECK_THAT(run(cache).out, Catch::Contains("1.00 GB at 2.0 GB/s: full after some") &&
                                   Catch::Contains("then 500.0 MB/s") &&
                                   Catch::Contains("not known: taken not to"));
    const Words emptied = cache + Words{"--set", "ssd.cache_recovery=1.9GB/s"};
    const json never = run(emptied + Words{"--json"}).json();
    CHECK(never["wear"]["steps_until_cache_full"].is_null());
    CHECK(never["step_seconds"].get<double>() < full["step_seconds"].get<double>());
    CHECK_THAT(run(emptied).out, Catch::Contains("never full at this pace") &&
                                     Catch::Contains("written at 1.9 GB/s or less on average"));
  }
  const Words short_run =
      on_testbed("estimate", "zero-infinity") +
      Words{"--steps",      "2",  "--set", "ssd.cache=1GB", "--set", "ssd.cache_write=2GB/s",
            "--durability", "off"};
  CHECK_THAT(run(short_run).out, Catch::Contains("the run is over before it is full"));
}

TEST_CASE("The whole run is told in bytes, and in the life of the drives where that is known") {
  const Words words = on_testbed("estimate", "zero-infinity");
  const json steps = run(words + Words{"--steps", "1000", "--json"}).json();
  // A step has 2 x 16 tokens.
  const json tokens = run(words + Words{"--tokens", "32k", "--json"}).json();
  CHECK(steps["wear"]["run_bytes"] == tokens["wear"]["run_bytes"]);
  CHECK(steps["wear"]["steps"] == 1000);
  CHECK(steps["wear"]["run_bytes"].get<double>() >
        1000 * steps["lanes"]["ssd.write"]["bytes"].get<double>());
  CHECK(steps["wear"]["drive_years"].is_null());

  const Words rated = words + Words{"--steps", "1000", "--set", "ssd.tbw=1PB"};
  const json wear = run(rated + Words{"--json"}).json()["wear"];
  CHECK(wear["rated_bytes"] == 1'000'000'000'000'000);
  CHECK(wear["share_of_rating"].get<double>() == Approx(wear["run_bytes"].get<double>() / 1e15));
  CHECK(wear["drive_years"].get<double>() ==
        Approx(1e15 / wear["bytes_per_day"].get<double>() / 365.25));
  CHECK_THAT(run(rated).out, Catch::Contains("rated for 1.00 PB") &&
                                 Catch::Contains("at this rate; this run takes") &&
                                 Catch::Contains("written in 1000 steps"));
  const Outcome table =
      run(on_testbed("compare") + Words{"--steps", "1000", "--set", "ssd.tbw=1PB"});
  CHECK_THAT(table.out, Catch::Contains("whole run") && Catch::Contains("drives last"));

  check_refusal(run(words + Words{"--tokens", "many"}), 2, "--tokens many", "--tokens 300B");
  check_refusal(run(words + Words{"--steps", "0"}), 2, "--steps 0", "--steps 10000");
  check_refusal(run(words + Words{"--durability", "often"}), 2, "--durability often",
                "leave it out");
}

TEST_CASE("estimate says in how many days tokens are trained, and what may make it faster") {
  const Words desktop = {"estimate", "--model", "smollm2-135m", "--machine", "rtx4090-2ssd"};
  const json result = run(desktop + Words{"--json"}).json();
  REQUIRE(result["bound_by"] == "gpu.compute");
  CHECK(result["machine"] == "rtx4090-2ssd");
  CHECK(result["wear"]["drive_years"] > 0.0);
  const Outcome text = run(desktop);
  CHECK_THAT(text.out, Catch::Contains("gpu.compute sets the bound") &&
                           Catch::Contains("a day; 1 billion in ") &&
                           !Catch::Contains("--smallest-batch"));
  // Where the length is given, it stands for the billion.
  CHECK_THAT(run(desktop + Words{"--tokens", "2B"}).out,
             Catch::Contains("whole run") && !Catch::Contains("1 billion"));
  // Optimizer state that goes through the drives for every few tokens.
  const Outcome slow = run(desktop + Words{"--policy", "zero-infinity", "--batch", "1"});
  CHECK_THAT(slow.out, Catch::Contains("ssd") && Catch::Contains("sets the bound") &&
                           Catch::Contains("a larger --batch than 1 may train more"));
  const Outcome worn = run(on_testbed("estimate", "zero-infinity") +
                           Words{"--steps", "1000", "--set", "ssd.tbw=1GB"});
  CHECK_THAT(worn.out, Catch::Contains("; this run writes ") && Catch::Contains(" times that"));
}

TEST_CASE("where the fastest plan wears drives out in a year, estimate names one that does not") {
  const Words problem = {"--model", "llama-3-8b",     "--machine",        "rtx4090-2ssd",
                         "--set",   "model.layers=4", "host.memory=48GiB"};
  for (const char* batch : {"8", "16"}) {
    INFO(batch);
    const json table = run(Words{"compare"} + problem + Words{"--batch", batch, "--json"}).json();
    json fastest, sparing;
    for (const json& policy : table["policies"]) {
      if (policy["policy"] == table["auto"]) fastest = policy;
      if (policy["wear"].is_null() || policy["wear"]["drive_years"] < 1.0) continue;
      if (sparing.is_null() || policy["step_seconds"] < sparing["step_seconds"]) sparing = policy;
    }
    const Outcome text = run(Words{"estimate"} + problem + Words{"--batch", batch});
    if (fastest["wear"]["drive_years"] >= 1.0) {
      CHECK_THAT(text.out, !Catch::Contains("longer, and they last"));
      continue;
    }
    REQUIRE_FALSE(sparing.is_null());
    CHECK_THAT(text.out, Catch::Contains(" " + sparing["policy"].get<std::string>() + " takes ") &&
                             Catch::Contains(" % longer, and they last ") &&
                             Catch::Contains(" years\n"));
    CHECK(batch == std::string("16"));
  }
}

TEST_CASE("compare, estimate, simulate and train choose the same policy and predict the same") {
  const TemporaryFolder folder;
  const Words limits = {"--gpu-memory", "16MB", "--host-memory", "64MB", "--json"};
  const json table = run(on_testbed("compare") + limits).json();
  json winner;
  bool swaps = false;
  for (const json& policy : table["policies"]) {
    if (policy["policy"] == table["auto"]) winner = policy;
    const std::string name = policy["policy"];
    swaps = swaps || (name.rfind("fuyou:", 0) == 0 && name.find("swap=auto") != std::string::npos);
  }
  CHECK(swaps);
  REQUIRE_FALSE(winner.is_null());
  for (const char* command : {"estimate", "simulate"}) {
    INFO(command);
    const json one = run(on_testbed(command, "auto") + limits).json();
    for (const char* key : {"policy", "workload", "step_seconds", "memory", "wear", "durability"})
      CHECK(one[key] == winner[key]);
  }
  const Outcome trained =
      run(tiny_training(folder) + Words{"--policy", "auto", "--machine", "testbed"} + limits);
  INFO(trained.err);
  REQUIRE(trained.exit_code == 0);
  const json start = trained.json_lines().front();
  CHECK(start["policy"] == winner["policy"]);
  CHECK(start["workload"]["micro_batch"] == winner["workload"]["micro_batch"]);
  CHECK(start["predicted_step_seconds"] == winner["step_seconds"]);
  // No more than the two steps that there are.
  CHECK(start["durability"]["commit_every"] ==
        std::min<std::int64_t>(2, winner["durability"]["commit_every"]));
}

TEST_CASE("train tells what it will write before it starts, and counts what it wrote") {
  const TemporaryFolder folder;
  const Words training = tiny_training(folder) +
                         Words{"--policy", "zero-offload", "--machine",  "testbed", "--steps",
                               "5",        "--durability", "interval=2", "--set",   "ssd.tbw=1TB"};
  const Outcome outcome = run(training + Words{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const std::vector<json> events = outcome.json_lines();
  const json& wear = events.front()["wear"];
  CHECK(wear["steps"] == 5);
  CHECK(wear["bytes_per_day"] > 0);
  CHECK(wear["drive_years"] > 0.0);
  std::uint64_t steps = 0, commits = 0;
  for (const json& event : events) {
    if (event["event"] == "step") steps += event["ssd_bytes_written"].get<std::uint64_t>();
    if (event["event"] == "commit") commits += event["bytes_written"].get<std::uint64_t>();
  }
  // After steps 2, 4 and 5: each copies all state, which rests in memory.
  const std::uint64_t copied = events.front()["durability"]["bytes_copied_per_commit"];
  CHECK(commits >= 3 * copied);
  CHECK(commits == events.back()["commit_bytes_written"]);
  const std::uint64_t all = events.back()["ssd_bytes_written"];
  CHECK(all >= steps + commits);
  // As told before the first step, to the few kilobytes by which records differ.
  CHECK(static_cast<double>(all) == Approx(wear["run_bytes"].get<double>()).epsilon(0.01));
  // A run that goes on tells what is still to do.
  for (const char* more : {"7", "8"}) {
    const std::vector<json> further =
        run({"train", "--resume", "--run", folder / "run", "--steps", more, "--json"}).json_lines();
    const json& left = further.front()["wear"];
    CHECK(left["steps"] ==
          further.back()["steps"].get<int>() - further.front()["first_step"].get<int>());
    CHECK(further.back()["ssd_bytes_written"].get<double>() ==
          Approx(left["run_bytes"].get<double>()).epsilon(0.01));
  }
  CHECK_THAT(run({"train", "--resume", "--run", folder / "run", "--steps", "9"}).out,
             Catch::Contains("still to do") && Catch::Contains("in 1 step, from step 8 on"));
  std::filesystem::remove_all(folder / "run");
  const Outcome text = run(training);
  CHECK_THAT(text.out, Catch::Contains("ssd written") && Catch::Contains("whole run") &&
                           Catch::Contains("rated for 1.00 TB") &&
                           Catch::Contains("every 2 steps"));
}

TEST_CASE("train refuses a store that is too large for the drives only with its second copies") {
  const TemporaryFolder folder;
  // The ssd tier of gpt-tiny takes 19 MB, 11.5 MB of it optimizer state.
  const Words training =
      tiny_training(folder) + Words{"--machine", "testbed", "--set", "ssd.capacity=25MB"};
  const Outcome refused = run(training);
  check_refusal(refused, 3, "with durability its store needs", "--durability off");
  CHECK(folder.listing() == Words{"text.txt"});
  CHECK(run(training + Words{"--durability", "off", "--quiet"}).exit_code == 0);
}
