// spillway merge: adapters of PEFT's become part of the model that they are beside.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/io_option.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "exec/run/adapter_merge.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

struct Options {
  MergeRequest request;
  std::string type = "fp32", most_bytes = "5GB";
  IoOption io;
  bool json = false;
};

void run_merge(Options& options) {
  MergeRequest& request = options.request;
  request.files.type = options.type == "fp32" ? ElementType::f32 : ElementType::bf16;
  request.files.most_bytes = parse_bytes(options.most_bytes);
  request.make_ring = options.io.choose().make_ring;
  StopSignals::enter(StopSignals::Phase::exporting);
  StopSignals signals;
  Progress progress(!options.json);
  std::uint64_t bytes = 0;
  request.files.progress = [&](std::uint64_t done, std::uint64_t all) {
    StopSignals::check("while merging");
    bytes = all;
    progress.show(fmt::format("writing {} of {}", format_bytes(static_cast<double>(done)),
                              format_bytes(static_cast<double>(all))),
                  done == all);
  };
  const std::size_t files = merge_adapter(request);
  progress.finish();
  if (options.json) {
    fmt::print("{}\n",
               to_text({{"folder", request.out.string()}, {"files", files}, {"bytes", bytes}}));
    return;
  }
  fmt::print("{}: {} with the adapters of {}, {} in {} file{}\n", request.out.string(),
             request.model, request.adapter.string(), format_bytes(static_cast<double>(bytes)),
             files, files == 1 ? "" : "s");
}

}  // namespace

void add_merge(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "merge", "write a model with low-rank adapters merged into its matrices: W + scale B A");
  auto options = std::make_shared<Options>();
  command
      ->add_option("--model", options->request.model,
                   "the model that the adapters are beside: its folder, or its name where it has "
                   "been downloaded")
      ->required();
  command->add_option("--adapter", options->request.adapter, "the adapters, a folder of PEFT's")
      ->required();
  command->add_option("--out", options->request.out, "a new folder")->required();
  command->add_option("--dtype", options->type, "what weights are written as: fp32 | bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--max-shard", options->most_bytes,
                   "bytes of a file of weights; larger models are written as several")
      ->capture_default_str();
  options->io.add_to(*command);
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options] { run_merge(*options); });
}

}  // namespace spillway::cli
