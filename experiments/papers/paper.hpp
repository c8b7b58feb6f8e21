// Published results, to be held against the simulator: what a paper measured, on what machine, with
// which policy of ours standing for each of its systems.
//
// One TOML file per paper (experiments/papers/README.md); one machine file for all of its points.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policies/workload/problem.hpp"

namespace spillway {

// What the numbers of an experiment are.
enum class Quantity : std::uint8_t {
  step_seconds,
  forward_seconds,
  backward_seconds,
  optimizer_seconds,
  tokens_per_second,
  tflops  // tokens/s times the FLOPs that the paper counts per token (flops_per_token)
};
const char* to_string(Quantity quantity);  // "step_seconds"

// One published value: a number, or only whether the system ran at all.
struct PublishedValue {
  bool given = false;  // false: the paper shows no such point
  bool fits = true;
  std::optional<double> number;
  bool fitted = false;  // a constant of the machine file was fitted on it: not a prediction
};

struct PaperSystem {
  std::string name;                    // the paper's name
  std::string policy;                  // ours, with options
  std::string framework = "spillway";  // that of its program
  GradientWidth gradient = GradientWidth::automatic;
  std::vector<std::string> settings;      // KEY=VALUE, as --set; for a model "model.KEY=VALUE"
  std::vector<PublishedValue> published;  // one for each value of the axis
};

struct PaperExperiment {
  std::string name, title;
  std::string figure;  // where in the paper
  Quantity quantity = Quantity::step_seconds;
  double flops_per_token = 0;  // for tflops
  std::string model;           // built-in, or a file beside the paper's
  std::int64_t batch = 1, sequence = 1024;
  std::int64_t micro_batch = 0;     // 0: the whole batch at once
  std::string axis;                 // "batch", "sequence", "micro_batch", "model", a key of --set,
                                    // "option.NAME" of the policies, or "framework.KEY" of theirs
  std::vector<std::string> values;  // along the axis
  std::vector<std::string> settings;  // for all systems
  std::vector<PaperSystem> systems;
};

// One more assumption under which a ratio is taken, where the paper leaves something open.
struct PaperAssumption {
  std::string label;
  std::vector<std::string> settings;
  std::string faster, slower;                      // policies; empty: those of the ratio
  std::string faster_framework, slower_framework;  // empty: those of the ratio
  std::int64_t sequence = 0, micro_batch = 0;
  GradientWidth gradient = GradientWidth::automatic;
};

// Saturated throughput of one system over another's: tokens/s where more micro-batches gain less
// than a percent.
struct PaperRatio {
  std::string name, figure, model;
  std::int64_t sequence = 1024, micro_batch = 1;
  std::string faster, slower;
  std::string faster_framework = "spillway", slower_framework = "spillway";  // of their programs
  GradientWidth gradient = GradientWidth::automatic;
  std::vector<std::string> settings;
  double published = 0;
  std::vector<PaperAssumption> assumptions;
};

struct Paper {
  std::string name, title, citation;
  std::string machine;    // built-in, or a file beside the paper's
  std::string constants;  // which constants were fitted, and on what
  std::vector<std::string> notes;
  std::string folder;  // where files beside it are found; empty for a built-in paper
  std::vector<PaperExperiment> experiments;
  std::vector<PaperRatio> ratios;
};

// The papers built in, in alphabetical order of name.
const std::vector<Paper>& builtin_papers();

// A built-in name or the path of a TOML file. Throws InputError with file:line and near names.
Paper load_paper(const std::string& name_or_path);
Paper parse_paper(const std::string& toml_text, const std::string& origin,
                  const std::string& folder);

// The paper's machine, and a model it names, with --set assignments applied.
Machine paper_machine(const Paper& paper, const std::vector<std::string>& settings);
ModelSpec paper_model(const Paper& paper, const std::string& model,
                      const std::vector<std::string>& settings);

}  // namespace spillway
