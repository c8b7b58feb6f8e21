// The options of `spillway pipeline`.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "cli/options/problem_options.hpp"
#include "experiments/pipelines/pipeline_plan.hpp"
#include "experiments/pipelines/prefill.hpp"

namespace spillway::cli {

struct PipelineOptions {
  ProblemOptions problem;
  std::vector<std::string> orders;
  std::string centers;
  std::vector<std::string> wan;  // KEY=VALUE of every link
  int pipeline = 0, replicas = 1, tensor = 1, cell = 0;
  std::string recompute = "auto";
  bool sends_wait = false;
  std::uint64_t seed = 0;

  bool what_if = false;
  std::vector<std::int64_t> micro_batches;
  std::size_t top = 10;

  struct {
    std::vector<double> rates;  // requests a second
    std::string file, model, tokens = "256:4096", guard = "1ms", ttft;
    int gpus = 1, steps = 10;
    bool asked() const { return !rates.empty() || !file.empty(); }
  } prefill;

  std::string trace;
  bool json = false;

  void add_to(CLI::App& command);
  // Of the machine as a whole. Throws InputError.
  PipelineRequest request() const;
  std::vector<PipelineOrder> chosen_orders(const PipelineRequest& request) const;
  PrefillSettings prefill_settings(const Problem& problem) const;
  // Requests that arrive over so many nanoseconds, by rate; of a file: one list, and rate 0.
  std::vector<PrefillRequest> requests(double rate, std::int64_t end_ns) const;
};

}  // namespace spillway::cli
