// spillway bench: how fast Spillway itself is.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "experiments/speed.hpp"

namespace spillway::cli {

namespace {

using nlohmann::ordered_json;

struct Options {
  std::vector<std::string> names;
  double seconds = 0.3;
  bool list = false, json = false;
};

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

void list_tests(const Options& options) {
  ordered_json all = ordered_json::array();
  // All there are, those on request too, unless some are named.
  const auto tests = options.names.empty() ? speed_tests() : find_speed_tests(options.names);
  for (const SpeedTest& test : tests) {
    all.push_back({{"name", test.name},
                   {"what", test.what},
                   {"unit", test.unit},
                   {"on_request", test.on_request}});
    if (options.json) continue;
    fmt::print("{:<28} {}{}\n", test.name, test.what,
               test.on_request ? " (only when named in full)" : "");
  }
  if (options.json) fmt::print("{}\n", ordered_json{{"tests", all}}.dump(2));
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
  const std::vector<SpeedTest> tests = find_speed_tests(options.names);
  ordered_json all = ordered_json::array();
  if (!options.json) {
    fmt::print("{:<28} {:>16} {:>10} {:>8} {:>9} {:>9} {:>9}\n", "test", "items", "user CPU", "M/s",
               "ns/item", "B/item", "ops/item");
  }
  for (const SpeedTest& test : tests) {
    const SpeedResult result = measure_speed(test, options.seconds);
    if (options.json) {
      all.push_back(to_json(test, result));
    } else {
      print_row(test, result);
    }
  }
  if (options.json) fmt::print("{}\n", ordered_json{{"tests", all}}.dump(2));
}

}  // namespace

void add_bench(CLI::App& app, int&) {
  CLI::App* command = app.add_subcommand("bench", "measure how fast Spillway itself is");
  auto options = std::make_shared<Options>();
  command->add_option("NAME", options->names,
                      "tests, or groups of them such as `engine`; without any, all of them");
  command->add_option("--seconds", options->seconds, "user CPU time to spend on each test, about")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command->add_flag("--list", options->list, "only name the tests");
  command->add_flag("--json", options->json, "print one JSON object (docs/metrics.md)");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
