// Simulates every point of a paper, and says how far off the simulator is.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/papers/paper.hpp"
#include "policies/schedule/fit_margin.hpp"

namespace spillway {

// A point of which so much is what fitted constants say is no prediction.
inline constexpr double fitted_share_limit = 0.8;

struct PaperPoint {
  std::string at;  // value of the axis
  PublishedValue published;
  bool fits = false;                  // as simulated
  std::optional<double> simulated;    // in the experiment's quantity; absent when it does not fit
  FitMargin margin;                   // memory that is left, or lacks
  std::optional<double> closed_form;  // the quantity by closed_form(), where it fits
  // Sum of |d ln(simulated) / d ln(constant)| over the continuous constants that were fitted on
  // points of this system.
  double fitted_share = 0;
  bool chosen = false;  // a choice was made in view of it that moves it: is_chosen()
  // Constants of memory that were chosen with a verdict on its run in view; and those within whose
  // range the verdict is another one. Places in Paper::constants_chosen.
  std::vector<std::size_t> verdict_seen_by, hangs_on;
  bool of_pipelines = false;  // whose memory is not modelled
  std::string same_run_as;    // the point of another figure that counts in its place
  bool counts = true;         // false: it is apart, or another point counts in its place
  // The first point of the same run, whose verdict on memory counts for all of them; empty: this.
  std::string verdict_as;

  // simulated / published - 1, where both are numbers; and the same of the closed form.
  std::optional<double> error() const;
  std::optional<double> closed_form_error() const;
  // A constant was fitted on it, what fitted constants say is most of it, or it is chosen.
  bool is_fitted() const {
    return published.fitted || chosen || fitted_share >= fitted_share_limit;
  }
  bool is_prediction() const { return error() && counts && !is_fitted(); }
  bool verdict_counts() const {
    return published.given && !of_pipelines && same_run_as.empty() && verdict_as.empty();
  }
};

struct SystemErrors {
  int fitted = 0;                             // points with a number that a constant was fitted on
  double fitted_mean = 0;                     // of |error| over them
  int predictions = 0;                        // points with a number that nothing was fitted on
  double mean = 0;                            // of |error| over the predictions
  double worst = 0;                           // signed error of the largest |error|
  std::string worst_at;                       // where
  double closed_form_mean = 0;                // of the closed form's |error| over the predictions
  int nearer = 0;                             // predictions nearer than the closed form
  int fits_as_published = 0, fits_known = 0;  // of the runs of which it is known, each once
  // Of these, runs that no constant of memory was chosen in view of.
  int unseen_as_published = 0, unseen_known = 0;
};

struct SystemResult {
  std::string name, policy, framework;
  std::vector<PaperPoint> points;  // by value of the axis
  SystemErrors errors;
  Overlap overlap = Overlap::nothing;  // of the closed form
};

// How well an order is kept: pairs of systems at one value of the axis that are in the same order
// as published, less those in the opposite order, over all pairs: Kendall's tau. What does not fit
// comes last.
struct Ordering {
  int pairs = 0, concordant = 0, discordant = 0;
  double tau() const { return pairs > 0 ? double(concordant - discordant) / pairs : 1; }
};

struct ExperimentResult {
  std::vector<SystemResult> systems;
  Ordering ordering;
};

struct Saturation {
  double tokens_per_second = 0;    // the most there is; 0: does not fit with one micro-batch
  std::int64_t micro_batches = 0;  // the fewest that come within one percent of it
  // Where doubling still gained more than a percent at the most that is tried: the limit of many,
  // from what the last micro-batches took each; micro_batches is then the most tried.
  bool limit = false;
  bool ended_by_memory = false;  // twice as many do not fit, and so many still gained
  double ssd_bytes = 0;          // read and written per step with so many
};

struct RatioRow {
  std::string label;  // the assumption; "as stated" for the ratio itself
  Saturation faster, slower;
  std::optional<double> ratio;  // absent where one does not fit
  // False: a system that the paper runs on drives moves no bytes of them here, so that the ratio is
  // not of what the paper measured.
  bool uses_drives = true;
  // Nothing: the row is in the range. Else why it is not.
  std::string out_of_range() const;
};
// The least and the largest ratio of rows that are in the range; nothing where no such row is.
struct RatioRange {
  double least = 0, most = 0;
  int rows = 0;
};
std::optional<RatioRange> ratio_range(const std::vector<RatioRow>& rows);

struct PaperResult {
  Paper paper;
  std::vector<ExperimentResult> experiments;  // by Paper::experiments
  std::vector<std::vector<RatioRow>> ratios;  // by Paper::ratios; the first row is the stated one
};

// Called before each point with how many are done, how many there are, and what is next.
using PaperProgress = std::function<void(std::size_t, std::size_t, const std::string&)>;

// Throws InputError where a file, a policy or a setting is wrong, naming the point.
PaperResult run_paper(const Paper& paper, const PaperProgress& progress = {});

// The errors of predictions of many systems together.
struct ErrorSums {
  int predictions = 0, nearer = 0;
  double mean = 0, closed_form_mean = 0;
  void add(const SystemErrors& errors);
};
ErrorSums errors_of(const PaperResult& result);

// The errors of points, and the order of systems; stated above.
SystemErrors errors_of(const std::vector<PaperPoint>& points);
Ordering ordering_of(const std::vector<SystemResult>& systems, Quantity quantity);

}  // namespace spillway
