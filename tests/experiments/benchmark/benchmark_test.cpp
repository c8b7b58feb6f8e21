// Tuned plans against built-in policies: rows, what they come to, and going on from a folder.
#include "experiments/benchmark/benchmark.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "experiments/benchmark/benchmark_json.hpp"
#include "tests/temporary_folder.hpp"

namespace spillway {
namespace {

// 1 billion parameters beside 12 GB of host memory; in the second machine half of that.
const char* const grid_text = R"(
name = "small"
[fixed]
model = "gpt3-1.3b"
machine = "rtx4090-12ssd"
"ssd.count" = 1
[[axis]]
"host.memory" = ["68GB", "62GB"]
[[axis]]
batch = [2, 4]
)";

SweepPlan grid_of(const test::TemporaryFolder& folder, const std::string& text) {
  const std::filesystem::path path = folder.path() / "grid.toml";
  std::ofstream(path) << text;
  return plan_benchmark(path.string(), "this program");
}

BenchmarkOptions few_plans() {
  BenchmarkOptions options;
  options.effort = 30;
  return options;
}

TEST_CASE("a benchmark holds the tuned plan of each point against built-in policies") {
  const test::TemporaryFolder folder;
  const SweepPlan grid = grid_of(folder, grid_text);
  const Benchmark found = run_benchmark(grid, few_plans());
  REQUIRE(found.rows.size() == 4);
  for (const BenchmarkRow& row : found.rows) {
    REQUIRE(row.tuned);
    REQUIRE(row.built_in);
    REQUIRE(row.published);
    CHECK(row.built_in->step_seconds <= 1.001 * row.published->step_seconds);
    CHECK(*row.speedup(row.built_in) >= 1);
    CHECK(row.bound_seconds <= row.tuned->step_seconds);
  }
  CHECK(found.rows[2].cells == std::vector<std::string>{"62GB", "2"});
  CHECK(summary_of(found.rows).slower == 0);
}

TEST_CASE("a benchmark goes on from its folder, and ends as one that was never stopped") {
  const test::TemporaryFolder folder;
  const SweepPlan grid = grid_of(folder, grid_text);
  BenchmarkOptions options = few_plans();
  options.folder = folder.path() / "rows";
  const std::string whole = to_json(run_benchmark(grid, few_plans()), options).dump();
  CHECK(to_json(run_benchmark(grid, options), options).dump() == whole);
  std::size_t found_again = 0;
  BenchmarkListener listener;
  listener.progress = [&](const BenchmarkProgress& now) { found_again = now.found; };
  CHECK(to_json(run_benchmark(grid, options, listener), options).dump() == whole);
  CHECK(found_again == 0);
  CHECK(std::filesystem::exists(options.folder / "results.csv"));
  // Other plans are searched for with another effort.
  options.effort = 31;
  run_benchmark(grid, options, listener);
  CHECK(found_again == 4);
}

TEST_CASE("speedups are averaged by their logarithms, and missing plans are left out") {
  const auto plan = [](double seconds) { return BenchmarkPlan{"spillway:", 1, seconds}; };
  BenchmarkRow twice, eight_times, alone, nothing;
  twice.tuned = eight_times.tuned = alone.tuned = plan(1);
  twice.built_in = plan(2);
  eight_times.built_in = plan(8);
  twice.bound_seconds = 0.9;
  eight_times.bound_seconds = 0.7;
  alone.bound_seconds = 1;
  const BenchmarkSummary all = summary_of(std::vector{twice, eight_times, alone, nothing});
  CHECK(all.points == 4);
  CHECK(all.fits == 3);
  CHECK(all.only_tuned == 1);
  CHECK(all.slower == 0);
  CHECK(all.against_built_in == Approx(4));
  CHECK(all.against_zero_infinity == 0);
  CHECK(all.median_gap == Approx(0.1));
  CHECK(all.largest_gap == Approx(0.3));
  // A built-in policy that is faster, and one that fits where no tuned plan does.
  BenchmarkRow slower = twice, lost;
  slower.built_in = plan(0.99);
  lost.built_in = plan(5);
  CHECK(summary_of(std::vector{twice, slower, lost}).slower == 2);
}

TEST_CASE("batches count where I/O binds GreedySnake") {
  BatchRow row;
  row.batch = 40;
  row.peak_tokens_per_second = 1000;
  row.limited_below = "ssd.time";
  row.fewer = 30;
  row.fewer_tokens_per_second = 890;
  row.tuned_peak_tokens_per_second = 1100;
  row.most_tokens_per_second = 980;
  BatchRow later = row, computing = row;
  later.fewer_tokens_per_second = 900;
  computing.limited_below = "gpu.compute";
  const BatchSummary all = summary_of(std::vector{row, later, computing}, 0.9);
  CHECK(all.rows == 3);
  CHECK(all.io_bound == 2);
  CHECK(all.own_peak == 0);
  CHECK(all.may_own_peak == 0);  // 990 are wanted
  CHECK(all.other_peak == 1);
  CHECK(all.may_other_peak == 2);
}

TEST_CASE("built-in grids are read, and a grid names no policy") {
  CHECK(plan_benchmark("benchmark", "").points.size() == 20);
  CHECK(plan_benchmark("benchmark-wide", "").points.size() == 72);
  CHECK(plan_benchmark("benchmark-full", "").points.size() == 168);
  const test::TemporaryFolder folder;
  const std::string text = grid_text;
  CHECK_THROWS_AS(grid_of(folder, text + "[[axis]]\npolicy = [\"fuyou\"]\n"), InputError);
  CHECK_THROWS_AS(grid_of(folder, text + "[[axis]]\n\"greedysnake.alpha\" = [0.5]\n"), InputError);
  CHECK_THROWS_AS(grid_of(folder, text + "[[axis]]\nmicro_batch = [3]\n"), InputError);
  CHECK_THROWS_AS(plan_benchmark("bench-mark", ""), InputError);
  // What would have no effect is refused.
  std::string other = grid_text;
  other.replace(other.find("[fixed]"), 7, "[fixed]\nsteps = 50");
  CHECK_THROWS_WITH(grid_of(folder, other), Catch::Contains("as many steps as tune does"));
  other = std::string(grid_text) +
          "[[plot]]\nname = \"p\"\nkind = \"lines\"\nx = \"batch\"\ny = \"tokens_per_second\"\n";
  CHECK_THROWS_AS(grid_of(folder, other), InputError);
}

}  // namespace
}  // namespace spillway
