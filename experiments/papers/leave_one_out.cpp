#include "experiments/papers/leave_one_out.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"

namespace spillway {

namespace {

// A point that a constant without other points moves by less than this share of the constant's own
// change is predicted all the same.
constexpr double moved_by = 0.05;

std::string fold_of(const Paper& paper, const PointId& point) {
  const PaperExperiment& experiment = paper.experiments[point.experiment];
  switch (paper.leave_out) {
    case LeaveOut::figure:
      return experiment.figure;
    case LeaveOut::experiment:
      return experiment.name;
    case LeaveOut::value:
      return experiment.values[point.value];
  }
  SPILLWAY_ASSERT(false);
}

bool holds(const std::vector<PointId>& points, const PointId& point) {
  return std::find(points.begin(), points.end(), point) != points.end();
}

// What a fold leaves out, and what its constants are fitted on.
struct Division {
  std::string name;
  std::vector<PointId> left_out, kept;
  std::vector<PointId> told;  // by what is left out: its points, and other figures' of its runs
};

std::vector<Division> divisions(const Paper& paper) {
  std::vector<Division> all;
  const std::vector<PointId> points = fit_points(paper);
  for (const PointId& point : points) {
    const std::string name = fold_of(paper, point);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Division& one) { return one.name == name; });
    if (found == all.end())
      all.push_back({name, {point}, {}, {}});
    else
      found->left_out.push_back(point);
  }
  for (Division& one : all) {
    one.told = one.left_out;
    for (const PointId& point : published_points(paper)) {
      const std::optional<PointId> same = counted_elsewhere(paper, point);
      if (same && fold_of(paper, point) == one.name) one.told.push_back(*same);
    }
    for (const PointId& point : points) {
      if (!holds(one.told, point)) one.kept.push_back(point);
    }
  }
  return all;
}

// One method's constants without a fold, and what they say of it.
struct Prediction {
  Refit refit;
  std::vector<LeftOutPoint> points;
};

Prediction predict(const Paper& paper, const Division& division, PointSimulator& simulator,
                   const Elasticities& moved, const ShareProgress& progress, const Tuning* known) {
  Prediction all;
  all.refit = refit(simulator, paper, division.kept, moved, progress, known);
  for (const PointId& point : division.left_out) {
    LeftOutPoint one;
    one.point = point;
    one.name = point_name(paper, point);
    one.published = *published_at(paper, point).number;
    one.simulated = simulator.quantity(point, all.refit.tuning());
    for (const RefitConstant& constant : all.refit.constants) {
      if (constant.determined || std::abs(moved.at(point)[constant.constant]) < moved_by) continue;
      const std::vector<PointId> seen =
          points_seen(paper, paper.constants_chosen[constant.constant]);
      if (std::any_of(seen.begin(), seen.end(),
                      [&](const PointId& other) { return holds(division.told, other); }))
        one.determined = false;
    }
    all.points.push_back(std::move(one));
  }
  return all;
}

std::vector<LeftOutPoint> together(const std::vector<Fold>& folds,
                                   std::vector<LeftOutPoint> Fold::*points) {
  std::vector<LeftOutPoint> all;
  for (const Fold& fold : folds)
    all.insert(all.end(), (fold.*points).begin(), (fold.*points).end());
  return all;
}

}  // namespace

LeftOutErrors errors_of(const std::vector<LeftOutPoint>& points) {
  LeftOutErrors errors;
  for (const LeftOutPoint& point : points) {
    if (!point.determined) {
      ++errors.not_determined;
      continue;
    }
    ++errors.points;
    errors.mean += std::abs(point.error());
    if (!errors.worst_at.empty() && std::abs(point.error()) <= std::abs(errors.worst)) continue;
    errors.worst = point.error();
    errors.worst_at = point.name;
  }
  if (errors.points > 0) errors.mean /= errors.points;
  return errors;
}

std::vector<LeftOutPoint> LeaveOneOut::points() const { return together(folds, &Fold::points); }
std::vector<LeftOutPoint> LeaveOneOut::closed_form() const {
  return together(folds, &Fold::closed_form);
}

LeaveOneOut leave_one_out(const Paper& paper, const ShareProgress& progress,
                          const KnownFits& known) {
  const std::vector<Division> all = divisions(paper);
  const std::vector<PointId> points = fit_points(paper);
  PointSimulator simulator(paper), closed_form(paper, Method::closed_form);
  const Elasticities moved = elasticities(simulator, paper, points),
                     moved_by_form = elasticities(closed_form, paper, points);
  LeaveOneOut result;
  // Of the two refits of a fold the simulator's takes nearly all of the time.
  constexpr double simulators_part = 0.9;
  for (std::size_t f = 0; f < all.size(); ++f) {
    const auto part = [&](double from, double length) -> ShareProgress {
      if (!progress) return {};
      return [&, from, length](double share, const std::string& next) {
        progress((double(f) + from + length * share) / double(all.size()),
                 fmt::format("{} without {}: {}", paper.name, all[f].name, next));
      };
    };
    const auto found = known.find(all[f].name);
    const KnownFit* fit = found == known.end() ? nullptr : &found->second;
    Prediction by_simulator = predict(paper, all[f], simulator, moved, part(0, simulators_part),
                                      fit ? &fit->simulator : nullptr);
    Prediction by_form =
        predict(paper, all[f], closed_form, moved_by_form,
                part(simulators_part, 1 - simulators_part), fit ? &fit->closed_form : nullptr);
    result.folds.push_back({all[f].name, std::move(by_simulator.refit),
                            std::move(by_simulator.points), std::move(by_form.refit),
                            std::move(by_form.points)});
  }
  return result;
}

}  // namespace spillway
