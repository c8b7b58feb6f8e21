// A paper's published numbers beside the simulated ones and the closed form's: for a terminal, for
// docs/accuracy.md, and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "experiments/papers/leave_one_out.hpp"
#include "experiments/papers/paper_run.hpp"
#include "experiments/papers/refit.hpp"

namespace spillway {

// A paper's result, and what leaving figures out says of it, where that was asked for.
struct PaperReport {
  PaperResult result;
  std::optional<LeaveOneOut> left_out;
};

std::string paper_text(const PaperReport& report);
// The constants that fit best, and how much nearer the points come with them.
std::string refit_text(const Paper& paper, const Refit& refit);

// The whole document: the headline from figures left out, where it is there; the closed form;
// degrees of freedom; then each paper's tables. `command` is said to have written it.
std::string accuracy_markdown(const std::vector<PaperReport>& reports, const std::string& command);
// What the refits behind the headline of such a document found, which takes minutes: of one paper.
KnownFits known_fits(const std::string& accuracy_markdown, const std::string& paper);

// {"name", "machine", "constants", "predictions", "mean_error", "closed_form_mean_error", "nearer",
// "experiments": [{"name", "quantity", "axis", "apart", "systems": [{"name", "policy", "points":
// [{"at", "published", "fits_published", "fitted", "fits", "simulated", "error", "closed_form",
// "closed_form_error", "fitted_share", "same_run_as", "counts", "margin"}], "predictions",
// "mean_error", "worst_error", "worst_at", "closed_form_mean_error", "nearer"}], "kendall_tau",
// "pairs"}], "ratios": [{"name", "published", "range", "rows": [{"label", "ratio", "error",
// "uses_drives", ...}]}], "leave_one_out": [{"name", "points", "mean_error", ...}] or null}
nlohmann::ordered_json to_json(const PaperReport& report);
// {"name", "points", "mean_error_before", "mean_error", "evaluations", "constants": [{"key", "in",
// "before", "value", "factor", "determined", "at_bound"}]}
nlohmann::ordered_json to_json(const Paper& paper, const Refit& refit);

}  // namespace spillway
