// Pictures: their data, ticks and texts; that gnuplot draws them is tested with the program.
#include "experiments/sweep/sweep_plots.hpp"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <set>

#include "experiments/plots/plot_axis.hpp"
#include "experiments/plots/plot_style.hpp"
#include "experiments/plots/text_size.hpp"
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

// Commands of a picture that hold a text.
std::vector<std::string> commands(const Picture& picture, const std::string& text) {
  std::vector<std::string> found;
  for (const std::string& command : picture.commands) {
    if (command.find(text) != std::string::npos) found.push_back(command);
  }
  return found;
}

TEST_CASE("keys of one colour keep their dashes: gnuplot joins arrows of one width in svg") {
  Example example;
  example.plan =
      plan_sweep(parse_sweep("name = \"s\"\n[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                             "[[axis]]\npolicy = [\"greedysnake\", \"fuyou\"]\n[[axis]]\n"
                             "\"ssd.count\" = [1, 2, 3]\n[[axis]]\nbatch = [2, 4]\n"
                             "[[plot]]\nkind = \"lines\"\nx = \"batch\"\n",
                             "s.toml"),
                 "test");
  example.table.columns = {"policy", "ssd.count", "batch", "status", "tokens_per_second"};
  example.table.rows.clear();
  for (const char* policy : {"greedysnake", "fuyou"}) {
    for (const char* drives : {"1", "2", "3"}) {
      for (const char* batch : {"2", "4"})
        example.table.rows.push_back({policy, drives, batch, "ok", batch});
    }
  }
  std::set<std::string> widths;
  const std::vector<std::string> samples = commands(example.picture(), "nohead linewidth");
  for (const std::string& sample : samples) {
    const std::size_t at = sample.find("linewidth");
    widths.insert(sample.substr(at, sample.find(" dashtype") - at));
  }
  CHECK(samples.size() >= 5);
  CHECK(widths.size() == samples.size());
}

TEST_CASE("a series for each policy, quantities in one unit, gaps where nothing fits") {
  const Picture picture = Example().picture();
  CHECK(picture.data == "1 10 0\n2 20 0\n4 40 0\n\n\n1 NaN 0\n2 NaN 0\n4 5 0\n\n\n");
  for (const char* text : {"\"greedysnake\"", "\"fuyou\"", "\"host memory (GB)\""})
    CHECK(commands(picture, text).size() == 1);
  CHECK(commands(picture, "set xtics").at(0) == R"(set xtics ("1" 1, "2" 2, "4" 4) font ',13')");
  CHECK(commands(picture, "fuyou at host memory 1 GB, 2 GB.").size() == 1);
}

TEST_CASE("points that are extrapolated are hollow, and named") {
  Example example;
  example.table.columns.emplace_back("extrapolated");
  for (auto& row : example.table.rows) row.emplace_back(row[1] == "4000MB" ? "true" : "");
  const Picture picture = example.picture();
  CHECK(picture.data == "1 10 0\n2 20 0\n4 40 1\n\n\n1 NaN 0\n2 NaN 0\n4 5 1\n\n\n");
  CHECK(commands(picture, "Hollow points: extrapolated").size() == 1);
}

TEST_CASE("colour and points say the policy, the dash everything else") {
  const SweepPlan plan = plan_sweep(
      parse_sweep("[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n[[axis]]\n"
                  "policy = [\"greedysnake\", \"fuyou\", \"fuyou:optimizer=serial\"]\n[[axis]]\n"
                  "\"model.layers\" = [2, 3, 4]\n[[axis]]\nbatch = [2, 4]\n"
                  "[[plot]]\nkind = \"lines\"\nx = \"batch\"\n",
                  "s.toml"),
      "test");
  SweepTable table;
  table.columns = {"policy", "model.layers", "batch", "status", "tokens_per_second"};
  for (const SweepPoint& point : plan.points) {
    table.rows.push_back(point.cells);
    table.rows.back().insert(table.rows.back().end(), {"ok", "5"});
  }
  const Picture picture = plot_of(plan, table, plan.file.plots.front());
  const std::string snake = policy_style("greedysnake").colour,
                    fuyou = policy_style("fuyou").colour;
  CHECK(variable(picture, "colours") ==
        fmt::format(R"([9] = ["{0}", "{0}", "{0}", "{1}", "{1}", "{1}", "{1}", "{1}", "{1}"])",
                    snake, fuyou));
  CHECK(variable(picture, "dashes") == "[9] = [1, 2, 3, 1, 2, 3, 4, 5, 6]");
  // Two policies and six dashes are named in place of nine lines.
  CHECK(commands(picture, "\"optimizer=serial, layers 4\"").size() == 1);
  CHECK(commands(picture, "\"greedysnake, layers 4\"").empty());
}

TEST_CASE("a policy has the same line in every picture") {
  Example example;
  PlotRequest only = example.plan.file.plots.front();
  only.where = {{"policy", {"fuyou"}}};
  const PolicyStyle style = policy_style("fuyou");
  for (const char* name : {"colours", "points"}) {
    const std::string own =
        std::string(name) == "points" ? std::to_string(style.point) : "\"" + style.colour + "\"";
    CHECK_THAT(variable(example.picture(), name), Catch::EndsWith(", " + own + "]"));
    CHECK_THAT(variable(example.picture(only), name), Catch::EndsWith("[" + own + "]"));
  }
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
  for (const char* name : {"fuyou", "greedysnake", "only spillway", "nothing fits"})
    CHECK(commands(picture, std::string("set label \"") + name + "\"").size() == 1);
  CHECK(commands(picture, "set xtics").at(0) == R"(set xtics ("1" 1, "2" 2) font ',13')");
  CHECK(commands(picture, "set ytics").at(0) == R"(set ytics ("1 GB" 1, "2 GB" 2) font ',13')");
  // Without spillway a cell says where another policy is nearly as fast.
  SweepTable others = table;
  others.rows = {{"greedysnake", "1", "1GB", "ok", "99"},
                 {"fuyou", "1", "1GB", "ok", "100"},
                 {"greedysnake", "2", "1GB", "ok", "100"},
                 {"fuyou", "2", "1GB", "ok", "97"}};
  const Picture close = plot_of(plan, others, plan.file.plots.front());
  CHECK_THAT(close.data, Catch::Contains("1 1 \"≈\"\n") && Catch::Contains("2 1 \"\"\n"));
  CHECK(commands(close, "≈: another is within 2 %.").size() == 1);
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
  CHECK(commands(Example().picture(), R"("{/:Bold it's\\_ours}")").size() == 1);
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

TEST_CASE("ticks of a linear axis are multiples of 1, 2 or 5 x 10^k") {
  CHECK(linear_ticks(8.4) == std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(linear_ticks(130) == std::vector<double>{0, 20, 40, 60, 80, 100, 120});
  CHECK(linear_ticks(0) == std::vector<double>{0});
}

TEST_CASE("numbers have units that keep them short") {
  CHECK(readable_value("900GB") == "900 GB");
  CHECK(readable_value("12.5 GB/s") == "12.5 GB/s");
  CHECK(readable_value("greedysnake") == "greedysnake");
  CHECK(readable_value("8") == "8");
  CHECK(readable_scale("B", 9e11).unit == "GB");
  CHECK(readable_scale("B", 2e12).unit == "TB");
  CHECK(readable_scale("s", 0.02).unit == "ms");
  CHECK(readable_scale("", 5).divisor == 1);
  CHECK(unit_of_column("ssd_bytes_written_per_step") == "B");
  CHECK(unit_of_column("memory.host.peak_bytes") == "B");
  CHECK(unit_of_column("step_seconds") == "s");
  CHECK(unit_of_column("tokens_per_second").empty());
  CHECK(column_label("lanes.ssd.read.busy_fraction") == "SSD reads: busy share of the step");
}

TEST_CASE("text is broken at spaces by its width, and long words behind the ends of their parts") {
  using Lines = std::vector<std::string>;
  const double width = text_width("one two", 12);
  CHECK(wrapped("one two three", width, 12) == Lines{"one two", "three"});
  CHECK(wrapped("a b\nc", width, 12) == Lines{"a b", "c"});
  CHECK(wrapped("", width, 12) == Lines{""});
  CHECK(wrapped("x=1,y=22,zzzzzzzzzzzz", text_width("x=1,y=22,", 12), 12).front() == "x=1,y=22,");
  for (const std::string& line : wrapped(std::string(100, 'm'), width, 12))
    CHECK(text_width(line, 12) <= width);
  CHECK(text_width("iii", 12) < text_width("mmm", 12));
  CHECK(text_width("mm", 24) == Approx(4 * text_width("m", 12)));
}

}  // namespace
}  // namespace spillway
