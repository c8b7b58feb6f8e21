// Pages about folders: which is which, what is refused, and tables read back.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/errors.hpp"
#include "experiments/report/report.hpp"
#include "experiments/sweep/csv_reader.hpp"
#include "experiments/sweep/sweep.hpp"
#include "experiments/testbed/testbed_run.hpp"
#include "tests/experiments/report/page_reader.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

using Catch::Contains;

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string refusal(const std::vector<std::filesystem::path>& inputs) {
  try {
    make_report({inputs, {}, {}});
  } catch (const InputError& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "";
}

TEST_CASE("what CSV was written is read back, whatever its cells hold") {
  SweepTable table;
  table.columns = {"a", "b,c", "d\"e"};
  table.rows = {{"1", "x, y", "say \"hi\""}, {"", "two\nlines", "\r\n"}, {"", "", ""}};
  const SweepTable again = parse_csv(to_csv(table), "t.csv");
  CHECK(again.columns == table.columns);
  CHECK(again.rows == table.rows);
  CHECK(parse_csv("a,b\n1,2\n", "t.csv").rows == std::vector<std::vector<std::string>>{{"1", "2"}});
  CHECK(parse_csv("a,b\r\n1,2", "t.csv").rows == std::vector<std::vector<std::string>>{{"1", "2"}});
  CHECK(parse_csv("a", "t.csv").rows.empty());
}

TEST_CASE("damaged CSV is refused with its line") {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_csv(text, "t.csv");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(message(""), Contains("t.csv:1") && Contains("empty"));
  CHECK_THAT(message("a,b\n1,2\n1\n"), Contains("t.csv:3") && Contains("1 cells"));
  CHECK_THAT(message("a,b\n1,2\n\"1,2\n"), Contains("t.csv:3") && Contains("not closed"));
  CHECK_THAT(message("a,b\n\"1\"x,2\n"), Contains("t.csv:2"));
  CHECK_THAT(message("a,a\n1,2\n"), Contains("t.csv:1") && Contains("two columns a"));
  CHECK_THAT(message("a,b\n\"1\n\n\",2\n3\n"), Contains("t.csv:5"));
}

TEST_CASE("any CSV is refused, or the same when it is written and read again") {
  const std::string whole =
      "policy,batch,list\r\nresident,2,\"[1,{\"\"k\"\":2}]\"\r\n\"a,b\",,\"two\nlines\"\r\n";
  constexpr unsigned seed = 7;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::size_t read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text = whole.substr(0, random() % (whole.size() + 1));
    for (unsigned change = random() % 4; change > 0 && !text.empty(); --change) {
      constexpr std::string_view signs = ",\"\r\nx";
      text[random() % text.size()] = signs[random() % signs.size()];
    }
    SweepTable table;
    try {
      table = parse_csv(text, "t.csv");
    } catch (const InputError&) {
      continue;
    }
    ++read;
    const SweepTable again = parse_csv(to_csv(table), "again.csv");
    REQUIRE(again.columns == table.columns);
    REQUIRE(again.rows == table.rows);
  }
  CHECK(read > 1000);
}

TestbedRow row(const std::string& regime, const std::string& policy, double predicted,
               double measured) {
  TestbedRow row;
  row.regime = regime;
  row.policy = policy;
  row.plan = policy + ":x=1,y=\"2\"";
  row.weights_hash = "0123456789";  // text, though it looks like a number
  row.throttled = regime != "unthrottled";
  row.batch = 8;
  row.micro_batch = 2;
  row.predicted_seconds = predicted;
  row.measured_seconds = measured;
  row.scatter = 0.01;
  row.steps = 5;
  row.runs = 1;
  row.kinds = {{"forward", 0.1, 0.125}, {"backward", 0.2, 0.25}};
  return row;
}

std::vector<TestbedRow> some_rows() {
  std::vector<TestbedRow> rows = {row("ssd-bound", "resident", 1.05, 1),
                                  row("ssd-bound", "fuyou", 2, 2.5),
                                  row("unthrottled", "resident", 0.5, 0.5)};
  TestbedRound round;
  round.predicted_seconds = 0.5;
  round.measured_seconds = 0.51;
  round.corrected_seconds = 0.505;
  round.interval_low = 0.4;
  round.interval_high = 0.6;
  round.drift = {{"compute", 1.01}, {"read", 0.99}};
  static_cast<TestbedRound&>(rows[2]) = round;
  rows[2].rounds = {round, round};
  return rows;
}

TEST_CASE("rows of a testbed come back from its CSV") {
  const std::vector<TestbedRow> rows = some_rows();
  const std::vector<TestbedRow> again = rows_from_csv(to_csv(rows), "results.csv");
  REQUIRE(again.size() == rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(to_json(again[i]) == to_json(rows[i]));
  CHECK_THROWS_AS(rows_from_csv("regime,policy\nx,y\n", "results.csv"), InputError);
  CHECK_THROWS_AS(rows_from_csv("regime,kinds,kinds.a\nx,1,2\n", "results.csv"), InputError);
}

TEST_CASE("the folder of a testbed has a page of its errors") {
  const test::TemporaryFolder folder;
  std::filesystem::create_directories(folder / "parts");
  write(folder / "results.csv", to_csv(some_rows()));
  const Report report = make_report({{folder.path()}, {}, {}});
  CHECK(report.kind == "testbed");
  const auto& summary = report.summary.at("testbed");
  CHECK(summary.at("rows") == 3);
  CHECK(summary.at("throttled_median_error").get<double>() == Approx(0.05).margin(0.16));
  CHECK(summary.contains("corrected_median_error"));
  CHECK_THAT(report.page, Contains("<section id=\"prediction\"") && Contains("ssd-bound"));
  const auto charts = nlohmann::json::parse(test::blob_of(report.page, "charts"));
  CHECK(charts.at(0).at("series").size() == 2);
}

TEST_CASE("a sweep that was run has a page with each of its points") {
  const test::TemporaryFolder folder;
  const SweepPlan plan = plan_sweep(
      parse_sweep("name = \"s\"\n[fixed]\nmodel = \"gpt-tiny\"\nmachine = \"testbed\"\n"
                  "\"gpu.clock\" = 0.5\n"
                  "[[axis]]\npolicy = [\"resident\", \"fuyou\"]\n[[axis]]\nbatch = [2, 4, 8]\n",
                  "s.toml"),
      "test");
  SweepRun run;
  run.folder = folder.path();
  CHECK_THAT(refusal({folder.path()}), Contains("no run, sweep or testbed"));
  const SweepOutcome outcome = run_sweep(plan, run, inspect_sweep(plan, run));
  const Report report = make_report({{folder.path()}, {}, {}});
  const auto& summary = report.summary.at("sweep");
  CHECK(summary.at("points") == 6);
  CHECK(summary.at("ok") == outcome.ok);
  CHECK_THAT(report.page, Contains("6 points of gpt-tiny on testbed") &&
                              Contains("; set by hand: gpu.clock=0.5</p>"));
  const auto table = nlohmann::json::parse(test::blob_of(report.page, "data-tables")).at(0);
  CHECK(table.at("rows") == 6);
  CHECK(table.at("x") == "batch");
  CHECK(table.at("by") == std::vector<std::string>{"policy"});
  // Of every column the texts, each once, say what results.csv says.
  for (const auto& column : table.at("columns")) {
    const std::size_t c = outcome.table.find(column.at("name"));
    REQUIRE(c < outcome.table.columns.size());
    for (std::size_t r = 0; r < outcome.table.rows.size(); ++r)
      CHECK(column.at("texts").at(column.at("rows").at(r).get<std::size_t>()) ==
            outcome.table.rows[r][c]);
  }
  CHECK(make_report({{folder.path()}, {}, {}}).page == report.page);
  // A key that some points have otherwise is not of all, though these have no result.
  write(folder / "results.csv",
        "policy,host.memory,status,reason,hint,tokens_per_second,overrides\r\n"
        "a,2GB,ok,,,10,\"[\"\"gpu.clock=0.5\"\",\"\"host.memory=2GB\"\"]\"\r\n"
        "a,1MB,does not fit,no room,,,\"[\"\"gpu.clock=0.5\"\",\"\"host.memory=1MB\"\"]\"\r\n");
  CHECK_THAT(make_report({{folder.path()}, {}, {}}).page,
             Contains("; set by hand: gpu.clock=0.5</p>"));
  // Reasons that differ in numbers alone are one.
  write(folder / "results.csv",
        "batch,status,reason,hint\r\n2,does not fit,gpu needs 48.81 GB of 23.10 GB,\r\n"
        "4,does not fit,gpu needs 900 MB of 1.5 GB,\r\n8,invalid,batch 8 is not,\r\n");
  CHECK_THAT(make_report({{folder.path()}, {}, {}}).page,
             Contains("for example: gpu needs 48.81 GB of 23.10 GB") &&
                 Contains("batch 8 is not") && !Contains("for example: batch 8"));
  std::filesystem::remove(folder / "results.csv");
  CHECK_THAT(refusal({folder.path()}),
             Contains("has no results.csv yet") && Contains("finish the sweep"));
}

TEST_CASE("what has no page is refused with what to name") {
  const test::TemporaryFolder folder;
  CHECK_THAT(refusal({folder / "nothing"}), Contains("no such file or folder"));
  CHECK_THAT(refusal({folder.path()}), Contains("no run, sweep or testbed in this folder"));
  write(folder / "text.json", "no trace");
  CHECK_THAT(refusal({folder / "text.json"}), Contains("not a trace of Spillway"));
  CHECK_THAT(refusal({folder.path(), folder / "text.json"}),
             Contains("a folder has a page of its own"));
  write(folder / "results.csv", "a,b\n1,2\n");
  CHECK_THAT(refusal({folder.path()}), Contains("no table of a sweep or a testbed"));
}

}  // namespace
}  // namespace spillway
