#include "cli/options/benchmark_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/errors.hpp"
#include "base/heap.hpp"
#include "cli/options/question_options.hpp"
#include "cli/text/benchmark_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/program_identity.hpp"
#include "cli/text/progress.hpp"
#include "experiments/benchmark/benchmark_json.hpp"
#include "experiments/sweep/sweep_journal.hpp"
#include "experiments/watch/training_line.hpp"

namespace spillway::cli {

namespace {

namespace fs = std::filesystem;

void check_folder(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || !fs::exists(folder, ignored)) return;
  if (!fs::is_directory(folder, ignored))
    throw InputError(fmt::format("--out {}: this is a file", folder.string()),
                     "name a folder; it is created where there is none");
  if (!fs::is_empty(folder, ignored) && !holds_journals(folder))
    throw InputError(
        fmt::format("--out {}: the folder is not empty, and holds no rows", folder.string()),
        "name a new folder, or that of an earlier run");
}

std::string progress_line(const BenchmarkProgress& now) {
  std::string line = fmt::format("{} of {} {}", now.done, now.total, now.rows);
  if (now.found > 0 && now.done < now.total) {
    const double each = now.seconds / static_cast<double>(now.found);
    line +=
        fmt::format(", {} left", format_clock(each * static_cast<double>(now.total - now.done)));
  }
  return now.what.empty() ? line : line + ": " + now.what;
}

}  // namespace

void BenchmarkFlags::add_to(CLI::App& command, const std::vector<std::string>& shared) {
  const std::vector<CLI::Option*> others = command.get_options();
  auto* benchmark = command.add_flag(
      "--benchmark", benchmark_,
      "tune every point of a grid, and hold the plans against built-in policies and bounds");
  for (CLI::Option* option : others) {
    const std::string name = option->get_name();
    if (std::find(shared.begin(), shared.end(), name) == shared.end()) benchmark->excludes(option);
  }
  command
      .add_option(
          "--grid", grid_,
          "points of --benchmark: benchmark, benchmark-wide, benchmark-full, or a sweep file "
          "without a policy")
      ->needs(benchmark)
      ->capture_default_str();
  command
      .add_option("--smallest-batch", smallest_batch_,
                  "with --benchmark: whether tuned plans make this share of saturated throughput, "
                  "e.g. 90%, of a quarter fewer sequences than greedysnake")
      ->needs(benchmark);
}

bool BenchmarkFlags::run(BenchmarkOptions options, bool json) const {
  keep_freed_memory();
  const SweepPlan grid = plan_benchmark(grid_, this_program());
  if (!smallest_batch_.empty()) options.share = parse_share("smallest_batch", smallest_batch_);
  check_folder(options.folder);
  Progress progress(true);
  BenchmarkText text(grid);
  BenchmarkListener listener;
  listener.progress = [&](const BenchmarkProgress& now) { progress.show(progress_line(now)); };
  const auto print = [&](const std::string& lines) {
    progress.clear();
    fmt::print("{}", lines);
    std::fflush(stdout);
  };
  if (!json) {
    print(text.head());
    listener.row = [&](const BenchmarkRow& row) { print(text.line(row)); };
    bool is_first = true;
    listener.batch_row = [&, is_first](const BatchRow& row) mutable {
      if (is_first) print("\n" + text.batch_head(*options.share));
      is_first = false;
      print(text.line(row, *options.share));
    };
  }
  const Benchmark found = run_benchmark(grid, options, listener);
  progress.clear();
  if (json) {
    fmt::print("{}\n", to_text(to_json(found, options)));
  } else {
    print("\n" + text.end(found, options.share));
  }
  return summary_of(found.rows).slower == 0;
}

}  // namespace spillway::cli
