// What fits, by policy: the largest model, the largest batch, and the least memory of each kind.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/questions/largest_batch.hpp"
#include "experiments/questions/largest_model.hpp"
#include "experiments/questions/least_memory.hpp"

namespace spillway {

// What is asked of each policy.
struct FitColumns {
  bool model = false, batch = false;
  std::array<bool, tier_count> least{};  // by Tier

  std::size_t count() const;
};

// Columns by name: `largest` of "model", "batch"; `least` of "gpu", "host", "ssd"; all of them
// where both are empty. Throws InputError for another name.
FitColumns fit_columns(const std::vector<std::string>& largest,
                       const std::vector<std::string>& least);

// The request, where the batch is not a part of any question: a micro-batch for each rank, where it
// says none. Throws InputError where it gives the batch, which is all that is asked for.
ProblemRequest with_batch(ProblemRequest request, const FitColumns& columns);

// The policies that are asked: those named, or all that `auto` chooses among for such a workload.
// Throws InputError where one is no policy.
std::vector<std::string> policies_to_fit(const std::vector<std::string>& named,
                                         const Workload& workload);

// What is not asked for has no value.
struct FitRow {
  std::string policy;  // as asked for
  std::optional<LargestModel> model;
  std::optional<LargestBatch> batch;
  std::array<std::optional<LeastMemory>, tier_count> least;
  std::string refused;  // why the policy cannot run the problem at all; empty: it can

  // Whether some column has an answer.
  bool fits() const;
};

struct FitTable {
  Problem problem;
  FitColumns columns;
  std::vector<FitRow> rows;  // in the order of the policies asked for

  bool fits() const;  // some row does
};

struct FitProgress {
  std::size_t done = 0, all = 0;  // answers: columns of rows
  double seconds = 0;
  std::string what;  // is being tried, by one of the threads
};

// Model and memory at the request's batch; the batch in its micro-batch, where one is set. A policy
// is as `asked` names it, and what it leaves open is settled so that it fits: `spillway` without
// settings is its own plan then, which nobody searches for. Answers are looked for on so many
// threads, which does not change them; `tell` is called by any of them, one at a time. Throws
// InputError where the request, or each policy, is wrong.
FitTable fit_table(const ProblemRequest& request, const PlansAsked& asked,
                   const FitColumns& columns, unsigned threads,
                   const std::function<void(const FitProgress&)>& tell = {});

}  // namespace spillway
