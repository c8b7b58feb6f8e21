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
  backward_optimizer_seconds,  // both, where a paper has one stage of them
  tokens_per_second,
  tokens_per_gpu_second,
  tflops,  // tokens/s times the FLOPs that the paper counts per token (flops_per_token)
  mfu,     // the same of a GPU, over its peak (peak_tflops)
  // Of pipelines: pipeline_points.hpp.
  seconds_per_micro_batch,
  wan_speed_up,
  prefill_utilization
};
bool is_of_pipelines(Quantity quantity);
const char* to_string(Quantity quantity);  // "step_seconds"

// One published value: a number, or only whether the system ran at all.
struct PublishedValue {
  bool given = false;  // false: the paper shows no such point
  bool fits = true;
  std::optional<double> number;
  bool fitted = false;  // a constant of the machine file was fitted on it: not a prediction
};

// How a closed form takes the phases of a step: the time of each is that of its busiest resource.
enum class Overlap : std::uint8_t {
  nothing,    // forward, backward and optimizer, one after the other
  optimizer,  // forward, then backward and optimizer beside each other
  all         // the whole step at once
};

struct PaperSystem {
  std::string name;                    // the paper's name
  std::string policy;                  // ours, with options
  std::string framework = "spillway";  // that of its program
  // By value of the axis, KEY=VALUE of the framework at it; "-": nothing. Empty: nothing at any.
  std::vector<std::string> framework_settings;
  GradientWidth gradient = GradientWidth::automatic;
  std::vector<std::string> settings;      // KEY=VALUE, as --set; for a model "model.KEY=VALUE"
  std::vector<PublishedValue> published;  // one for each value of the axis
  // By value of the axis, the name of the point that is the same run, shown in another figure: it
  // counts there. Empty: none is.
  std::vector<std::string> same_run_as;
  std::optional<Overlap> overlap;  // nothing: as its framework waits before the optimizer
};

struct PaperExperiment {
  std::string name, title;
  std::string figure;  // where in the paper
  Quantity quantity = Quantity::step_seconds;
  double flops_per_token = 0;  // for tflops and mfu
  double peak_tflops = 0;      // of a GPU, for mfu
  // A pipeline: `settings` are those of pipeline_value(), policies are orders of passes, and memory
  // is not looked at.
  bool of_pipelines = false;
  std::string model;  // built-in, or a file beside the paper's
  std::int64_t batch = 1, sequence = 1024;
  std::int64_t micro_batch = 0;  // 0: the whole batch at once
  std::int64_t ranks = 1;
  std::int64_t rank_batch = 0;  // sequences of each rank, in place of `batch`; 0: `batch` in all
  std::string axis;             // "batch", "sequence", "micro_batch", "ranks", "model", a key of
                                // --set, "option.NAME" of the policies, or "framework.KEY"
  std::vector<std::string> values;    // along the axis
  std::vector<std::string> settings;  // for all systems
  // Why its points count for no error and for no fit: what it measured is not modelled. Empty: they
  // count.
  std::string apart;
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
  std::int64_t sequence = 1024, micro_batch = 1, ranks = 1;
  std::string faster, slower;
  std::string faster_framework = "spillway", slower_framework = "spillway";  // of their programs
  bool faster_on_drives = false, slower_on_drives = false;  // in what the paper measured
  GradientWidth gradient = GradientWidth::automatic;
  std::vector<std::string> settings;
  double published = 0;
  std::vector<PaperAssumption> assumptions;
};

// A number, or one of several ways, that somebody chose with published values in view.
enum class ConstantKind : std::uint8_t { continuous, discrete };
struct PaperConstant {
  // "machine.KEY" (a row of the table of drives: "machine.ssd.by_count.12"), "framework.NAME.KEY",
  // "policy.NAME.OPTION", "workload.KEY" of the experiments themselves, or "stage.KEY" of the
  // settings of pipelines.
  std::string key;
  std::vector<std::string> with;  // keys of the same file and number, which change together with it
  ConstantKind kind = ConstantKind::continuous;
  // Of a machine's key: the experiments whose own settings it is in. Empty: the machine file, and
  // the settings of all experiments that no other constant of this key names.
  std::vector<std::string> in;
  std::vector<std::string> seen;  // points that were in view: points_named()
  // Of a discrete one: those in view whose number is another one, by more than 2 %, or which does
  // not fit, with the other choices that there are. They are chosen, and no predictions.
  std::vector<std::string> moves;
  std::string least, most;  // a refit looks between them; empty: it leaves the value
  // Of what is not refitted: as well known as this. A verdict on memory that is another one at an
  // end hangs on the constant. Empty: not looked at.
  std::string range_least, range_most;
  std::string place;  // file:line, for errors
};

// What a refit leaves out at a time, to predict it.
enum class LeaveOut : std::uint8_t {
  figure,      // all that one figure shows
  experiment,  // one experiment
  value        // one value of the axis, in all experiments: one run has all of their quantities
};

struct Paper {
  std::string name, title, citation;
  std::string machine;    // built-in, or a file beside the paper's
  std::string constants;  // which constants were fitted, and on what
  std::vector<std::string> notes;
  LeaveOut leave_out = LeaveOut::figure;
  std::string folder;  // where files beside it are found; empty for a built-in paper
  std::vector<PaperConstant> constants_chosen;
  std::vector<PaperExperiment> experiments;
  std::vector<PaperRatio> ratios;
};

// The papers built in, in alphabetical order of name.
const std::vector<Paper>& builtin_papers();

// A built-in name or the path of a TOML file. Throws InputError with file:line and near names.
Paper load_paper(const std::string& name_or_path);
Paper parse_paper(const std::string& toml_text, const std::string& origin,
                  const std::string& folder);

// A file that a paper names: its text, and its name for errors.
struct PaperText {
  std::string text, origin;
};
// The paper's machine file, where it is a file: beside the paper's, or built in. What its parts
// say is in the text.
std::optional<PaperText> paper_machine_text(const Paper& paper);
// The paper's machine, and a model it names, with --set assignments applied.
Machine paper_machine(const Paper& paper, const std::vector<std::string>& settings);
ModelSpec paper_model(const Paper& paper, const std::string& model,
                      const std::vector<std::string>& settings);

}  // namespace spillway
