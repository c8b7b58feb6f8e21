// Simulates every point of a paper, and says how far off the simulator is.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "experiments/papers/paper.hpp"

namespace spillway {

struct PaperPoint {
  std::string at;  // value of the axis
  PublishedValue published;
  bool fits = false;                // as simulated
  std::optional<double> simulated;  // in the experiment's quantity; absent when it does not fit
  // simulated / published - 1, where both are numbers.
  std::optional<double> error() const;
  bool is_prediction() const { return error() && !published.fitted; }
};

struct SystemErrors {
  int fitted = 0;                             // points with a number that a constant was fitted on
  double fitted_mean = 0;                     // of |error| over them
  int predictions = 0;                        // points with a number that nothing was fitted on
  double mean = 0;                            // of |error| over the predictions
  double worst = 0;                           // signed error of the largest |error|
  std::string worst_at;                       // where
  int fits_as_published = 0, fits_known = 0;  // of the points of which it is known
};

struct SystemResult {
  std::string name, policy, framework;
  std::vector<PaperPoint> points;  // by value of the axis
  SystemErrors errors;
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
};

struct RatioRow {
  std::string label;  // the assumption; "as stated" for the ratio itself
  Saturation faster, slower;
  std::optional<double> ratio;  // absent where one does not fit
};

struct PaperResult {
  Paper paper;
  std::vector<ExperimentResult> experiments;  // by Paper::experiments
  std::vector<std::vector<RatioRow>> ratios;  // by Paper::ratios; the first row is the stated one
};

// Called before each point with how many are done, how many there are, and what is next.
using PaperProgress = std::function<void(std::size_t, std::size_t, const std::string&)>;

// Throws InputError where a file, a policy or a setting is wrong, naming the point.
PaperResult run_paper(const Paper& paper, const PaperProgress& progress = {});

// The errors of points, and the order of systems; stated above.
SystemErrors errors_of(const std::vector<PaperPoint>& points);
Ordering ordering_of(const std::vector<SystemResult>& systems, Quantity quantity);

}  // namespace spillway
