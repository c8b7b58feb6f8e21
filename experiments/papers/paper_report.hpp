// A paper's published numbers beside the simulated ones: for a terminal, for docs/accuracy.md, and
// as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/papers/paper_run.hpp"
#include "experiments/papers/refit.hpp"

namespace spillway {

std::string paper_text(const PaperResult& result);

// The whole document: what is compared, a summary of all systems, then each paper's tables.
// `command` is said to have written it.
std::string accuracy_markdown(const std::vector<PaperResult>& results, const std::string& command);

// {"name", "machine", "experiments": [{"name", "quantity", "axis", "systems": [{"name", "policy",
// "points": [{"at", "published", "fits_published", "fitted", "fits", "simulated", "error"}],
// "predictions", "mean_error", "worst_error", "worst_at"}], "kendall_tau", "pairs"}], "ratios":
// [{"name", "published", "rows": [{"label", "ratio", "error", ...}]}]}
nlohmann::ordered_json to_json(const PaperResult& result);

// The constants that fit best, and how much nearer the points come with them.
std::string refit_text(const Paper& paper, const Refit& refit);
// {"name", "points", "mean_error_before", "mean_error", "evaluations", "constants": [{"key", "in",
// "before", "value", "factor", "determined", "at_bound"}]}
nlohmann::ordered_json to_json(const Paper& paper, const Refit& refit);

}  // namespace spillway
