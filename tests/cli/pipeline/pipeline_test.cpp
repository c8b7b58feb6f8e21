// pipeline and wan-map: orders side by side, what-if, prefills, a trace, and what is refused.
#include <catch2/catch.hpp>
#include <fstream>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

namespace {

std::string two_centers(const TemporaryFolder& folder) {
  const std::string path = folder / "two.toml";
  std::ofstream(path) << "name = \"two\"\n[[data_center]]\nname = \"east\"\nnodes = 4\n"
                         "[[data_center]]\nname = \"west\"\nnodes = 4\n[[wan]]\nfrom = \"east\"\n"
                         "to = \"west\"\nrtt = \"40ms\"\nwindow = \"1.47MB\"\nflows = 17\n"
                         "pair = \"625MB/s\"\n";
  return path;
}

Words asked(const std::string& centers, const Words& more) {
  return Words{"pipeline",  "--model",       "gpt-13b",  "--machine", "h100-80gb-8gpu",
               "--centers", centers,         "--tensor", "8",         "--batch",
               "32",        "--micro-batch", "1"} +
         more;
}

}  // namespace

TEST_CASE("pipeline sets all orders that suit the batch side by side, and marks the fastest") {
  const TemporaryFolder folder;
  const Outcome outcome = run(asked(two_centers(folder), {"--pipeline", "8", "--json"}));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json answer = outcome.json();
  std::vector<std::string> orders;
  for (const json& one : answer["orders"]) {
    orders.push_back(one["order"]);
    CHECK(one["fits"] == true);
    CHECK(one["data_centers"].size() == 8);
    CHECK(one["tokens_per_second"].get<double>() * one["step_seconds"].get<double>() ==
          Approx(32 * 1024));
  }
  CHECK(orders == std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1", "varuna",
                                           "atlas", "crosspipe"});
  CHECK(answer["wan"].size() == 2);
  const Outcome text = run(asked(two_centers(folder), {"--pipeline", "8"}));
  CHECK(text.out.find("(4 in east, 4 in west)") != std::string::npos);
  CHECK(text.out.find("<- fastest") != std::string::npos);
  // One flow has a 17th of the rate.
  const json slow =
      run(asked(two_centers(folder), {"--pipeline", "8", "--wan", "flows=1", "--json"})).json();
  CHECK(slow["orders"][0]["wan_forwards"].get<double>() ==
        Approx(17 * answer["orders"][0]["wan_forwards"].get<double>()).epsilon(1e-6));
}

TEST_CASE("pipeline without data centres takes the nodes of the machine") {
  const json answer =
      run({"pipeline", "--model", "gpt-13b", "--machine", "h100-80gb-8gpu", "--batch", "8",
           "--micro-batch", "1", "--tensor", "2", "--order", "1f1b", "--json"})
          .json();
  CHECK(answer["pipeline"] == 4);  // 8 GPUs, 2 a worker
  CHECK(answer["orders"].size() == 1);
  CHECK(answer["orders"][0]["wan_forwards"] == 0);
}

TEST_CASE("pipeline answers what-if with the fastest choices first") {
  const TemporaryFolder folder;
  const json answer =
      run(asked(two_centers(folder), {"--what-if", "--order", "atlas", "--top", "4", "--json"}))
          .json();
  REQUIRE(answer["choices"].size() == 4);
  CHECK(answer["fit"].get<int>() >= 4);
  for (std::size_t i = 1; i < 4; ++i)
    CHECK(answer["choices"][i - 1]["tokens_per_second"].get<double>() >=
          answer["choices"][i]["tokens_per_second"].get<double>());
}

TEST_CASE("pipeline places prefills that leave training unchanged, and writes a trace") {
  const TemporaryFolder folder;
  const std::string trace = folder / "step.json";
  const Outcome outcome =
      run(asked(two_centers(folder), {"--pipeline", "4", "--replicas", "2", "--order", "1f1b",
                                      "--prefill-rate", "20,200", "--prefill-steps", "4",
                                      "--prefill-model", "llama-7b", "--trace", trace, "--json"}));
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json answer = outcome.json();
  REQUIRE(answer["prefills"].size() == 2);
  for (const json& load : answer["prefills"]) {
    CHECK(load["training_unchanged"] == true);
    CHECK(load["slowest_step_ns"] == answer["orders"][0]["step_ns"]);
    CHECK(load["all_computes"].get<double>() > load["training_computes"].get<double>());
  }
  std::ifstream file(trace);
  const json written = json::parse(file);
  int passes = 0, prefills = 0;
  for (const json& event : written["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const std::string name = event["name"];
    passes += name.rfind("forward", 0) == 0 || name.rfind("backward", 0) == 0 ? 1 : 0;
    prefills += name.rfind("prefill", 0) == 0 ? 1 : 0;
  }
  CHECK(passes == 4 * 16 * 2);  // one pipeline stands for both
  CHECK(prefills > 0);
}

TEST_CASE("pipeline says what does not fit with exit code 3, and refuses what cannot be") {
  const TemporaryFolder folder;
  const std::string centers = two_centers(folder);
  const Outcome big = run(asked(centers, {"--pipeline", "2", "--set", "gpu.memory=12GB"}));
  CHECK(big.exit_code == 3);
  CHECK(big.out.find("does not fit") != std::string::npos);
  const auto refused = [&](const Words& more, const std::string& why) {
    const Outcome outcome = run(asked(centers, more));
    INFO(outcome.err);
    CHECK(outcome.exit_code == 2);
    CHECK(outcome.err.find(why) != std::string::npos);
  };
  refused({"--what-if", "--prefill-rate", "3"}, "neither prefills nor a trace");
  refused({"--ranks", "2"}, "ranks are replicas");
  refused({"--order", "1f1c"}, "unknown order");
  refused({"--pipeline", "9"}, "do not go into two");
  refused({"--tensor", "3"}, "do not divide into workers of 3");
  refused({"--wan", "flow=3"}, "flow");
  refused({"--prefill-rate", "5"}, "of one order");
  refused({"--replicas", "3"}, "does not divide");
  const Outcome tiny = run({"pipeline", "--model", "gpt-tiny", "--machine", "h100-80gb-8gpu"});
  CHECK(tiny.exit_code == 2);
  CHECK(tiny.err.find("no order suits 8 workers") != std::string::npos);
  CHECK(run({"pipeline", "--model", "gpt-13b", "--machine", "h100-80gb-8gpu", "--wan", "flows=2"})
            .exit_code == 2);
  CHECK(run({"pipeline", "--model", "gpt-13b", "--machine", "h100-80gb-8gpu", "--centers",
             folder / "none.toml"})
            .exit_code == 2);
}

TEST_CASE("wan-map shows each point, and what holds more than memory does has no time") {
  const Outcome outcome = run({"wan-map", "--ratios", "1,8", "--micro-batches", "16", "--centers",
                               "2", "--held", "0,6", "--json"});
  INFO(outcome.err);
  REQUIRE(outcome.exit_code == 0);
  const json rows = outcome.json()["rows"];
  REQUIRE(rows.size() == 4);
  CHECK(rows[0]["baselines"]["gpipe"]["one_flow"].is_number());
  CHECK(rows[2]["held"] == 6);
  CHECK(rows[2]["baselines"]["gpipe"]["one_flow"].is_null());
  CHECK(rows[1]["over_fastest"].get<double>() > rows[0]["over_fastest"].get<double>());
}
