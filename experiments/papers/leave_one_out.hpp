// How well a figure is predicted by constants that were fitted on all others.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/papers/refit.hpp"

namespace spillway {

struct LeftOutPoint {
  PointId point;
  std::string name;
  double published = 0;
  std::optional<double> simulated;  // absent where it does not fit
  // False: a constant that was fitted on what is left out sets it, and nothing else tells that
  // constant. It counts for no error.
  bool determined = true;
  double error() const { return simulated ? *simulated / published - 1 : -error_without_fit; }
};

// Mean of |error| over the points that are determined, and the largest with its sign.
struct LeftOutErrors {
  int points = 0, not_determined = 0;
  double mean = 0, worst = 0;
  std::string worst_at;
};
LeftOutErrors errors_of(const std::vector<LeftOutPoint>& points);

// One figure, experiment or value (LeaveOut), by constants fitted on all points without it and
// without its runs in other figures.
struct Fold {
  std::string name;
  Refit refit;
  std::vector<LeftOutPoint> points;
  // The same by the closed form with constants fitted for the closed form.
  Refit closed_form_refit;
  std::vector<LeftOutPoint> closed_form;
};

struct LeaveOneOut {
  std::vector<Fold> folds;
  std::vector<LeftOutPoint> points() const;  // of all folds
  std::vector<LeftOutPoint> closed_form() const;
};

// Factors on constants that refits without a fold found, by the fold's name.
struct KnownFit {
  Tuning simulator, closed_form;
};
using KnownFits = std::map<std::string, KnownFit>;

// Every figure that has numbers is left out in turn. Throws InputError where the paper has no
// constants to fit. `known`: what refits found before, in place of searching anew.
LeaveOneOut leave_one_out(const Paper& paper, const ShareProgress& progress = {},
                          const KnownFits& known = {});

}  // namespace spillway
