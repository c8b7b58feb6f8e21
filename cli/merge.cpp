// spillway merge: adapters of PEFT's become part of the model that they are beside.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/options/weights_output.hpp"
#include "cli/text/output.hpp"
#include "exec/run/adapter_merge.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

struct Options {
  MergeRequest request;
  WeightsOutput output;
};

void run_merge(Options& options) {
  MergeRequest& request = options.request;
  WritingWeights writing(options.output, "while merging");
  request.files = writing.files();
  request.make_ring = options.output.io.choose().make_ring;
  const MergedModel merged = merge_adapter(request);
  writing.finish();
  if (options.output.json) {
    const nlohmann::ordered_json json = {
        {"folder", request.out.string()}, {"files", merged.files}, {"bytes", merged.bytes}};
    fmt::print("{}\n", to_text(json));
    return;
  }
  fmt::print("{}: {} with the adapters of {}, {}\n", request.out.string(), request.model,
             request.adapter.string(), in_files_text(merged.bytes, merged.files));
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
  options->output.add_to(*command);
  command->callback([options] { run_merge(*options); });
}

}  // namespace spillway::cli
