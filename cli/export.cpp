// spillway export: a run's weights as a folder that transformers loads.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "cli/commands.hpp"
#include "cli/options/io_option.hpp"
#include "cli/stop_signals.hpp"
#include "cli/text/output.hpp"
#include "cli/text/progress.hpp"
#include "exec/run/run_export.hpp"
#include "sim/result_json.hpp"

namespace spillway::cli {

namespace {

struct Options {
  RunExport request;
  std::string type = "fp32", most_bytes = "5GB";
  IoOption io;
  bool json = false;
};

void run_export(Options& options) {
  RunExport& request = options.request;
  request.type = options.type == "fp32" ? ElementType::f32 : ElementType::bf16;
  request.most_bytes = parse_bytes(options.most_bytes);
  request.make_ring = options.io.choose().make_ring;
  StopSignals::enter(StopSignals::Phase::exporting);
  StopSignals signals;
  Progress progress(!options.json);
  request.note = [&](const std::string& text) {
    progress.finish();
    print_error(text + "\n");
  };
  request.progress = [&](std::uint64_t done, std::uint64_t all) {
    StopSignals::check("while exporting");
    progress.show(fmt::format("writing {} of {}", format_bytes(static_cast<double>(done)),
                              format_bytes(static_cast<double>(all))),
                  done == all);
  };
  const ExportedRun exported = export_run(request);
  progress.finish();
  if (options.json) {
    const nlohmann::ordered_json step =
        exported.step ? nlohmann::ordered_json(*exported.step) : nlohmann::ordered_json();
    fmt::print("{}\n", to_text({{"folder", exported.folder.string()},
                                {"step", step},
                                {"files", exported.files},
                                {"bytes", exported.bytes}}));
    return;
  }
  fmt::print("{}: the weights {}, {} in {} file{}\n", exported.folder.string(),
             exported.step ? fmt::format("of step {}", *exported.step)
                           : std::string("that the run wrote at its end"),
             format_bytes(static_cast<double>(exported.bytes)), exported.files,
             exported.files == 1 ? "" : "s");
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
  command->add_option("--dtype", options->type, "what weights are written as: fp32 | bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_flag("--merge", options->request.merge,
                    "of a run that trains adapters: the whole model with these in its matrices; "
                    "default: the adapters, as a folder of PEFT's");
  command
      ->add_option("--max-shard", options->most_bytes,
                   "bytes of a file of weights; larger models are written as several")
      ->capture_default_str();
  options->io.add_to(*command);
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options] { run_export(*options); });
}

}  // namespace spillway::cli
