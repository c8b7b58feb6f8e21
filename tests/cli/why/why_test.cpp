// `compare A B --why` and `knee`, as a user runs them.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words command(const char* name) { return Words{name, "--machine", "testbed"} + tiny_problem(); }

json json_of(const Words& words) {
  const Outcome outcome = run(words + Words{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}

// Without what a run took itself.
json without_clock(json answer) {
  for (const char* side : {"a", "b"}) {
    answer[side].erase("schedule_seconds");
    answer[side].erase("simulate_seconds");
  }
  return answer;
}

bool has_gnuplot() { return std::system("gnuplot --version > /dev/null 2>&1") == 0; }

}  // namespace

TEST_CASE("compare takes policies by themselves, and with the option") {
  const json by_option =
      json_of(command("compare") + Words{"--policy", "zero-infinity", "--policy", "greedysnake"});
  const json alone = json_of(
      Words{"compare", "zero-infinity", "greedysnake", "--machine", "testbed"} + tiny_problem());
  REQUIRE(alone["policies"].size() == 2);
  CHECK(alone["policies"][0]["policy"] == "zero-infinity");
  CHECK(alone["policies"][1]["step_seconds"] == by_option["policies"][1]["step_seconds"]);
}

TEST_CASE("compare --why: both plans in full, and steps from one to the other that add up") {
  const Words words =
      Words{"compare", "zero-infinity", "greedysnake", "--why", "--machine", "testbed"} +
      tiny_problem();
  const json why = json_of(words);
  CHECK(without_clock(why) == without_clock(json_of(words)));
  const double a = why["a"]["step_seconds"], b = why["b"]["step_seconds"];
  CHECK(why["gain_seconds"].get<double>() == a - b);
  CHECK(why["a"]["policy"] == "zero-infinity");
  CHECK(why["a"]["critical_path"]["parts"].size() > 0);
  CHECK(why["a"]["places"].size() > 3);
  CHECK(why["b"]["work"].size() > 3);
  const json& ablation = why["ablation"];
  CHECK(ablation["settings_of"] == "spillway");
  CHECK(ablation["why_not"].is_null());
  CHECK(ablation["residual_of_a_seconds"] == 0.0);
  CHECK(ablation["residual_of_b_seconds"] == 0.0);
  CHECK(ablation["order"]["ranked_to_the_end"] == true);
  double gains = 0, shares = 0;
  std::size_t settings = 0;
  for (const json& step : ablation["steps"]) {
    gains += step["gain_seconds"].get<double>();
    shares += step["gain_share"].get<double>();
    settings += step["settings"].size();
  }
  CHECK(settings == ablation["settings"].size());
  CHECK(gains == Approx(a - b));
  CHECK(shares == Approx(why["gain_share"].get<double>()));
  CHECK(ablation["steps"].front()["before_seconds"] == a);
  CHECK(ablation["steps"].back()["after_seconds"] == b);
}

TEST_CASE("compare --why: the text names what rests where, lanes, paths, stalls and settings") {
  const Outcome outcome = run(Words{"compare", "zero-infinity", "greedysnake", "--why",
                                    "--change-first", "order.updates", "--machine", "testbed"} +
                              tiny_problem());
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  for (const char* part :
       {"gpt-tiny on testbed", "A zero-infinity\n", "B greedysnake:", "times as fast",
        "at home between steps", "most at once", "optimizer state", "lanes, a step", "ssd.read",
        "critical path, a step", "gpu idle, a step", "from A to B, one setting of policy spillway",
        "those asked for first", "  1 order.updates: ascending -> within", "`alone` is the gain"}) {
    INFO(part);
    CHECK_THAT(outcome.out, Catch::Contains(part));
  }
}

TEST_CASE("compare --why of one policy goes through its own options") {
  const json why = json_of(Words{"compare", "greedysnake", "greedysnake:alpha=0,snake=off", "--why",
                                 "--machine", "testbed", "--micro-batch", "1"} +
                           tiny_problem());
  CHECK(why["ablation"]["settings_of"] == "greedysnake");
  CHECK(why["ablation"]["settings"].size() == 2);
  const json same = json_of(
      Words{"compare", "resident", "resident", "--why", "--machine", "testbed"} + tiny_problem());
  CHECK(same["gain_seconds"] == 0.0);
  CHECK(same["ablation"]["settings"].empty());
}

TEST_CASE("compare --why: of an order of work that no plan says, settings are not told") {
  const Outcome outcome =
      run({"compare", "1f1b", "resident", "--why", "--model", "gpt-13b", "--machine",
           "a100-80gb-4gpu", "--pipeline", "4", "--batch", "8", "--micro-batch", "1"});
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.out, Catch::Contains("one setting at a time: not told"));
  CHECK_THAT(outcome.out,
             Catch::Contains("1f1b takes ") && Catch::Contains("as a plan of policy spillway"));
}

TEST_CASE("compare --why is refused with what would do, and says what does not fit") {
  const Words two =
      Words{"compare", "zero-infinity", "greedysnake", "--machine", "testbed"} + tiny_problem();
  check_refusal(run(Words{"compare", "resident", "--why", "--machine", "testbed"} + tiny_problem()),
                2, "--why is asked of 1 policy", "name the two");
  check_refusal(run(Words{"compare", "--why", "--machine", "testbed"} + tiny_problem()), 2,
                "--why is asked of 0 policies", "name the two");
  check_refusal(run(two + Words{"--gantt", "two.svg"}), 2, "--gantt requires --why",
                "compare --help");
  check_refusal(run(two + Words{"--why", "--gantt", "two.pdf"}), 2, "neither .svg nor .png",
                "name a picture");
  check_complaint(run(two + Words{"--why", "--change-first", "order.rows"}), 2,
                  "do not differ in a setting order.rows", "order.row");
  check_complaint(run(two + Words{"--why", "--gpu-memory", "100KB"}), 3, "does not fit",
                  "would make it fit");
}

TEST_CASE("knee: a curve for each resource, with its knee and what is gained now") {
  const Words words = command("knee") + Words{"--policy",        "zero-infinity", "--resource",
                                              "ssd.count=1,2,4", "--resource",    "pcie"};
  const json knee = json_of(words);
  CHECK(knee["threshold"] == 0.03);
  REQUIRE(knee["resources"].size() == 2);
  const json& drives = knee["resources"][0];
  CHECK(drives["resource"] == "ssd.count");
  CHECK(drives["points"].size() >= 3);
  CHECK(knee["plan"]["policy"].get<std::string>().rfind("zero-infinity", 0) == 0);
  for (const json& point : drives["points"]) {
    if (point["value"] == drives["now"]) {
      CHECK(point["step_seconds"] == knee["plan"]["step_seconds"]);
      CHECK(point["next_gain"] == drives["gain_now"]);
    }
  }
  CHECK(json_of(words)["resources"] == knee["resources"]);
  const Outcome text = run(words + Words{"--gain", "10%"});
  REQUIRE(text.exit_code == 0);
  for (const char* part : {"tried gains 10 %", "<- stops paying", "number of SSDs",
                           "link between host and GPU", "<- now", "the gpu waits most for"})
    CHECK_THAT(text.out, Catch::Contains(part));
}

TEST_CASE(
    "knee: values alike are one line, sizes of hosts are in GiB, and that of now stands out") {
  const Outcome many =
      run(command("knee") + Words{"--policy", "resident", "--resource", "ssd.count=1,2,3,4,5,6"});
  REQUIRE(many.exit_code == 0);
  CHECK_THAT(many.out, Catch::Contains("\n      2 to 6 ") && Catch::Contains("\n           1 ") &&
                           !Catch::Contains("-0.0 %"));
  const Outcome sizes = run(Words{"knee", "--model", "gpt-13b", "--machine", "rtx4090-2ssd",
                                  "--batch", "8", "--micro-batch", "8", "--policy", "fuyou",
                                  "--resource", "host.memory", "--resource", "gpu.memory"});
  INFO(sizes.err);
  REQUIRE(sizes.exit_code == 0);
  for (const char* part : {" 16 GiB ", " 32 GiB to 96 GiB ", " 128 GiB ", " 24.38 GB ",
                           "8 GB to 16 GB ", "32 GB to 96 GB "})
    CHECK_THAT(sizes.out, Catch::Contains(part));
  CHECK_THAT(sizes.out, !Catch::Contains(" 24 GB "));
}

TEST_CASE("knee is refused with what would do, and says what does not fit") {
  const Words words = command("knee") + Words{"--policy", "zero-infinity"};
  check_refusal(run(words + Words{"--resource", "ssds"}), 2, "--resource ssds", "known: ssd.count");
  check_refusal(run(words + Words{"--resource", "pcie", "--resource", "pcie=2"}), 2,
                "--resource pcie: it is named twice", "once");
  check_refusal(run(words + Words{"--gain", "much"}), 2, "--gain much", "--gain 0.05");
  check_complaint(run(words + Words{"--gpu-memory", "100KB"}), 3, "does not fit",
                  "would make it fit");
}

TEST_CASE("pictures of --why and of knee are drawn, the same bytes each time") {
  if (!has_gnuplot()) {
    WARN("there is no gnuplot");
    return;
  }
  const TemporaryFolder folder;
  const Words two =
      Words{"compare", "zero-infinity", "greedysnake", "--why", "--machine", "testbed"} +
      tiny_problem();
  const Words knee = command("knee") + Words{"--policy",        "zero-infinity", "--resource",
                                             "ssd.count=1,2,4", "--resource",    "pcie=1,2"};
  for (const char* name : {"1", "2"}) {
    REQUIRE(run(two + Words{"--gantt", folder / (std::string(name) + "why.svg")}).exit_code == 0);
    REQUIRE(run(knee + Words{"--plot", folder / (std::string(name) + "knee.svg")}).exit_code == 0);
  }
  const std::string why = read_file(folder / "1why.svg"), plot = read_file(folder / "1knee.svg");
  CHECK(why == read_file(folder / "2why.svg"));
  CHECK(plot == read_file(folder / "2knee.svg"));
  CHECK_THAT(why, Catch::Contains("GPU memory") && Catch::Contains("memory in use") &&
                      Catch::Contains("A, zero-infinity") && Catch::Contains("B, greedysnake"));
  CHECK_THAT(plot, Catch::Contains("number of SSDs") && Catch::Contains("tokens/s"));
}

TEST_CASE("knee: drives between the knee and the value before it are named") {
  const Words words = {"knee",     "--model", "gpt-13b", "--machine",  "rtx4090-12ssd",
                       "--policy", "fuyou",   "--batch", "4",          "--micro-batch",
                       "4",        "--gain",  "100%",    "--resource", "ssd.count=1,9,12"};
  const Outcome far = run(words);
  INFO(far.err << far.out);
  REQUIRE(far.exit_code == 0);
  CHECK_THAT(far.out, Catch::Contains("between 1 and 9 none that fits was tried: `--resource "
                                      "ssd.count=1,2,3,4,5,6,7,8,9,12` looks closer"));
  Words near = words;
  near.back() = "ssd.count=1,2,3,4,5,6,7,8,9,12";
  CHECK_THAT(run(near).out, !Catch::Contains("looks closer"));
}
