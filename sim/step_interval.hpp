// How far a measured step may lie from the predicted one, by what the machine file says of the
// spread of its measurements.
//
// First order: the steady step is a chain of tasks (causes.hpp), and each takes longer or shorter
// in proportion to the work of its kind. Relative standard deviations, each (80th - 20th
// percentile) / median of the samples over that of a normal distribution:
//
//   common       the whole machine is fast or slow during a run: the spread of each kind's
//                [[reference]], times that kind's share of the chain; all kinds together
//   calibration  the median of a kind's n samples is itself uncertain by 1.2533 x spread / sqrt(n)
//   independent  every task of the chain by itself: the spread of its kind's [[kernel]] samples
//   trials       the root mean square of the errors of the [[trial]] trainings, each predicted for
//                the machine as fast as it was then: also what the prediction leaves out (caches,
//                what runs beside what). Of n trainings it is itself uncertain: Student's t of n
//                degrees of freedom stands in the normal distribution's place
//
// The first three are independent of each other; trials show the second and the third, too, so the
// larger of those and of trials counts. Where references were timed around a run, how fast the
// machine was is known but for the error of their mean: corrected(). Trials were predicted by
// references around them, too, so that they show that error with the rest.
//
// The same input gives the same bytes; it takes a fraction of the time of simulate().
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "sim/simulate.hpp"

namespace spillway {

inline constexpr double interval_share = 0.9;  // of runs that it holds

struct StepUncertainty {
  // Relative standard deviations; what is common by kind of reference, to be added up.
  std::map<std::string, double> common_by_reference;
  double calibration = 0, independent = 0, trials = 0;

  double common() const;
  double all() const;
  // Of a prediction for the machine as so many samples of these kinds of references have found it.
  StepUncertainty corrected(const std::map<std::string, std::size_t>& samples) const;
  // Of a step predicted to take `seconds`: interval_share of runs lie between these.
  double low(double seconds) const;
  double high(double seconds) const;
};

// Of `result`, simulated on `machine`. Nothing where the machine file has no references: then what
// is common to a run is not known.
std::optional<StepUncertainty> step_uncertainty(const Schedule& schedule,
                                                const SimulationResult& result,
                                                const Machine& machine);

}  // namespace spillway
