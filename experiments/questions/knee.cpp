#include "experiments/questions/knee.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "experiments/plan/in_parallel.hpp"
#include "experiments/plan/machine_changes.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/questions/knee_resources.hpp"

namespace spillway {

namespace {

// A curve is known to be level only where so many times the value of its knee was tried.
constexpr double least_beyond = 1.25;

void take_plan(KneePoint& point, const Candidate& plan) {
  const Schedule& schedule = plan.evaluation.schedule;
  const SimulationResult& result = *plan.evaluation.result;
  point.policy = schedule.policy();
  point.micro_batch = schedule.problem().workload.micro_batch;
  point.step_seconds = result.step_seconds;
  point.tokens_per_second = result.tokens_per_second;
  point.bound_by = result.bound_by;
  const Machine& machine = schedule.problem().machine;
  for (int set = 0; set < machine.drive_sets(); ++set)
    point.is_extrapolated = point.is_extrapolated || machine.drives(set).extrapolated();
  const StallReport stalls = explain(schedule, result).stalls;
  if (stalls.stalls.empty()) return;
  point.waits_for = to_string(stalls.stalls.front().running);
  point.waits_share = static_cast<double>(stalls.stalls.front().ns) /
                      static_cast<double>(stalls.busy_ns + stalls.idle_ns);
}

// Of the plan that lacks least.
std::string shortage_of(const Candidates& found) {
  std::optional<FitMargin> least;
  for (const Candidate& one : found.all) {
    const FitMargin margin = margin_of(one);
    if (!least || margin.share > least->share) least = margin;
  }
  return least ? to_text(*least) : "no policy can run it";
}

// The plan of `other` at `point`, where it is faster there than the point's own; else nothing.
std::optional<Candidate> faster_by(const KneePoint& point, const KneePoint& other,
                                   const ProblemRequest& request, const KneeResource& resource,
                                   const KneeOptions& options) {
  const bool is_same = point.policy == other.policy && point.micro_batch == other.micro_batch;
  if (!other.fits() || is_same) return {};
  try {
    Candidates found =
        options.plan(problem_at(request, resource, point), other.policy, other.micro_batch);
    if (!found.chosen) return {};
    Candidate& one = found.all[*found.chosen];
    if (point.fits() && one.evaluation.result->step_seconds >= point.step_seconds) return {};
    return std::move(one);
  } catch (const InputError&) {
    return {};  // it is not for this machine
  }
}

// Every point of a curve gets the plans of the points before it, then of those behind it.
void exchange_plans(KneeCurve& curve, const ProblemRequest& request, const KneeOptions& options,
                    std::optional<Candidate>& now) {
  const KneeResource& resource = resource_named(curve.resource);
  const auto give = [&](std::size_t to, std::size_t from) {
    KneePoint& point = curve.points[to];
    std::optional<Candidate> found =
        faster_by(point, curve.points[from], request, resource, options);
    if (!found) return;
    point.why_not.clear();
    take_plan(point, *found);
    if (to == curve.now) now = std::move(found);
  };
  for (std::size_t i = 1; i < curve.points.size(); ++i) give(i, i - 1);
  for (std::size_t i = curve.points.size(); i-- > 1;) give(i - 1, i);
}

// The same for all curves, which have one point in common: the machine as it is.
void exchange_plans(Knees& knees, const ProblemRequest& request, const KneeOptions& options) {
  const auto exchange = [&] {
    std::vector<std::optional<Candidate>> found(knees.curves.size());
    in_parallel(knees.curves.size(), options.threads, [&](std::size_t k) {
      if (!knees.curves[k].points.empty())
        exchange_plans(knees.curves[k], request, options, found[k]);
    });
    bool is_faster = false;
    for (std::optional<Candidate>& one : found) {
      const auto seconds = [](const std::optional<Candidate>& of) {
        return of->evaluation.result->step_seconds;
      };
      if (!one || (knees.faster_now && seconds(knees.faster_now) <= seconds(one))) continue;
      knees.faster_now = std::move(one);
      is_faster = true;
    }
    return is_faster;
  };
  // What one curve has found is known to all of them from the next round on.
  constexpr int most_rounds = 3;
  for (int round = 0; round < most_rounds && exchange(); ++round) {
    for (KneeCurve& curve : knees.curves)
      if (!curve.points.empty()) take_plan(curve.points[curve.now], *knees.faster_now);
  }
}

void try_point(KneePoint& point, const ProblemRequest& request, const KneeResource& resource,
               const KneeOptions& options) {
  try {
    const Candidates found = options.plans(problem_at(request, resource, point));
    if (found.chosen) {
      take_plan(point, found.all[*found.chosen]);
    } else {
      point.why_not = shortage_of(found);
    }
  } catch (const InputError& error) {
    point.why_not = error.what();
  }
}

}  // namespace

void find_knee(KneeCurve& curve, double threshold) {
  std::vector<std::size_t> fitting;
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    if (!curve.points[i].counts()) continue;
    fitting.push_back(i);
    curve.most_tokens_per_second =
        std::max(curve.most_tokens_per_second, curve.points[i].tokens_per_second);
  }
  double most_above = 0;
  for (std::size_t k = fitting.size(); k-- > 1;) {
    KneePoint& point = curve.points[fitting[k - 1]];
    const KneePoint& next = curve.points[fitting[k]];
    point.next_gain = next.tokens_per_second / point.tokens_per_second - 1;
    most_above = std::max(most_above, next.tokens_per_second);
    if (most_above < (1 + threshold) * point.tokens_per_second) curve.level_from = fitting[k - 1];
  }
  const auto& from = curve.level_from;
  if (from && curve.points[fitting.back()].value >= least_beyond * curve.points[*from].value)
    curve.knee = from;
}

std::string no_knee_text(const KneeCurve& curve) {
  std::vector<const KneePoint*> known;
  for (const KneePoint& point : curve.points)
    if (point.counts()) known.push_back(&point);
  const bool is_table_out = curve.table_ends > 0 && !known.empty() &&
                            known.back()->value >= static_cast<double>(curve.table_ends);
  const std::string most =
      is_table_out ? "as many as the machine file knows" : "the most that was tried";
  if (known.empty() && curve.table_ends > 0)
    return fmt::format("not known: the machine file knows drives up to {}", curve.table_ends);
  if (known.size() < 2)
    return is_table_out ? fmt::format("{} is {}", known.back()->text, most)
                        : "no other value that fits was tried";
  if (curve.level_from)
    return fmt::format("level from {} to {}, {}: no value a quarter beyond {} was tried",
                       curve.points[*curve.level_from].text, known.back()->text, most,
                       curve.points[*curve.level_from].text);
  return fmt::format("above {}: {}, {}, still pays", known[known.size() - 2]->text,
                     known.back()->text, most);
}

KneeOptions knee_options(const ProblemRequest& request, const Problem& problem,
                         const std::string& policy, const WholeRun& run) {
  KneeOptions how;
  how.threads = usual_threads();
  const auto evaluated =
      [&request, run, one = request.evaluation(problem), settle = request.settle(problem)](
          const Problem& tried, bool choose_micro_batch, const std::vector<std::string>& policies) {
        return evaluate_candidates(tried, choose_micro_batch, policies, run, default_steps, one,
                                   settle);
      };
  how.plans = [&request, policy, evaluated](const Problem& tried) {
    return evaluated(tried, request.chooses_micro_batch(), policies_named(policy));
  };
  // One policy by name is what it is asked for.
  if (policy == "auto" || is_tuned(policy)) {
    how.plan = [evaluated](Problem tried, const std::string& one, std::int64_t micro_batch) {
      tried.workload.micro_batch = micro_batch;
      return evaluated(tried, false, {one});
    };
  }
  return how;
}

Knees find_knees(const ProblemRequest& request, const Candidate& now,
                 const std::vector<KneeRange>& ranges, const KneeOptions& options) {
  const Machine machine = request.problem().machine;
  Knees knees;
  knees.threshold = options.threshold;
  struct Job {
    std::size_t curve, point;
  };
  std::vector<Job> jobs;
  for (const KneeRange& range : ranges) {
    const KneeResource& resource = resource_named(range.resource);
    KneeCurve curve{range.resource, why_not_there(resource, machine), {}, 0, {}, {}, 0, false, 0};
    const double value = value_now(request, machine, resource);
    if (curve.why_not.empty()) {
      if (resource.kind == ResourceKind::drives) {
        curve.in_proportion = in_proportion(request, machine, resource.set);
        if (!curve.in_proportion)
          curve.table_ends = machine.drives(resource.set).by_count.rbegin()->first;
      }
      for (const double one : values_of(range, resource, request, machine, value)) {
        KneePoint point;
        point.value = one;
        point.text = value_text(resource.kind, one);
        point.is_beyond_table = curve.table_ends > 0 && one > static_cast<double>(curve.table_ends);
        if (one == value) {
          curve.now = curve.points.size();
          take_plan(point, now);
        } else {
          for (const Setting& change : changes_of(resource, request, machine, one))
            point.set.push_back(assignment(change));
          jobs.push_back({knees.curves.size(), curve.points.size()});
        }
        curve.points.push_back(std::move(point));
      }
    }
    knees.curves.push_back(std::move(curve));
  }
  std::mutex mutex;
  std::size_t done = 0;
  in_parallel(jobs.size(), options.threads, [&](std::size_t k) {
    KneeCurve& curve = knees.curves[jobs[k].curve];
    try_point(curve.points[jobs[k].point], request, resource_named(curve.resource), options);
    const std::lock_guard lock(mutex);
    if (options.progress) options.progress(++done, jobs.size());
  });
  if (options.plan) exchange_plans(knees, request, options);
  for (KneeCurve& curve : knees.curves) find_knee(curve, options.threshold);
  return knees;
}

}  // namespace spillway
