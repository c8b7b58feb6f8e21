// spillway bench: how fast Spillway itself is.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/io_option.hpp"
#include "cli/text/bench_figures.hpp"
#include "cli/text/output.hpp"
#include "experiments/speed/speed.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  std::vector<std::string> names;
  double seconds = 0.3;
  std::string ssd = ".";
  IoOption io;
  int rounds = 7;
  std::optional<int> gpu;
  bool list = false, json = false, quick = false;
};

// Whether a name given means this test: its own, or that of a group it is in.
bool means(const std::string& name, const std::string& test) {
  return test == name || test.rfind(name + "/", 0) == 0;
}

// Where nothing is known, null.
ordered_json known(double value) { return value > 0 ? ordered_json(value) : ordered_json(nullptr); }

ordered_json to_json(const SpeedTest& test, const SpeedResult& result) {
  return {{"name", test.name},
          {"what", test.what},
          {"unit", test.unit},
          {"items", result.run.items},
          {"runs", result.runs},
          {"cpu_seconds", result.cpu_seconds},
          {"items_per_second", known(result.items_per_second())},
          {"ns_per_item", known(result.ns_per_item())},
          {"bytes_per_item", known(result.bytes_per_item())},
          {"operations_per_item", known(result.operations_per_item())}};
}

// What is asked for: speed tests, which are counted in processor time, and figures beside a
// roofline.
struct Selection {
  std::vector<SpeedTest> tests;
  std::vector<FigureTest> figures;
};

// Without names: all there are, in `list` also those on request.
Selection select(const Options& options, bool list) {
  Selection selection;
  std::vector<std::string> others;
  std::vector<FigureTest> figures = figure_tests();
  if (options.names.empty()) {
    if (!list) std::erase_if(figures, [](const FigureTest& test) { return test.on_request; });
    return {list ? speed_tests() : find_speed_tests({}), std::move(figures)};
  }
  for (const std::string& name : options.names) {
    const std::size_t before = selection.figures.size();
    std::copy_if(figures.begin(), figures.end(), std::back_inserter(selection.figures),
                 [&](const FigureTest& test) { return means(name, test.name); });
    if (selection.figures.size() == before) others.push_back(name);
  }
  std::vector<std::string> known;
  for (const FigureTest& test : figures) known.push_back(test.name);
  if (!others.empty()) selection.tests = find_speed_tests(others, known);
  return selection;
}

void list_tests(const Options& options) {
  ordered_json all = ordered_json::array(), figures = ordered_json::array();
  const Selection selection = select(options, true);
  for (const SpeedTest& test : selection.tests) {
    all.push_back({{"name", test.name},
                   {"what", test.what},
                   {"unit", test.unit},
                   {"on_request", test.on_request}});
    if (options.json) continue;
    fmt::print("{:<28} {}{}\n", test.name, test.what,
               test.on_request ? " (only when named in full)" : "");
  }
  for (const FigureTest& test : selection.figures) {
    figures.push_back({{"name", test.name}, {"what", test.what}, {"on_request", test.on_request}});
    if (options.json) continue;
    fmt::print("{:<28} {}{}\n", test.name, test.what, test.on_request ? " (only when named)" : "");
  }
  if (options.json) fmt::print("{}\n", to_text(ordered_json{{"tests", all}, {"figures", figures}}));
}

FigureOptions figure_options(const Options& options) {
  FigureOptions result;
  result.ssd.clear();
  std::istringstream list(options.ssd);
  for (std::string item; std::getline(list, item, ',');) {
    if (!std::filesystem::is_directory(item)) {
      throw InputError(fmt::format("--ssd {}: there is no such directory", item),
                       "create it, or check that the drive is mounted");
    }
    result.ssd.emplace_back(item);
  }
  if (result.ssd.empty())
    throw InputError("--ssd names no directory", "directories on the drives to measure");
  result.io = options.io.choose();
  result.rounds = options.rounds;
  result.gpu = options.gpu;
  result.quick = options.quick;
  result.seconds = std::max(options.seconds, 0.05);  // of which fio can tell a rate
  return result;
}

void print_row(const SpeedTest& test, const SpeedResult& result) {
  const auto or_dash = [](double value, const char* format) {
    return value > 0 ? fmt::format(fmt::runtime(format), value) : std::string("-");
  };
  fmt::print("{:<28} {:>9} {:<6} {:>10} {:>8} {:>9} {:>9} {:>9}\n", test.name, result.run.items,
             test.unit, format_seconds(result.cpu_seconds),
             or_dash(result.items_per_second() * 1e-6, "{:.2f}"),
             or_dash(result.ns_per_item(), "{:.1f}"), or_dash(result.bytes_per_item(), "{:.1f}"),
             or_dash(result.operations_per_item(), "{:.2f}"));
  std::fflush(stdout);  // a row as soon as it is known
}

void run(const Options& options) {
  if (options.list) return list_tests(options);
  const Selection selection = select(options, false);
  const FigureOptions figures = figure_options(options);
  ordered_json all = ordered_json::array();
  if (!options.json && !selection.tests.empty()) {
    fmt::print("{:<28} {:>16} {:>10} {:>8} {:>9} {:>9} {:>9}\n", "test", "items", "user CPU", "M/s",
               "ns/item", "B/item", "ops/item");
  }
  for (const SpeedTest& test : selection.tests) {
    const SpeedResult result = measure_speed(test, options.seconds);
    if (options.json) {
      all.push_back(to_json(test, result));
    } else {
      print_row(test, result);
    }
  }
  const ordered_json measured = run_figures(selection.figures, figures, options.json);
  if (options.json)
    fmt::print("{}\n", to_text(ordered_json{{"tests", all}, {"figures", measured}}));
}

}  // namespace

void add_bench(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("bench", "measure how fast Spillway itself is");
  auto options = std::make_shared<Options>();
  command->add_option("NAME", options->names,
                      "tests, or groups of them such as `engine`; without any, all of them");
  command->add_option("--ssd", options->ssd, "directories on the drives to measure: DIR[,DIR]")
      ->capture_default_str();
  options->io.add_to(*command);
  command->add_option("--rounds", options->rounds, "how often a figure and its roofline take turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--seconds", options->seconds,
                   "user CPU time to spend on each test, time of each sample of a figure, about")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_option(
      "--gpu", options->gpu,
      "number of the GPU, as nvidia-smi lists them; default: the first that can be used");
  command->add_flag("--quick", options->quick, "of a GPU: fewer shapes, only the smaller model");
  command->add_flag("--list", options->list, "only name the tests");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
