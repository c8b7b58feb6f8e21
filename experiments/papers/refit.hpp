// How much of a simulated quantity each fitted constant sets, and the constants that fit the
// published numbers best: of all of a paper, or of all but one figure, which is then predicted.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "experiments/papers/paper_points.hpp"
#include "policies/common/schedule_reuse.hpp"

namespace spillway {

// What says a quantity.
enum class Method : std::uint8_t { simulator, closed_form };

// Tells the quantities of points of one paper at other constants, again and again.
class PointSimulator {
 public:
  explicit PointSimulator(const Paper& paper, Method method = Method::simulator)
      : paper_(paper), method_(method) {}
  // Nothing where it does not fit. Throws InputError.
  std::optional<double> quantity(const PointId& point, const Tuning& tuning);
  const Paper& paper() const { return paper_; }

 private:
  const Paper& paper_;
  const Method method_;
  std::map<PointId, ScheduleReuse> reuse_;
};

// Called with the share that is done, from 0 to 1, and what is next.
using ShareProgress = std::function<void(double, const std::string&)>;

// The continuous constants that have bounds, by their places in Paper::constants_chosen.
std::vector<std::size_t> fittable_constants(const Paper& paper);
// The points that a fit is held against: those with a number, that count.
std::vector<PointId> fit_points(const Paper& paper);

// d ln(quantity) / d ln(constant) of a continuous constant at the constants as they are, from 1 %
// more and 1 % less as far as its bounds allow; 0 where it does not fit.
double elasticity(PointSimulator& simulator, const PointId& point, std::size_t constant);
// Of all constants; 0 of discrete ones.
using Elasticities = std::map<PointId, std::vector<double>>;
Elasticities elasticities(PointSimulator& simulator, const Paper& paper,
                          const std::vector<PointId>& points, const ShareProgress& progress = {});

struct RefitConstant {
  std::size_t constant = 0;  // its place in Paper::constants_chosen
  double factor = 1;         // on its value
  bool determined = true;    // false: no point tells it, and it is left as it is
  bool at_bound = false;
};

// The error of a point with a number that does not fit.
inline constexpr double error_without_fit = 1;

struct Refit {
  std::vector<RefitConstant> constants;
  int points = 0;       // that it is held against
  double before = 0;    // mean |error| over them at the constants as they are
  double after = 0;     // at those that were found
  int evaluations = 0;  // of all of these points

  Tuning tuning() const;
};

// Minimises the mean squared ln(simulated / published) over `points` within the bounds (NLopt,
// SBPLX); the same input gives the same answer. Throws InputError where the paper has no constants
// with bounds. `known`: the factors that were found before, in place of a search.
Refit refit(PointSimulator& simulator, const Paper& paper, const std::vector<PointId>& points,
            const Elasticities& elasticities, const ShareProgress& progress = {},
            const Tuning* known = nullptr);

// Of all points of a paper.
Refit refit_all(const Paper& paper, const ShareProgress& progress = {});

}  // namespace spillway
