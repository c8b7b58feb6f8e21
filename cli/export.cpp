// spillway export: a run's weights as a folder that transformers loads.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/options/weights_output.hpp"
#include "cli/text/output.hpp"
#include "exec/run/run_export.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

struct Options {
  RunExport request;
  WeightsOutput output;
};

void run_export(Options& options) {
  RunExport& request = options.request;
  WritingWeights writing(options.output, "while exporting");
  request.files = writing.files();
  request.make_ring = options.output.io.choose().make_ring;
  request.note = [&](const std::string& text) {
    writing.finish();
    print_error(text + "\n");
  };
  request.checking = [&](std::uint64_t done, std::uint64_t all) {
    writing.show("checking the frozen weights:", done, all);
  };
  const ExportedRun exported = export_run(request);
  writing.finish();
  if (options.output.json) {
    const nlohmann::ordered_json step =
        exported.step ? nlohmann::ordered_json(*exported.step) : nlohmann::ordered_json();
    fmt::print("{}\n", to_text({{"folder", exported.folder.string()},
                                {"step", step},
                                {"files", exported.files},
                                {"bytes", exported.bytes}}));
    return;
  }
  fmt::print("{}: the weights {}, {}\n", exported.folder.string(),
             exported.step ? fmt::format("of step {}", *exported.step)
                           : std::string("that the run wrote at its end"),
             in_files_text(exported.bytes, exported.files));
}

}  // namespace

void add_export(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "export", "write a run's weights as a folder that Hugging Face's transformers loads");
  auto options = std::make_shared<Options>();
  command->add_option("run", options->request.run, "the run's folder")->required();
  command->add_option("--step", options->request.step,
                      "one that the run has kept (train --keep), or one of its last two commits; "
                      "default: the newest commit. The run may be at work");
  command->add_option("--out", options->request.out, "a new folder; default: RUN/model-step-N");
  command->add_option("--model", options->request.base,
                      "where the model is by now whose weights, or some of them, are frozen in the "
                      "run; default: where the run had it");
  command->add_flag("--merge", options->request.merge,
                    "of a run that trains adapters: the whole model with these in its matrices; "
                    "default: the adapters, as a folder of PEFT's");
  options->output.add_to(*command);
  command->callback([options] { run_export(*options); });
}

}  // namespace spillway::cli
