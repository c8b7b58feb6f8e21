// spillway tune: the fastest plan, found by a search, with a proven bound beside it.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/benchmark_options.hpp"
#include "cli/options/problem_options.hpp"
#include "cli/options/run_options.hpp"
#include "cli/text/flags.hpp"
#include "cli/text/output.hpp"
#include "cli/text/plan_text.hpp"
#include "cli/text/program_identity.hpp"
#include "experiments/tune/price_file.hpp"
#include "experiments/tune/seeds.hpp"
#include "experiments/tune/tune_json.hpp"
#include "experiments/watch/training_line.hpp"
#include "policies/common/registry.hpp"

namespace spillway::cli {

namespace {

struct Options {
  ProblemOptions problem;
  BenchmarkFlags benchmark;
  RunOptions run;
  std::string budget, out, resume;
  std::int64_t effort = default_effort, seed = 0;
  std::optional<std::int64_t> threads;
  bool json = false;
};

// "60s", "5m", "1h", "90"
double parse_budget(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const std::string unit(rest, end);
  const double seconds = unit.empty() || unit == "s" ? 1
                         : unit == "m"               ? 60
                         : unit == "h"               ? 3600
                                                     : 0;
  if (error == std::errc() && seconds > 0 && value > 0 && value * seconds < 1e7)
    return value * seconds;
  throw InputError(fmt::format("--budget {} is not a time", text),
                   "seconds, minutes or hours: 60s, 5m, 1h");
}

void require_range(const char* flag, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw InputError(fmt::format("{} {} is not in {} .. {}", flag, value, least, most),
                   "leave it out for the default");
}

// Prices of plugins' policies are those of their builds.
std::string origins_text() {
  std::string text;
  for (const PolicyInfo& info : known_policies()) {
    if (const auto origin = origin_of_policy(info.name))
      text += fmt::format(" {} {}", info.name, origin->hash);
  }
  return text;
}

std::unique_ptr<PriceFile> prices_of(const Options& options) {
  if (options.out.empty() && options.resume.empty()) return nullptr;
  if (!options.out.empty() && !options.resume.empty())
    throw InputError("--out and --resume are both given",
                     "--out begins a file, --resume goes on with one");
  std::error_code ignored;
  const bool is_there =
      std::filesystem::exists(options.out.empty() ? options.resume : options.out, ignored);
  if (!options.out.empty() && is_there)
    throw InputError(fmt::format("--out {}: it is there already", options.out),
                     fmt::format("--resume {} goes on with it", options.out));
  if (!options.resume.empty() && !is_there)
    throw InputError(fmt::format("--resume {}: there is no such file", options.resume),
                     fmt::format("--out {} begins it", options.resume));
  return std::make_unique<PriceFile>(options.out.empty() ? options.resume : options.out,
                                     this_program() + origins_text());
}

unsigned threads_of(const Options& options) {
  require_range("--effort", options.effort, 1, 100'000'000);
  require_range("--seed", options.seed, 0, std::int64_t{1} << 53);
  const std::int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::int64_t threads = options.threads.value_or(cores);
  require_range("--threads", threads, 1, 4096);
  return static_cast<unsigned>(threads);
}

TuneOptions tune_options(const Options& options, const Problem& problem) {
  TuneOptions tuning;
  tuning.threads = threads_of(options);
  tuning.choose_micro_batch = options.problem.chooses_micro_batch();
  tuning.effort = static_cast<std::uint64_t>(options.effort);
  if (!options.budget.empty()) tuning.budget_seconds = parse_budget(options.budget);
  tuning.seed = static_cast<std::uint64_t>(options.seed);
  tuning.run = options.run.whole_run(problem.workload, problem.framework);
  tuning.settle = options.problem.settle(problem);
  return tuning;
}

std::string progress_line(const SearchProgress& now, const std::optional<double>& budget) {
  std::string line = fmt::format("{} of {} plans", now.explored, now.effort);
  if (now.best_seconds) line += fmt::format(", best {}", format_seconds(*now.best_seconds));
  const double done = static_cast<double>(now.explored) / static_cast<double>(now.effort);
  if (done <= 0 || done >= 1) return line;
  double left = now.seconds * (1 - done) / done;
  if (budget) left = std::min(left, std::max(0.0, *budget - now.seconds));
  return line + fmt::format(", {} left", format_clock(left));
}

void print_plan(const char* label, const PricedTrial& one, double best) {
  const auto bytes = [](std::uint64_t size) { return format_bytes(static_cast<double>(size)); };
  fmt::print("  {:<10} {:>6.3f}x {:>5} {:>10} {:>10} {:>11}  {}\n", label,
             one.second.step_seconds / best, one.first.micro_batch, bytes(one.second.peaks[0]),
             bytes(one.second.peaks[1]), format_bytes(one.second.bytes_written),
             one.second.settled);
}

void print_plans(const char* title, const std::vector<PricedTrial>& all, double best) {
  if (all.empty()) return;
  fmt::print("{}\n  {:<10} {:>7} {:>5} {:>10} {:>10} {:>11}  {}\n", title, "step", "", "micro",
             "gpu", "host", "ssd written", "policy");
  for (const PricedTrial& one : all)
    print_plan(format_seconds(one.second.step_seconds).c_str(), one, best);
}

// Keys of the machine after one --set; a limit by its own flag, which is the only change then.
std::string change_text(const std::vector<Setting>& changes) {
  if (changes.front().name.find('.') == std::string::npos) return flag_text(changes.front());
  std::string text;
  for (const Setting& change : changes)
    text += fmt::format("{}{}={}", text.empty() ? "--set " : " ", change.name, change.value);
  return text;
}

void print_relaxations(const std::vector<Relaxation>& all) {
  if (all.empty()) return;
  fmt::print(
      "what more of the machine would save, of the step, with the best plan found there (`--json` "
      "names it)\n");
  for (const Relaxation& one : all) {
    fmt::print("  {:<34} {:>6.1f} %   step {}, bound {}   {}\n", one.name, 100 * one.gain,
               format_seconds(one.step_seconds), format_seconds(one.bound_seconds),
               change_text(one.changes));
  }
}

void print_result(const TuneResult& result, double seconds) {
  const Evaluation& evaluation = result.best->evaluation;
  const SimulationResult& simulated = *evaluation.result;
  const Candidate best{evaluation, result.best->wear};
  const Problem& problem = evaluation.schedule.problem();
  fmt::print("{}", header_text(best));
  fmt::print("step         {}   ({:.1f} tokens/s, {:.3g} model TFLOPS)\n",
             format_seconds(simulated.step_seconds), simulated.tokens_per_second,
             simulated.model_tflops);
  fmt::print("bound        {} by {}: no plan saves more than {:.1f} % of the step{}\n",
             format_seconds(result.bound.seconds), result.bound.limit, 100 * result.gap(),
             problem.framework == own_framework
                 ? ""
                 : fmt::format(" (without what {} adds)", problem.framework));
  fmt::print("limited by   {} ({:.0f} % of the step)\n", simulated.bound_by,
             100 * simulated.efficiency);
  fmt::print("{}memory: {}\n{}", wear_text(best.wear, problem.machine), to_text(margin_of(best)),
             memory_text(best));
  print_relaxations(result.relaxations);
  print_plans("the best of each policy but spillway, of the settings tried", result.runners_up,
              simulated.step_seconds);
  print_plans("no plan found is better in all of time, memory and writes", result.front,
              simulated.step_seconds);
  if (result.best->wear.commit_bytes_per_step() > 0)
    fmt::print("`ssd written` of these plans is without what commits write\n");
  fmt::print("{} plans priced in {:.1f} s{}\n", result.explored, seconds,
             result.stopped_by_clock ? "; stopped by --budget" : "");
}

// Nothing that was tried fits: what would, for policies as published and for the plan of all those
// tried that lacks least.
[[noreturn]] void fail(const Options& options, const Problem& problem, const TuneResult& result) {
  if (result.stopped_by_clock)
    throw FitError(fmt::format("no plan that was tried in {} fits", options.budget),
                   "more time may find one: leave --budget out, or allow more");
  const WholeRun run = options.run.whole_run(problem.workload, problem.framework);
  std::vector<std::string> policies = published_policies();
  if (result.nearest) policies.push_back(result.nearest->second.settled);
  fail_to_fit(evaluate_as_asked(options.problem, problem, policies, run, default_steps),
              options.problem, problem, policies, run, default_steps);
}

void run_benchmark(const Options& options, int& exit_code) {
  BenchmarkOptions benchmark;
  benchmark.threads = threads_of(options);
  benchmark.effort = static_cast<std::uint64_t>(options.effort);
  benchmark.seed = static_cast<std::uint64_t>(options.seed);
  benchmark.folder = options.out;
  if (!options.benchmark.run(benchmark, options.json)) exit_code = exit_failed;
}

void run(const Options& options, int& exit_code) {
  if (options.benchmark.asked()) return run_benchmark(options, exit_code);
  if (options.problem.model.empty()) throw CLI::RequiredError("--model");
  if (options.problem.machine.empty()) throw CLI::RequiredError("--machine");
  const Problem problem = options.problem.problem();
  TuneOptions tuning = tune_options(options, problem);
  const std::unique_ptr<PriceFile> prices = prices_of(options);
  tuning.journal = prices.get();
  Progress progress(true);
  tuning.progress = [&](const SearchProgress& now) {
    progress.show(progress_line(now, tuning.budget_seconds));
  };
  const auto began = std::chrono::steady_clock::now();
  const TuneResult result = tune(problem, tuning);
  progress.clear();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
  if (options.json) {
    fmt::print("{}\n", to_text(to_json(result, tuning)));
  } else if (result.best) {
    print_result(result, seconds.count());
  }
  if (!result.best) {
    exit_code = exit_does_not_fit;
    fail(options, problem, result);
  }
}

}  // namespace

void add_tune(CLI::App& app, int& exit_code) {
  CLI::App* command =
      app.add_subcommand("tune", "search for the fastest plan, and prove how good it is");
  auto options = std::make_shared<Options>();
  options->problem.add_to(*command, false, {"pipeline"});
  command->get_option("--model")->required(false);
  options->problem.add_framework_to(*command);
  options->run.add_to(*command);
  command
      ->add_option("--effort", options->effort,
                   "plans that are priced at most, beside the policies as published")
      ->capture_default_str();
  command->add_option("--budget", options->budget,
                      "time after which the best so far is the answer: 60s, 5m");
  command->add_option("--seed", options->seed, "another seed tries moves in another order")
      ->capture_default_str();
  command->add_option(
      "--threads", options->threads,
      "plans priced at once; default: one a core. The answer does not depend on it");
  command->add_option("--out", options->out,
                      "file for the prices found, to go on from; with --benchmark the folder of "
                      "its rows, which goes on with what is there");
  command->add_option("--resume", options->resume, "goes on with such a file");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  options->benchmark.add_to(*command,
                            {"--help", "--effort", "--seed", "--threads", "--out", "--json"});
  command->callback([options, &exit_code] { run(*options, exit_code); });
}

}  // namespace spillway::cli
