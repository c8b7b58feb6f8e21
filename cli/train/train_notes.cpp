#include "cli/train/train_notes.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/errors.hpp"
#include "cli/train/stopped_run.hpp"
#include "exec/data/safetensors_folder.hpp"
#include "exec/run/run_folder.hpp"

namespace spillway::cli {

namespace fs = std::filesystem;

std::string packing_text(const DataSummary& data) {
  const PackingCounts& counts = data.counts;
  std::string text = fmt::format(
      "{} tokens ({}) in {} sequence{}, {}, {:.1f} % filled, {:.1f} % of the places trained on",
      data.tokens, data.tokenizer, counts.sequences, counts.sequences == 1 ? "" : "s", data.packing,
      100 * data.fill_rate,
      100 * data.fill_rate * static_cast<double>(counts.counted) /
          static_cast<double>(counts.inputs));
  const auto add = [&](std::uint64_t count, const char* what, const char* done) {
    if (count > 0) text += fmt::format("; {} {}{} {}", count, what, count == 1 ? "" : "s", done);
  };
  add(counts.split, "long document", "split");
  add(counts.cut, "long document", "cut");
  add(counts.dropped, "long document", "dropped");
  add(counts.too_short, "document", "of one token left out");
  add(counts.untrained, "piece", "with nothing to learn left out");
  return text;
}

std::string other_machine_note(const Machine& machine, bool trains_on_gpu,
                               const std::string& why_cpu) {
  if ((machine.backend() == Backend::cuda) == trains_on_gpu) return "";
  if (trains_on_gpu) {
    return fmt::format(
        "--machine {} describes a computer without a GPU: its limits hold, the GPU trains, and no "
        "step time is predicted, for its rates are a CPU's",
        machine.name);
  }
  return fmt::format(
      "--machine {} describes a GPU: its limits hold, the CPU trains{}, and no step time is "
      "predicted, for its rates are a GPU's",
      machine.name, why_cpu.empty() ? "" : " (" + why_cpu + ")");
}

void refuse_model_of_run(const std::string& model) {
  std::error_code ignored;
  const fs::path path(model);
  if (!fs::exists(path, ignored)) return;
  const bool is_folder = fs::is_directory(path, ignored);
  const fs::path folder = is_folder                ? path
                          : path.has_parent_path() ? path.parent_path()
                                                   : fs::path(".");
  if (!fs::is_regular_file(folder / "run.json", ignored)) return;
  // The folder of a run that has ended is a model like any other, weights included. Where the run
  // went on since, its file of weights may be older than its state.
  if (is_folder && SafetensorsFolder::has_weights(folder) &&
      SavedRun::load(Directory(folder)).complete)
    return;
  const fs::path shape = is_folder ? folder / "model.toml" : path;
  const std::string run = shell_word(
      fs::absolute(folder).lexically_normal() == fs::current_path(ignored) ? "." : folder.string());
  throw InputError(
      fmt::format("--model {} is {} an earlier run: only the shape of its model, not what it has "
                  "learned",
                  model, is_folder ? "the folder of" : "in the folder of"),
      fmt::format("to go on with that run: spillway train --resume --run {0}; to start anew from "
                  "its weights: spillway export {0}, and --model with that folder; from random "
                  "weights: cp {1} my-model.toml, and --model my-model.toml",
                  run, shell_word(shape.string())));
}

}  // namespace spillway::cli
