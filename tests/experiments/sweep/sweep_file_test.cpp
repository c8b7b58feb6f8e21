// Sweep files: what is read, and what is said of one that is wrong.
#include "experiments/sweep/sweep_file.hpp"

#include <catch2/catch.hpp>

#include "experiments/sweep/sweep_plots.hpp"
#include "experiments/sweep/sweep_points.hpp"
#include "tests/policies/input_error.hpp"

namespace spillway {
namespace {

const std::string fixed = "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n";

SweepPlan plan(const std::string& text) {
  return plan_sweep(parse_sweep(fixed + text, "s.toml"), "test");
}

std::vector<std::vector<std::string>> cells(const SweepPlan& plan) {
  std::vector<std::vector<std::string>> all;
  for (const SweepPoint& point : plan.points) all.push_back(point.cells);
  return all;
}

struct Wrong {
  const char* text;
  const char* what;
  const char* hint;
};

TEST_CASE("every combination of the axes is a point, and the last axis varies fastest") {
  const SweepPlan p = plan(
      "policy = \"resident\"\n[[axis]]\nbatch = [2, 4]\n[[axis]]\n\"ssd.count\" = [1, 2, 3]\n");
  CHECK(p.keys == std::vector<std::string>{"batch", "ssd.count"});
  CHECK(cells(p) == std::vector<std::vector<std::string>>{
                        {"2", "1"}, {"2", "2"}, {"2", "3"}, {"4", "1"}, {"4", "2"}, {"4", "3"}});
}

TEST_CASE("keys of one axis move together, in the order of the file") {
  const SweepPlan p =
      plan("policy = \"resident\"\n[[axis]]\nmicro_batch = [1, 2]\nbatch = [4, 8]\n");
  CHECK(p.keys == std::vector<std::string>{"micro_batch", "batch"});
  CHECK(cells(p) == std::vector<std::vector<std::string>>{{"1", "4"}, {"2", "8"}});
  CHECK(p.points[1].settings.workload.micro_batch == 2);
  CHECK(p.points[1].settings.workload.batch == 8);
}

TEST_CASE("a dotted key may stand in quotes or not") {
  const std::string rest = "policy = \"resident\"\n[[axis]]\n";
  CHECK(cells(plan(rest + "ssd.count = [1, 2]\n")) ==
        cells(plan(rest + "\"ssd.count\" = [1, 2]\n")));
}

TEST_CASE("options of other policies do not multiply a policy's points") {
  // resident has no alpha: 1 point; greedysnake has 3.
  const SweepPlan p = plan(
      "[[axis]]\npolicy = [\"resident\", \"greedysnake\"]\n[[axis]]\n\"greedysnake.alpha\" = [0, "
      "0.25, 0.5]\n");
  CHECK(cells(p) == std::vector<std::vector<std::string>>{{"resident", ""},
                                                          {"greedysnake", "0"},
                                                          {"greedysnake", "0.25"},
                                                          {"greedysnake", "0.5"}});
  CHECK(p.points[1].settings.policy == "greedysnake:alpha=0");
  CHECK(p.points[2].settings.policy == "greedysnake");  // 0.25 is the default
}

TEST_CASE("a point is known by what its settings mean, not by how they are written") {
  const auto identity = [](const std::string& text) { return plan(text).points.front().identity; };
  const std::string same =
      identity("policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\n");
  CHECK(identity(
            "policy = \"greedysnake\"\n\"host.memory\" = \"2000MB\"\ngreedysnake.alpha = 0.5\n") ==
        same);
  CHECK(identity("batch = 8\npolicy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\n") ==
        same);
  // Every kind of setting is part of it.
  for (const char* other :
       {"policy = \"greedysnake\"\n\"host.memory\" = \"2GB\"\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"3GB\"\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\nbatch = 4\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\nsteps = 4\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\nprecision = \"bf16\"\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\nmoments = \"bf16\"\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\n\"model.layers\" = 3\n",
        "policy = \"greedysnake:alpha=0.5\"\n\"host.memory\" = \"2GB\"\nmicro_batch = 8\n"}) {
    INFO(other);
    CHECK(identity(other) != same);
  }
  const SweepFile file = parse_sweep(fixed + "policy = \"resident\"\n", "s.toml");
  CHECK(plan_sweep(file, "one build").points.front().identity !=
        plan_sweep(file, "another build").points.front().identity);
}

TEST_CASE("skip rules leave out the points that match all of their keys") {
  const SweepPlan p = plan(
      "[[axis]]\npolicy = [\"resident\", \"fuyou\"]\n[[axis]]\nbatch = [2, 4, 8]\n"
      "[[skip]]\npolicy = \"resident\"\nbatch = [4, 8]\n");
  CHECK(p.left_out == 2);
  CHECK(cells(p) == std::vector<std::vector<std::string>>{
                        {"resident", "2"}, {"fuyou", "2"}, {"fuyou", "4"}, {"fuyou", "8"}});
}

TEST_CASE("settings that do not go together make an invalid point, not an error") {
  const SweepPlan p = plan("policy = \"resident\"\nbatch = 8\n[[axis]]\nmicro_batch = [2, 3]\n");
  REQUIRE(p.points.size() == 2);
  CHECK(p.invalid() == 1);
  CHECK(p.points[0].invalid.empty());
  CHECK(p.points[1].invalid == "micro-batch 3 does not divide batch 8");
}

TEST_CASE("what is wrong in a sweep file is named with its place") {
  // The first three lines are those of `fixed`.
  const std::vector<Wrong> all = {
      {"polcy = \"resident\"\n", "s.toml:4:1: unknown key polcy", "did you mean policy?"},
      {"ssd.cuont = 3\n", "s.toml:4:5: unknown key ssd.cuont", "did you mean ssd.count?"},
      {"memory = \"3GB\"\n", "s.toml:4:1: unknown key memory", "gpu.memory or host.memory"},
      {"[[axis]]\ngreedysnake.alfa = [1]\n", "s.toml:5:13: unknown key greedysnake.alfa",
       "greedysnake.alpha"},
      {"policy = \"residnt\"\n", "s.toml:4:10: policy: unknown policy residnt",
       "did you mean resident?"},
      {"policy = \"greedysnake:alpha=7\"\n",
       "s.toml:4:10: policy: policy greedysnake: option alpha=7", "0 to 1"},
      {"greedysnake.alpha = 7\n", "s.toml:4:21: greedysnake.alpha: policy greedysnake: option",
       "0 to 1"},
      {"batch = 0\n", "s.toml:4:9: batch: batch = 0 is not a whole number", "batch = 8"},
      {"batch = \"many\"\n", "s.toml:4:9: batch: batch = many is not a whole number", "batch = 8"},
      {"host.memory = \"much\"\n", "s.toml:4:15: host.memory: \"much\" is not a size", "24GB"},
      {"gpu.flops = 160\n", "s.toml:4:13: gpu.flops: \"160\" is not a compute rate", "TFLOPS"},
      {"precision = \"fp64\"\n", "s.toml:4:13: precision: precision = fp64", "fp32"},
      {"moments = 16\n", "s.toml:4:11: moments: moments = 16: neither fp32 nor bf16",
       "8, the moments"},
      {"batch = [1, 2]\n", "s.toml:4:9: batch has a list of values under [fixed]", "[[axis]]"},
      {"batch = 2\n[[axis]]\nbatch = [1, 2]\n", "s.toml:6:1: batch is set here and at s.toml:4:1",
       "keep one"},
      {"[[axis]]\n", "s.toml:4:1: an axis has no key", "batch = [8, 16, 32]"},
      {"[[axis]]\nbatch = []\n", "s.toml:5:9: batch has no values", "at least one"},
      {"[[axis]]\nbatch = [1, [2]]\n", "s.toml:5:13: a value of batch is neither", ""},
      {"[[axis]]\nbatch = [1, 2, 1]\n", "s.toml:5:16: batch = 1 is there twice", "keep one"},
      {"[[axis]]\nbatch = [1, 2]\nsequence = [8]\n",
       "s.toml:6:12: sequence has 1 values and batch has 2", "move together"},
      {"[axis]\nbatch = [1, 2]\n", "s.toml:4:1: axis is not a list of tables", "[[axis]]"},
      {"[[axes]]\nbatch = [1, 2]\n", "s.toml:4:3: unknown key axes", "did you mean axis?"},
      {"[[plot]]\nkind = \"pie\"\n", "s.toml:4:1: unknown kind of plot pie", "roofline"},
      {"[[plot]]\nkind = \"lines\"\n", "s.toml:4:1: x is missing", "ssd.count"},
      {"[[plot]]\nkind = \"lines\"\ny_lable = \"y\"\n", "s.toml:6:1: unknown key y_lable of a plot",
       "did you mean y_label"},
      {"[[plot]]\nkind = \"lines\"\nx = \"batch\"\nname = \"../up\"\n",
       "s.toml:4:1: ../up cannot be the name", "letters"},
      {"batch = \n", "s.toml:4:", "docs/sweep.md"}};
  for (const Wrong& one : all) {
    INFO(one.text);
    check_error([&] { parse_sweep(fixed + one.text, "s.toml"); }, one.what, one.hint);
    // A text of no file has no places in its errors.
    try {
      parse_sweep(fixed + one.text, "");
      FAIL("it was not refused");
    } catch (const InputError& error) {
      CHECK_THAT(error.what(), !Catch::Contains(":4:") && !Catch::Matches("^[: ].*"));
    }
  }
}

TEST_CASE("what is wrong with a sweep as a whole is said before anything is run") {
  const std::string policies = "[[axis]]\npolicy = [\"resident\", \"fuyou\"]\n";
  const std::vector<Wrong> all = {
      {"", "s.toml: policy is not set", "policy = \"greedysnake\""},
      {"policy = \"resident\"\ngreedysnake.alpha = 0.5\n",
       "s.toml:5:21: greedysnake.alpha is set, but no point has the policy greedysnake",
       "take it out"},
      {"[[axis]]\npolicy = [\"resident\"]\n[[skip]]\nbatch = 3\n",
       "s.toml:6:1: a skip rule names batch, which is no axis", "known: policy"},
      {"[[axis]]\npolicy = [\"resident\"]\n[[skip]]\npolicy = \"fuyou\"\n",
       "s.toml:6:1: this skip rule matches no point", "as they stand in the axes"},
      {"[[axis]]\npolicy = [\"resident\"]\n[[skip]]\npolicy = \"resident\"\n",
       "s.toml: the skip rules leave no point", "take one of them out"},
      {"policy = \"resident\"\nbatch = 8\nmicro_batch = 3\n",
       "s.toml: no point has valid settings; the first: micro-batch 3 does not divide batch 8",
       "micro_batch = 2 or micro_batch = 4"}};
  for (const Wrong& one : all) {
    INFO(one.text);
    check_error([&] { plan(one.text); }, one.what, one.hint);
  }
  // 101 x 101 x 101 combinations.
  std::string list = "[1";
  for (int i = 2; i <= 101; ++i) list += ", " + std::to_string(i);
  const std::string long_axes = policies + "[[axis]]\nbatch = " + list +
                                "]\n[[axis]]\nsequence = " + list +
                                "]\n[[axis]]\n\"ssd.count\" = " + list + "]\n";
  check_error([&] { plan(long_axes); }, "s.toml: the axes make more than 1000000 combinations",
              "shorten");
  check_error([&] { check_plots(plan(policies + "[[plot]]\nkind = \"lines\"\nx = \"batsh\"\n")); },
              "s.toml:6:1: plot lines names batsh, which is no axis", "policy");
}

}  // namespace
}  // namespace spillway
