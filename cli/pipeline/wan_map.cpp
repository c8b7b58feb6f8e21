// spillway wan-map: where ATLAS gains over pipelines on one TCP flow, and where not.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/pipeline/pipeline_text.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"

namespace spillway::cli {

namespace {

struct Options {
  WanMapAxes axes;
  bool json = false;
};

void run(const Options& options) {
  Progress progress(true);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<WanMapRow> rows = wan_map(options.axes, [&](std::size_t done, std::size_t all) {
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (seconds.count() > 2) progress.show(done_text(done, all, seconds.count(), "points"));
  });
  progress.clear();
  if (!options.json) return fmt::print("{}", text_of(options.axes, rows));
  nlohmann::ordered_json json = {{"stages_of_center", options.axes.stages_of_center},
                                 {"flows_gain", options.axes.flows_gain},
                                 {"latency", options.axes.latency},
                                 {"most_cell", options.axes.most_cell},
                                 {"recomputes", options.axes.recomputes},
                                 {"rows", nlohmann::ordered_json::array()}};
  for (const WanMapRow& row : rows) json["rows"].push_back(to_json(row));
  fmt::print("{}\n", to_text(json));
}

}  // namespace

void add_wan_map(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "wan-map",
      "ATLAS over GPipe, 1F1B and Varuna on a WAN, as a map over transfer times, micro-batches, "
      "data centres and memory (docs/pipelines.md)");
  auto options = std::make_shared<Options>();
  WanMapAxes& axes = options->axes;
  command
      ->add_option("--ratios", axes.ratios,
                   "C: transfers on many flows, in forward passes of a stage")
      ->delimiter(',')
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  command->add_option("--micro-batches", axes.micro_batches, "M: micro-batches of a pipeline")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--centers", axes.centers, "K: data centres in a row")
      ->delimiter(',')
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  command->add_option("--held", axes.held, "micro-batches that a GPU's memory holds; 0: all")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--stages", axes.stages_of_center, "stages in a data centre")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--flows-gain", axes.flows_gain,
                   "how often the rate of one TCP flow goes into that of many")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  command->add_option("--latency", axes.latency, "one way, in forward passes")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      ->add_option("--most-cell", axes.most_cell, "pipelines that take turns on the WAN, at most")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_flag("--recompute", axes.recomputes,
                    "backward recomputes what forward does not keep");
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options] { run(*options); });
}

}  // namespace spillway::cli
