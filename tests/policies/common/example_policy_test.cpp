// docs/write-a-policy.md: its code is a policy that works.
#include <catch2/catch.hpp>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "test_paths.hpp"
#include "tests/policies/check_schedule.hpp"
#include "tests/policies/input_error.hpp"
#include "tests/policies/schedules.hpp"

namespace spillway {
std::unique_ptr<Policy> make_eager_offload();  // example_policy.cpp
}

using namespace spillway;
using namespace spillway::test;

namespace {

std::string file(const std::string& path) {
  std::ifstream in(SPILLWAY_SOURCE_DIR "/" + path);
  std::ostringstream text;
  text << in.rdbuf();
  REQUIRE(in.good());
  return text.str();
}

std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const auto from = text.find(begin);
  REQUIRE(from != std::string::npos);
  const auto to = text.find(end, from + begin.size());
  REQUIRE(to != std::string::npos);
  return text.substr(from + begin.size(), to - from - begin.size());
}

Schedule eager_offload(const Problem& problem, const std::string& checkpoints, int steps) {
  const std::unique_ptr<Policy> policy = make_eager_offload();
  policy->set("checkpoints", checkpoints);
  return build_schedule(problem, *policy, steps);
}

}  // namespace

TEST_CASE("docs/write-a-policy.md: the code is the tested file's") {
  const std::string document = file("docs/write-a-policy.md");
  const std::string code = between(document, "```cpp\n", "```");
  CHECK(code == between(file("tests/policies/common/example_policy.cpp"), "// [example begins]\n",
                        "// [example ends]"));
  CHECK(std::count(code.begin(), code.end(), '\n') < 60);
}

TEST_CASE("docs/write-a-policy.md: the plugin is the tested file's") {
  const std::string code =
      between(file("docs/write-a-policy.md"), "tests/plugins/hybrid.cpp)), whose order", "\n```\n");
  const std::string tested =
      between(file("tests/plugins/hybrid.cpp"), "// [example begins]\n", "\n// [example ends]");
  CHECK(code.substr(code.find("```cpp\n") + 7) == tested);
  CHECK(std::count(tested.begin(), tested.end(), '\n') < 60);
}

TEST_CASE("docs/write-a-policy.md: the policy is free of races and computes what it must") {
  for (const int layers : layer_grid) {
    for (const int micro_batches : micro_batch_grid) {
      for (const char* checkpoints : {"gpu", "host"}) {
        INFO(layers << " layers, " << micro_batches << " micro-batches, checkpoints "
                    << checkpoints);
        Problem problem = tiny_problem(layers, micro_batches);
        check_schedule(eager_offload(problem, checkpoints, 3));
        for (const ClipScope scope : {ClipScope::global, ClipScope::layer}) {
          problem.workload.clip = {scope, 1};
          check_schedule(eager_offload(problem, checkpoints, 3));
        }
      }
    }
  }
}

TEST_CASE(
    "docs/write-a-policy.md: the policy updates a layer before the backward of the layers below") {
  const Schedule schedule = eager_offload(tiny_problem(3, 1), "gpu", 1);
  std::string order;
  for (const Task& task : schedule.tasks()) {
    if (task.kind == TaskKind::backward) order += "B" + std::to_string(task.layer) + " ";
    if (task.kind == TaskKind::optimizer) order += "O" + std::to_string(task.layer) + " ";
  }
  CHECK(order == "B2 B1 O2 B0 O1 O0 O3 ");
}

TEST_CASE("docs/write-a-policy.md: a bad value of the option is said to be one") {
  check_error([] { make_eager_offload()->set("checkpoints", "ssd"); },
              "policy eager-offload: option checkpoints=ssd is not one of gpu | host",
              "where inputs");
}
