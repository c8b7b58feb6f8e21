// `spillway bench`: what it lists, what it prints, and that its counts are right. No times.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "tests/cli/program.hpp"

using namespace spillway::test;
using nlohmann::json;
using Words = std::vector<std::string>;

TEST_CASE("bench --list names every test once, with what it does") {
  const json tests = run({"bench", "--list", "--json"}).json()["tests"];
  Words names;
  for (const json& test : tests) {
    for (const char* key : {"name", "what", "unit", "on_request"}) CHECK(test.contains(key));
    names.push_back(test["name"]);
  }
  for (const char* name : {"engine/dag/100k", "engine/one-link-64/1m", "engine/five-routes-20/10m",
                           "schedule/greedysnake", "end-to-end/greedysnake"}) {
    CHECK_THAT(names, Catch::VectorContains(std::string(name)));
  }
  std::sort(names.begin(), names.end());
  CHECK(std::adjacent_find(names.begin(), names.end()) == names.end());
  const Outcome text = run({"bench", "--list", "engine/dag"});
  CHECK(text.exit_code == 0);
  CHECK(lines_of(text.out).size() == 3);  // 10k, 100k, 1m; the one on request only in full
  CHECK(lines_of(run({"bench", "--list", "engine/dag/10m"}).out).size() == 1);
}

TEST_CASE("bench --json counts the items and says what one costs") {
  const Outcome outcome =
      run({"bench", "engine/dag/10k", "engine/one-link-8/10k", "--seconds", "0.001", "--json"});
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.err.empty());
  const json tests = outcome.json()["tests"];
  REQUIRE(tests.size() == 2);
  for (const json& test : tests) {
    CHECK(test.size() == 10);
    CHECK(test["unit"] == "tasks");
    CHECK(test["items"] == 10000);
    CHECK(test["runs"] >= 1);
    CHECK(test["cpu_seconds"] >= 0.0);
    // At least an activity (24 bytes), its times (16), its place in a queue and a counter (4 + 4).
    CHECK(test["bytes_per_item"] >= 48.0);
    CHECK(test["bytes_per_item"] < 100.0);
    CHECK(test["operations_per_item"] > 1.0);
    if (test["cpu_seconds"] > 0.0) {
      // items/s x ns/item = 1e9
      CHECK(test["items_per_second"].get<double>() * test["ns_per_item"].get<double>() ==
            Approx(1e9));
    }
  }
  CHECK(tests[0]["name"] == "engine/dag/10k");
}

TEST_CASE("bench prints one row for each test under one header") {
  const Outcome outcome = run({"bench", "engine/five-routes-20/10k", "--seconds", "0"});
  CHECK(outcome.exit_code == 0);
  const Words lines = lines_of(outcome.out);
  REQUIRE(lines.size() == 2);
  for (const char* word : {"items", "user CPU", "M/s", "ns/item", "B/item"})
    CHECK_THAT(lines[0], Catch::Contains(word));
  CHECK_THAT(lines[1],
             Catch::StartsWith("engine/five-routes-20/10k") && Catch::Contains("10000 tasks"));
}

TEST_CASE("bench refuses names it does not have, with what is near") {
  check_refusal(run({"bench", "engine/dga"}), 2, "unknown speed test engine/dga",
                "did you mean engine/dag?");
  check_refusal(run({"bench", "everything"}), 2, "unknown speed test everything",
                "spillway bench --list");
  check_refusal(run({"bench", "--seconds", "-1"}), 2, "--seconds", "bench --help");
}

TEST_CASE("bench holds figures to a roofline or a target, in text and in JSON") {
  const Outcome outcome =
      run({"bench", "executor", "--rounds", "1", "--seconds", "0.05", "--json"});
  REQUIRE(outcome.exit_code == 0);
  CHECK(outcome.json()["tests"].empty());
  const json figures = outcome.json()["figures"];
  REQUIRE(figures.size() == 4);
  for (const json& figure : figures) {
    for (const char* key : {"name", "what", "unit", "value", "roofline", "roofline_what", "ratio",
                            "ratios", "target", "note"})
      CHECK(figure.contains(key));
    // Held to a most value, not to a roofline.
    CHECK(figure["roofline"].is_null());
    CHECK(figure["target"]["met"] ==
          (figure["value"].get<double>() <= figure["target"]["most"].get<double>()));
  }
  const json listed = run({"bench", "--list", "--json"}).json()["figures"];
  Words names;
  for (const json& figure : listed) names.push_back(figure["name"]);
  CHECK(names == Words{"ssd", "adam", "executor", "training", "pricing", "building", "gpu/memory",
                       "gpu/matmul", "gpu/attention", "gpu/training"});
}

TEST_CASE("bench refuses a directory that is not there, and names near those of figures") {
  check_refusal(run({"bench", "ssd", "--ssd", "/nowhere"}), 2, "--ssd /nowhere: there is no such",
                "mounted");
  check_refusal(run({"bench", "adan"}), 2, "unknown speed test adan", "did you mean adam?");
}

TEST_CASE("bench gpu names its parts, and says in one line where there is no GPU") {
  const json listed = run({"bench", "gpu", "--list", "--json"}).json();
  CHECK(listed["tests"].empty());
  Words names;
  for (const json& figure : listed["figures"]) {
    CHECK(figure["on_request"] == true);
    names.push_back(figure["name"]);
  }
  CHECK(names == Words{"gpu/memory", "gpu/matmul", "gpu/attention", "gpu/training"});
  setenv("SPILLWAY_CUDA_MODULE", "/nonexistent.so", 1);
  check_refusal(run({"bench", "gpu"}), 2, "bench gpu: there is no CUDA GPU here", "without names");
  unsetenv("SPILLWAY_CUDA_MODULE");
}
