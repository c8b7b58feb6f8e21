// Pictures: their data, ticks and texts; that gnuplot draws them is tested with the program.
#include "experiments/sweep/sweep_plots.hpp"

#include <catch2/catch.hpp>

#include "experiments/plots/plot_axis.hpp"
#include "tests/policies/input_error.hpp"

namespace spillway {
namespace {

// Two policies, three amounts of memory; the second policy does not fit the smaller two.
struct Example {
  SweepPlan plan = plan_sweep(
      parse_sweep("name = \"it's_ours\"\n[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                  "[[axis]]\npolicy = [\"greedysnake\", \"fuyou\"]\n[[axis]]\n"
                  "\"host.memory\" = [\"1GB\", \"2GB\", \"4000MB\"]\n"
                  "[[plot]]\nkind = \"lines\"\nx = \"host.memory\"\nlog_x = true\n",
                  "s.toml"),
      "test");
  SweepTable table;

  Example() {
    table.columns = {"policy", "host.memory", "status", "tokens_per_second"};
    table.rows = {{"greedysnake", "1GB", "ok", "10"},    {"greedysnake", "2GB", "ok", "20"},
                  {"greedysnake", "4000MB", "ok", "40"}, {"fuyou", "1GB", "does not fit", ""},
                  {"fuyou", "2GB", "does not fit", ""},  {"fuyou", "4000MB", "ok", "5"}};
  }
  Picture picture(PlotRequest request) const { return plot_of(plan, table, request); }
  Picture picture() const { return picture(plan.file.plots.front()); }
};

std::string variable(const Picture& picture, const std::string& name) {
  for (const auto& [key, value] : picture.variables) {
    if (key == name) return value;
  }
  FAIL("no variable " << name);
  return "";
}

TEST_CASE("a series for each policy, quantities in one unit, gaps where nothing fits") {
  const Picture picture = Example().picture();
  CHECK(picture.data == "1 10\n2 20\n4 40\n\n\n1 NaN\n2 NaN\n4 5\n\n\n");
  CHECK(variable(picture, "series_names") == R"([2] = ["greedysnake", "fuyou"])");
  CHECK(variable(picture, "x_label") == R"x("host memory (GB)")x");
  CHECK(variable(picture, "x_tics") == R"x("set xtics (\"1\" 1, \"2\" 2, \"4\" 4)")x");
  CHECK_THAT(variable(picture, "note_text"), Catch::Contains("fuyou at host memory 1GB, 2GB."));
}

TEST_CASE("a policy has the same line in every picture") {
  Example example;
  const std::string both = variable(example.picture(), "styles");
  PlotRequest only = example.plan.file.plots.front();
  only.where = {{"policy", {"fuyou"}}};
  const std::string one = variable(example.picture(only), "styles");
  // "[2] = [5, 4]" and "[1] = [4]"
  CHECK(both.substr(both.rfind(' ') + 1) == one.substr(one.rfind('[') + 1));
}

TEST_CASE("a map of winners: the fastest other policy of each cell, and spillway against it") {
  const std::string axes =
      "[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
      "[[axis]]\npolicy = [\"greedysnake\", \"fuyou\", \"spillway\"]\n"
      "[[axis]]\nbatch = [1, 2]\n[[axis]]\n\"host.memory\" = [\"1GB\", \"2GB\"]\n"
      "[[plot]]\nkind = \"winners\"\n";
  const SweepPlan plan =
      plan_sweep(parse_sweep(axes + "x = \"batch\"\ny = \"host.memory\"\n", "s.toml"), "test");
  SweepTable table;
  table.columns = {"policy", "batch", "host.memory", "status", "tokens_per_second"};
  table.rows = {{"greedysnake", "1", "1GB", "ok", "10"},   {"fuyou", "1", "1GB", "ok", "20"},
                {"spillway", "1", "1GB", "ok", "30"},      {"greedysnake", "2", "1GB", "ok", "8"},
                {"fuyou", "2", "1GB", "ok", "4"},          {"spillway", "2", "1GB", "ok", "8.8"},
                {"fuyou", "1", "2GB", "does not fit", ""}, {"spillway", "1", "2GB", "ok", "1"},
                {"fuyou", "2", "2GB", "does not fit", ""}};
  const Picture picture = plot_of(plan, table, plan.file.plots.front());
  CHECK(picture.data == "1 1 \"1.50×\"\n\n\n2 1 \"1.10×\"\n\n\n1 2 \"fits\"\n\n\n2 2 \"–\"\n\n\n");
  CHECK(variable(picture, "series_names") ==
        R"([4] = ["fuyou", "greedysnake", "only spillway", "nothing fits"])");
  CHECK(variable(picture, "x_tics") == R"x("set xtics (\"1\" 1, \"2\" 2)")x");
  CHECK(variable(picture, "y_tics") == R"x("set ytics (\"1GB\" 1, \"2GB\" 2)")x");
  check_error([&] { parse_sweep(axes + "x = \"batch\"\n", "s.toml"); }, "s.toml:10:1: y is missing",
              "an axis");
  check_error(
      [&] {
        check_plots(plan_sweep(
            parse_sweep(axes + "x = \"batch\"\ny = \"step_seconds\"\n", "s.toml"), "test"));
      },
      "s.toml:10:1: plot winners names step_seconds, which is no axis", "");
}

TEST_CASE("the title shows names as they are, whatever marks they hold") {
  CHECK_THAT(variable(Example().picture(), "title_text"),
             Catch::StartsWith(R"("{/:Bold it's\\_ours}\n)"));
}

TEST_CASE("pictures of columns that are not there, or of nothing, are errors with their place") {
  Example example;
  PlotRequest request = example.plan.file.plots.front();
  request.y = "tokens_per_secnd";
  check_error([&] { example.picture(request); },
              "s.toml:9:1: plot lines: there is no column tokens_per_secnd", "tokens_per_second");
  request.y = "policy";
  check_error([&] { example.picture(request); }, "s.toml:9:1: plot lines: policy holds no numbers",
              "another column");
  request = example.plan.file.plots.front();
  request.where = {{"policy", {"resident"}}};
  check_error([&] { example.picture(request); },
              "s.toml:9:1: plot lines: no point that it draws has a result", "where");
}

TEST_CASE("quantities of all kinds have a place on an axis") {
  const auto check = [](const std::string& text, double number, const std::string& unit) {
    INFO(text);
    const auto value = axis_value(text);
    REQUIRE(value);
    CHECK(value->number == Approx(number));
    CHECK(value->unit == unit);
  };
  check("12", 12, "");
  check("0.25", 0.25, "");
  check("256GB", 256, "GB");
  check("1GiB", 1.073741824, "GB");
  check("21GB/s", 21, "GB/s");
  check("160TFLOPS", 160, "TFLOPS");
  check("10us", 10, "us");
  CHECK_FALSE(axis_value("greedysnake"));
  CHECK_FALSE(axis_value(""));
}

TEST_CASE("logarithmic ticks are 1, 2, 5 and their tens within the range") {
  CHECK(logarithmic_ticks(18, 520) == std::vector<double>{20, 50, 100, 200, 500});
  CHECK(logarithmic_ticks(0.1, 1) == std::vector<double>{0.1, 0.2, 0.5, 1});
}

TEST_CASE("text wraps at spaces") {
  CHECK(wrapped("one two three", 7) == "one two\nthree");
  CHECK(wrapped("unbreakable word", 4) == "unbreakable\nword");
}

}  // namespace
}  // namespace spillway
