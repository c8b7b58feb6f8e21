// Policies side by side, and which of them is the fastest among those that are compared like with
// like: all as published, each at its best, or all with the same recomputation.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "experiments/plan/candidates.hpp"
#include "experiments/plan/recomputation.hpp"

namespace spillway {

struct CompareRequest {
  std::vector<std::string> policies;  // empty: all that `auto` chooses among
  bool choose_micro_batch = true;
  bool at_best = false;  // with the settings that a search finds; else as named
  std::optional<Recomputation> recomputation;  // of every policy whose settings allow it
  WholeRun run;
  int steps = default_steps;
  EvaluateOne evaluate_one = evaluate;
  // Makes of a problem, whose micro-batch is set, what evaluate_one builds; empty: nothing.
  std::function<void(Problem&)> settle = {};
  unsigned threads = 1;
  // Told what is being done, and how far it is, 0 to 1; may be empty.
  std::function<void(const std::string& what, double done)> progress = {};
};

// Where the settings of a row are from.
enum class SettingsBy : std::uint8_t {
  published,  // the policy's defaults; with the recomputation that is asked for
  given,      // the text that names the policy
  search      // found to be fast
};
const char* to_string(SettingsBy settings);

struct ComparedRow {
  SettingsBy settings = SettingsBy::published;
  Recomputation recomputation = Recomputation::full;
  bool follows = true;   // the recomputation that is asked for; where none is, true
  bool competes = true;  // it is compared like with like with the others that do, and fits
};

struct Comparison {
  bool names_given = false;  // the request's policies are not empty
  bool at_best = false;
  std::optional<Recomputation> recomputation;
  std::optional<std::int64_t> micro_batch;  // of all rows; nothing: each has its fastest
  std::string framework;
  std::uint64_t settings_tried = 0;  // of all policies, with at_best

  Candidates candidates;
  std::vector<ComparedRow> rows;  // of candidates.all
  // Among the rows that compete, if there are two at least: a lone row is no winner.
  std::optional<std::size_t> fastest;
  // What `--policy auto` takes, where its candidates are compared as it compares them.
  std::optional<std::size_t> auto_choice;
};

// Of policies as they are asked for, CompareRequest::policies.
std::vector<std::string> policies_to_compare(const std::vector<std::string>& asked);

// Throws InputError where no policy can run the problem, or one is wrong.
Comparison compare_policies(const Problem& problem, const CompareRequest& request);

// The object of `compare`, with an explanation of each row (docs/metrics.md).
nlohmann::ordered_json to_json(const Comparison& comparison);

}  // namespace spillway
