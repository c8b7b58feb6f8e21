// The options that say what is to be trained and on what, shared by most subcommands.
#pragma once

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

#include "cli/text/progress.hpp"
#include "experiments/plan/evaluate.hpp"
#include "policies/workload/problem.hpp"

namespace spillway::cli {

struct ProblemOptions {
  std::string model;
  std::string machine;
  std::vector<std::string> settings;  // --set KEY=VALUE
  std::int64_t batch = 8;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int64_t> sequence;           // else the model's positions, at most 1024
  std::optional<std::int64_t> sequences_at_once;  // else 1, or what the subcommand chooses
  std::string precision;  // "": fp32 where the CPU stands in for a GPU, else bf16
  std::string gradient = "auto", moments = "fp32";
  std::string gradient_clip = "off", on_nonfinite = "stop";
  std::string gpu_memory, host_memory;
  std::string framework = "spillway";

  // Adds the options to a subcommand. `machine_required`: --machine must be given.
  void add_to(CLI::App& command, bool machine_required);
  // --framework, of subcommands that simulate.
  void add_framework_to(CLI::App& command);
  // Throws InputError. Without --micro-batch the micro-batch is the batch. `on_gpu`: what computes
  // is a GPU, of which --gpu-memory limits all; by default what the machine describes.
  Problem problem(std::optional<bool> on_gpu = {}) const;
  bool chooses_micro_batch() const { return !micro_batch; }
  // Whether --machine describes one where the CPU stands in for a GPU; empty without --machine.
  std::optional<Backend> machine_backend() const;
  // What is set by hand in place of what the files say, KEY=VALUE.
  std::vector<std::string> overrides() const;
  // How a policy is evaluated: on a GPU that was measured as it will be trained on, with as many
  // sequences at once as fit, unless --sequences-at-once is given.
  // `activity` is told of each one.
  EvaluateOne evaluation(const Problem& problem, Activity& activity) const;
  // --gpu-memory, --host-memory and --set, applied to a machine.
  Machine limited(Machine machine) const;
};

// What figures rest on beside model, machine, batch and policy, in words: "bf16, 6 steps simulated;
// set by hand: ssd.count=6". `steps` 0: not said.
std::string assumptions_text(const Problem& problem, int steps);
// "extrapolated: ..." where the machine file has no measurement of so many drives; else empty.
std::string extrapolation_text(const Machine& machine);

}  // namespace spillway::cli
