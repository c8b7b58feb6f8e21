#include "experiments/papers/refit.hpp"

#include <fmt/format.h>
#include <nlopt.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>

#include "base/errors.hpp"
#include "experiments/papers/closed_form.hpp"
#include "experiments/plan/evaluate.hpp"

namespace spillway {

namespace {

constexpr double step_of_elasticity = 0.01;
// A constant that moves all points together by less than this share of its own change is not told
// by them.
constexpr double told = 0.02;
constexpr double first_step = 0.1;  // of ln(factor)
constexpr double tolerance = 1e-4;  // of ln(factor), at which the search ends
constexpr int most_evaluations = 600;

// Factors on a constant within its bounds; any where it has none.
struct FactorBounds {
  double least = 0, most = std::numeric_limits<double>::infinity();
};
FactorBounds bounds_of(const Paper& paper, std::size_t c) {
  const PaperConstant& constant = paper.constants_chosen[c];
  if (constant.least.empty()) return {};
  const std::string value = constant_value(paper, constant);
  return {quantity_ratio(constant.least, value), quantity_ratio(constant.most, value)};
}

// The sum over constants that NLopt minimises.
struct Search {
  PointSimulator& simulator;
  const Paper& paper;
  const std::vector<PointId>& points;
  const ShareProgress& progress;
  std::vector<std::size_t> constants;  // those that are varied
  int evaluations = 0;
  std::exception_ptr failure;
  nlopt_opt optimizer = nullptr;

  Tuning tuning(const double* logarithms) const {
    Tuning tuning;
    for (std::size_t i = 0; i < constants.size(); ++i)
      tuning[constants[i]] = std::exp(logarithms[i]);
    return tuning;
  }

  std::vector<double> errors(const Tuning& tuning) {
    std::vector<double> all;
    for (const PointId& point : points) {
      const std::optional<double> simulated = simulator.quantity(point, tuning);
      all.push_back(simulated ? std::log(*simulated / *published_at(paper, point).number)
                              : error_without_fit);
    }
    return all;
  }

  double cost(const double* logarithms) {
    if (progress)
      progress(std::min(1.0, double(evaluations) / most_evaluations),
               fmt::format("refit over {} points", points.size()));
    ++evaluations;
    double sum = 0;
    for (const double error : errors(tuning(logarithms))) sum += error * error;
    return sum / static_cast<double>(points.size());
  }
};

// Errors do not cross NLopt, which is C: they stop it, and are thrown after it.
double cost_of_search(unsigned, const double* logarithms, double*, void* search) {
  auto& all = *static_cast<Search*>(search);
  try {
    return all.cost(logarithms);
  } catch (...) {
    all.failure = std::current_exception();
    nlopt_force_stop(all.optimizer);
    return HUGE_VAL;
  }
}

struct Destroy {
  void operator()(nlopt_opt_s* optimizer) const { nlopt_destroy(optimizer); }
};

// ln(factor) of each constant that is varied.
std::vector<double> minimise(Search& search) {
  const std::size_t count = search.constants.size();
  std::vector<double> found(count, 0), least, most;
  for (const std::size_t c : search.constants) {
    const FactorBounds bounds = bounds_of(search.paper, c);
    least.push_back(std::log(bounds.least));
    most.push_back(std::log(bounds.most));
  }
  const std::unique_ptr<nlopt_opt_s, Destroy> optimizer(
      nlopt_create(NLOPT_LN_SBPLX, static_cast<unsigned>(count)));
  SPILLWAY_ASSERT(optimizer);
  search.optimizer = optimizer.get();
  nlopt_set_lower_bounds(optimizer.get(), least.data());
  nlopt_set_upper_bounds(optimizer.get(), most.data());
  nlopt_set_min_objective(optimizer.get(), cost_of_search, &search);
  nlopt_set_initial_step1(optimizer.get(), first_step);
  nlopt_set_xtol_abs1(optimizer.get(), tolerance);
  nlopt_set_maxeval(optimizer.get(), most_evaluations);
  double cost = 0;
  const nlopt_result end = nlopt_optimize(optimizer.get(), found.data(), &cost);
  if (search.failure) std::rethrow_exception(search.failure);
  SPILLWAY_ASSERT(end > 0 || end == NLOPT_ROUNDOFF_LIMITED);
  return found;
}

double mean_error(const std::vector<double>& logarithms) {
  double sum = 0;
  for (const double one : logarithms) sum += std::abs(std::expm1(one));
  return logarithms.empty() ? 0 : sum / static_cast<double>(logarithms.size());
}

}  // namespace

std::optional<double> PointSimulator::quantity(const PointId& point, const Tuning& tuning) {
  return naming(fmt::format("{}, {}", paper_.name, point_name(paper_, point)),
                [&]() -> std::optional<double> {
                  const PointProblem one = problem_at(paper_, point, tuning);
                  const PaperExperiment& experiment = paper_.experiments[point.experiment];
                  const Schedule schedule =
                      reuse_[point].build(one.problem, one.policy, default_steps);
                  if (!schedule.fits()) return {};
                  if (method_ == Method::closed_form)
                    return closed_form(schedule, overlap_of(system_of(paper_, point)), experiment);
                  return quantity_of(simulate(schedule), schedule.problem(), experiment);
                });
}

std::vector<std::size_t> fittable_constants(const Paper& paper) {
  std::vector<std::size_t> all;
  for (std::size_t c = 0; c < paper.constants_chosen.size(); ++c) {
    if (!paper.constants_chosen[c].least.empty()) all.push_back(c);
  }
  return all;
}

std::vector<PointId> fit_points(const Paper& paper) {
  std::vector<PointId> all;
  for (const PointId& point : published_points(paper)) {
    if (published_at(paper, point).number && counts(paper, point)) all.push_back(point);
  }
  return all;
}

double elasticity(PointSimulator& simulator, const PointId& point, std::size_t constant) {
  const FactorBounds bounds = bounds_of(simulator.paper(), constant);
  const double up = std::min(1 + step_of_elasticity, bounds.most),
               down = std::max(1 - step_of_elasticity, bounds.least);
  if (up <= down) return 0;
  const auto more = simulator.quantity(point, {{constant, up}});
  const auto less = simulator.quantity(point, {{constant, down}});
  if (!more || !less) return 0;
  return std::log(*more / *less) / std::log(up / down);
}

Elasticities elasticities(PointSimulator& simulator, const Paper& paper,
                          const std::vector<PointId>& points, const ShareProgress& progress) {
  Elasticities all;
  for (std::size_t p = 0; p < points.size(); ++p) {
    if (progress)
      progress(double(p) / double(points.size()),
               "what each constant moves: " + point_name(paper, points[p]));
    std::vector<double>& row = all[points[p]];
    row.assign(paper.constants_chosen.size(), 0);
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (paper.constants_chosen[c].kind != ConstantKind::continuous) continue;
      const auto more = simulator.quantity(points[p], {{c, 1 + step_of_elasticity}});
      const auto less = simulator.quantity(points[p], {{c, 1 - step_of_elasticity}});
      if (more && less)
        row[c] =
            std::log(*more / *less) / std::log((1 + step_of_elasticity) / (1 - step_of_elasticity));
    }
  }
  return all;
}

Tuning Refit::tuning() const {
  Tuning tuning;
  for (const RefitConstant& one : constants) {
    if (one.determined) tuning[one.constant] = one.factor;
  }
  return tuning;
}

Refit refit(PointSimulator& simulator, const Paper& paper, const std::vector<PointId>& points,
            const Elasticities& elasticities, const ShareProgress& progress, const Tuning* known) {
  Refit result;
  result.points = static_cast<int>(points.size());
  Search search{simulator, paper, points, progress, {}, 0, nullptr, nullptr};
  for (const std::size_t c : fittable_constants(paper)) {
    double moved = 0;
    for (const PointId& point : points) moved += std::abs(elasticities.at(point)[c]);
    RefitConstant one;
    one.constant = c;
    one.determined = moved >= told;
    if (one.determined) search.constants.push_back(c);
    result.constants.push_back(one);
  }
  if (result.constants.empty())
    throw InputError(fmt::format("paper {} has no constants to fit", paper.name),
                     "give continuous [[constant]] tables of its file bounds = [LEAST, MOST]");
  result.before = mean_error(search.errors({}));
  const std::vector<double> found =
      search.constants.empty() || known ? std::vector<double>() : minimise(search);
  for (RefitConstant& one : result.constants) {
    const auto at = std::find(search.constants.begin(), search.constants.end(), one.constant);
    if (at == search.constants.end()) continue;
    if (known) {
      const auto factor = known->find(one.constant);
      one.factor = factor == known->end() ? 1 : factor->second;
    } else {
      one.factor = std::exp(found[static_cast<std::size_t>(at - search.constants.begin())]);
    }
    const FactorBounds bounds = bounds_of(paper, one.constant);
    constexpr double near = 1.001;
    one.at_bound = one.factor > bounds.most / near || one.factor < bounds.least * near;
  }
  result.after = mean_error(search.errors(result.tuning()));
  result.evaluations = search.evaluations;
  return result;
}

Refit refit_all(const Paper& paper, const ShareProgress& progress) {
  PointSimulator simulator(paper);
  const std::vector<PointId> points = fit_points(paper);
  const Elasticities moved = elasticities(simulator, paper, points);
  return refit(simulator, paper, points, moved, progress);
}

}  // namespace spillway
