// The questions that `estimate` answers (docs/questions.md): text, JSON, and what is refused.
#include <catch2/catch.hpp>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

Words ask(const Words& question) {
  return Words{"estimate", "--machine", "testbed"} + tiny_problem() + question;
}

// Of questions that have a batch as their answer.
Words ask_for_batch(const Words& question) {
  return Words{"estimate", "--machine", "testbed", "--model", "gpt-tiny", "--sequence", "16"} +
         question;
}

json json_of(const Words& words) {
  const Outcome outcome = run(words + Words{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  return outcome.json();
}

json answer(const Words& question) { return json_of(ask(question)); }

}  // namespace

TEST_CASE("The smallest batch for a share of the peak comes with the curve") {
  const Words policy = {"--policy", "fuyou"};
  const json found = json_of(ask_for_batch(policy + Words{"--smallest-batch", "50%"}));
  CHECK(found["share"] == 0.5);
  const double peak = found["peak"]["tokens_per_second"];
  CHECK(found["smallest"]["tokens_per_second"].get<double>() >= peak / 2);
  CHECK(found["curve"].size() >= 2);
  CHECK(json_of(ask_for_batch(policy + Words{"--smallest-batch", "0.5"}))["smallest"] ==
        found["smallest"]);
  const Outcome text = run(ask_for_batch(policy + Words{"--smallest-batch", "50%"}));
  CHECK_THAT(text.out, Catch::Contains("<- smallest") && Catch::Contains("50 % of the peak"));
}

TEST_CASE("The cheapest machine of a list is found, or what is missing is said") {
  const TemporaryFolder folder;
  const std::string list = folder.write("prices.toml", R"(currency = "EUR"
machine = "testbed"
price = 10
[[gpu]]
name = "usual"
price = 100
[[gpu]]
name = "double"
price = 300
set = { "gpu.flops" = "180GFLOPS" }
[[drive]]
name = "disk"
price = 20
counts = [1, 2]
capacity = "4GB"
read = "0.8GB/s"
write = "0.5GB/s"
tbw = "1TB"
)");
  const Words words = Words{"estimate"} + tiny_problem() + Words{"--policy", "zero-infinity"} +
                      Words{"--cheapest", list};
  const json slow = run(words + Words{"--tokens-per-second", "1", "--json"}).json();
  CHECK(slow["cheapest"]["price"] == 130);
  CHECK(slow["machines"] == 4);
  CHECK(slow["runners_up"].size() == 3);
  const double one = slow["cheapest"]["tokens_per_second"];
  const double two = slow["runners_up"][0]["tokens_per_second"];
  REQUIRE(two > one);
  const json fast =
      run(words + Words{"--tokens-per-second", std::to_string((one + two) / 2), "--json"}).json();
  CHECK(fast["cheapest"]["price"] == 150);
  CHECK(fast["fastest_below"]["price"] == 130);
  const Outcome text = run(words + Words{"--tokens-per-second", "1"});
  CHECK_THAT(text.out, Catch::Contains("130 EUR") && Catch::Contains("usual, 1 x disk"));
  check_complaint(run(words + Words{"--tokens-per-second", "1e12"}), 3, "no machine of",
                  "sets its bound");
}

TEST_CASE("Of a price list, machines that cannot be are left out, and shortages are named") {
  const TemporaryFolder folder;
  const std::string head = "currency = \"EUR\"\nmachine = \"testbed\"\n";
  const auto find = [&](const std::string& parts, const std::string& wanted) {
    return run(Words{"estimate"} + tiny_problem() +
               Words{"--policy", "zero-infinity", "--cheapest",
                     folder.write("prices.toml", head + parts), "--tokens-per-second", wanted});
  };
  const std::string usual = "[[gpu]]\nname = \"usual\"\nprice = 49.9\n";
  const Outcome some = find(usual +
                                "[[memory]]\nname = \"too little\"\nprice = 1\nsize = \"1kB\"\n"
                                "[[memory]]\nname = \"enough\"\nprice = 2\nsize = \"1GB\"\n",
                            "1");
  INFO(some.out << some.err);
  CHECK(some.exit_code == 0);
  CHECK_THAT(some.out, Catch::Contains("51.90 EUR usual, enough"));
  check_complaint(
      find("[[gpu]]\nname = \"small\"\nprice = 1\nset = { \"gpu.memory\" = \"100kB\" }\n", "1"), 3,
      "nearest is small, which lacks gpu memory", "more gpu memory");
}

TEST_CASE("What a plan may lose is in the text and in the JSON object of estimate") {
  const Words policy = {"--policy", "zero-infinity", "--robust"};
  const json found = answer(policy)["robustness"];
  CHECK(found["worst_step_seconds"].get<double>() > found["step_seconds"].get<double>());
  CHECK(found["rates"].size() >= 5);
  CHECK(answer(policy)["robustness"] == found);
  const Outcome text = run(ask(policy));
  CHECK_THAT(text.out, Catch::Contains("at other rates") && Catch::Contains("all at random"));
  CHECK_FALSE(answer({"--policy", "zero-infinity"}).contains("robustness"));
}

TEST_CASE("How long a number of tokens takes is told in seconds") {
  const json found = answer({"--policy", "zero-infinity", "--tokens", "1M"});
  CHECK(found["wear"]["run_seconds"].get<double>() ==
        Approx(found["wear"]["steps"].get<double>() * found["step_seconds"].get<double>()));
}

TEST_CASE("Questions that cannot be answered name what would do") {
  check_complaint(run(ask({"--smallest-batch", "nine"})), 2, "--smallest-batch nine",
                  "--smallest-batch 90%");
  check_complaint(run(ask({"--smallest-batch", "120%"})), 2, "--smallest-batch 120%", "90%");
  check_complaint(run(ask({"--cheapest", "example"})), 2, "--tokens-per-second", "--help");
  check_complaint(run(ask({"--cheapest", "nothing", "--tokens-per-second", "5"})), 2,
                  "unknown price list nothing", "example");
  check_complaint(run(ask({"--cheapest", "example", "--tokens-per-second", "0"})), 2,
                  "--tokens-per-second 0", "--tokens-per-second 500");
  check_complaint(
      run(ask({"--cheapest", "example", "--tokens-per-second", "5", "--smallest-batch", "90%"})), 2,
      "excludes", "--help");
  check_complaint(run(Words{"estimate"} + tiny_problem()), 2, "--machine is required", "--help");
  check_complaint(run(ask({"--smallest-batch", "90%"})), 2, "--batch 2: the batch is the answer",
                  "leave it out");
  check_complaint(run(ask({"--largest", "batch"})), 2, "unknown option --largest", "spillway fit");
  check_complaint(
      run(ask({"--cheapest", "example", "--tokens-per-second", "5", "--drives-last", "-3"})), 2,
      "--drives-last -3", "--drives-last 1");
  check_complaint(
      run(Words{"estimate"} + tiny_problem() +
          Words{"--cheapest", "example", "--tokens-per-second", "5", "--set", "ssd.count=4"}),
      2, "ssd.count is set by [[drive]] D7-P5510", "example");
  check_complaint(run(ask_for_batch({"--smallest-batch", "90%", "--policy", "zero-infinity",
                                     "--gpu-memory", "100KB"})),
                  3, "does not fit", "would make it fit");
}
