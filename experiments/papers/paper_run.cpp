#include "experiments/papers/paper_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "base/errors.hpp"
#include "experiments/papers/closed_form.hpp"
#include "experiments/papers/refit.hpp"
#include "experiments/plan/evaluate.hpp"
#include "experiments/plan/rank_problem.hpp"
#include "policies/common/policy.hpp"

namespace spillway {

namespace {

// Numbers of micro-batches that are tried for saturation, and the gain that still counts.
constexpr std::int64_t most_saturation_micro_batches = 128;
constexpr double saturation_gain = 0.01;

double ssd_bytes_of(const SimulationResult& result) {
  return result.lanes[static_cast<std::size_t>(Lane::ssd_read)].bytes +
         result.lanes[static_cast<std::size_t>(Lane::ssd_write)].bytes;
}

Saturation saturate(Problem problem, const std::string& policy) {
  struct Try {
    std::int64_t micro_batches;
    double seconds, rate, ssd_bytes;
  };
  std::vector<Try> tries;
  const std::int64_t micro_batch = problem.workload.micro_batch;
  bool gains = true;
  for (std::int64_t m = 1; m <= most_saturation_micro_batches && gains; m *= 2) {
    problem.workload.batch = m * micro_batch * problem.workload.ranks;
    const Evaluation one = evaluate(problem, policy);
    const Try now{m, one.result ? one.result->step_seconds : 0,
                  one.result ? one.result->tokens_per_second : 0,
                  one.result ? ssd_bytes_of(*one.result) : 0};
    gains = tries.empty() || now.rate > tries.back().rate * (1 + saturation_gain);
    tries.push_back(now);
  }
  const bool gains_until_memory = tries.size() > 1 && tries.back().rate == 0;
  Saturation result;
  if (gains && tries.size() > 1 && tries.back().rate > 0) {
    const Try &last = tries.back(), &before = tries[tries.size() - 2];
    const std::int64_t more =
        (last.micro_batches - before.micro_batches) * micro_batch * problem.workload.ranks;
    result.tokens_per_second =
        static_cast<double>(more * problem.workload.sequence) / (last.seconds - before.seconds);
    result.micro_batches = last.micro_batches;
    result.limit = true;
    result.ssd_bytes = last.ssd_bytes;
    return result;
  }
  result.ended_by_memory = gains_until_memory;
  for (const Try& one : tries)
    result.tokens_per_second = std::max(result.tokens_per_second, one.rate);
  for (const Try& one : tries) {
    if (result.tokens_per_second == 0 ||
        one.rate * (1 + saturation_gain) < result.tokens_per_second)
      continue;
    result.micro_batches = one.micro_batches;
    result.ssd_bytes = one.ssd_bytes;
    break;
  }
  return result;
}

// Parts of keys.
constexpr const char* memory_keys[] = {".memory", "gpu.context", "host.reserved", "fp16"};

RatioRow ratio_row(const Paper& paper, const PaperRatio& ratio, const PaperAssumption& assumed) {
  const auto saturated = [&](const std::string& policy, const std::string& framework) {
    std::vector<std::string> all = ratio.settings;
    all.insert(all.end(), assumed.settings.begin(), assumed.settings.end());
    const SettingLists settings = split_settings(all);
    Problem problem;
    problem.model = paper_model(paper, ratio.model, settings.model);
    problem.machine = paper_machine(paper, settings.machine);
    problem.workload.sequence = assumed.sequence > 0 ? assumed.sequence : ratio.sequence;
    problem.workload.micro_batch =
        assumed.micro_batch > 0 ? assumed.micro_batch : ratio.micro_batch;
    problem.workload.gradient = assumed.gradient;
    problem.workload.ranks = ratio.ranks;
    problem.workload.batch = problem.workload.micro_batch * ratio.ranks;
    problem.framework = framework;
    take_rank_share(problem);
    return saturate(problem, policy);
  };
  RatioRow row;
  row.label = assumed.label;
  const auto or_else = [](const std::string& text, const std::string& other) {
    return text.empty() ? other : text;
  };
  row.faster = saturated(or_else(assumed.faster, ratio.faster),
                         or_else(assumed.faster_framework, ratio.faster_framework));
  row.slower = saturated(or_else(assumed.slower, ratio.slower),
                         or_else(assumed.slower_framework, ratio.slower_framework));
  if (row.faster.micro_batches > 0 && row.slower.micro_batches > 0)
    row.ratio = row.faster.tokens_per_second / row.slower.tokens_per_second;
  row.uses_drives = (!ratio.faster_on_drives || row.faster.ssd_bytes > 0) &&
                    (!ratio.slower_on_drives || row.slower.ssd_bytes > 0);
  return row;
}

// Whether it says how much memory there is, or is needed.
bool is_of_memory(const PaperConstant& constant) {
  return std::any_of(std::begin(memory_keys), std::end(memory_keys), [&](const char* part) {
    return constant.key.find(part) != std::string::npos;
  });
}

// Continuous constants that were fitted on points with a number of the same system: of its name,
// or of its policy in its framework.
std::vector<std::size_t> constants_fitted_on(const Paper& paper, const PaperSystem& system,
                                             bool of_pipelines = false) {
  const auto is_same = [&](const PaperSystem& other) {
    return other.name == system.name ||
           (!of_pipelines && other.framework == system.framework &&
            canonical_policy(other.policy) == canonical_policy(system.policy));
  };
  std::vector<std::size_t> all;
  for (std::size_t c = 0; c < paper.constants_chosen.size(); ++c) {
    const PaperConstant& constant = paper.constants_chosen[c];
    if (constant.kind != ConstantKind::continuous) continue;
    const std::vector<PointId> seen = points_seen(paper, constant);
    if (std::any_of(seen.begin(), seen.end(), [&](const PointId& point) {
          return published_at(paper, point).number && is_same(system_of(paper, point));
        }))
      all.push_back(c);
  }
  return all;
}

class Run {
 public:
  Run(const Paper& paper, const PaperProgress& progress) : paper_(paper), progress_(progress) {
    for (const PaperExperiment& e : paper.experiments) {
      for (const PaperSystem& system : e.systems)
        total_ += static_cast<std::size_t>(
            std::count_if(system.published.begin(), system.published.end(),
                          [](const PublishedValue& value) { return value.given; }));
    }
    for (const PaperRatio& ratio : paper.ratios) total_ += 1 + ratio.assumptions.size();
  }

  PaperResult run() {
    find_runs();
    PaperResult result;
    result.paper = paper_;
    for (std::size_t e = 0; e < paper_.experiments.size(); ++e)
      result.experiments.push_back(run_experiment(e));
    for (const PaperRatio& ratio : paper_.ratios) result.ratios.push_back(run(ratio));
    return result;
  }

 private:
  std::string where(const PointId& id) const {
    const PaperExperiment& experiment = paper_.experiments[id.experiment];
    return fmt::format("{}, {}, {}, {} {}", paper_.name, experiment.name,
                       system_of(paper_, id).name, experiment.axis, experiment.values[id.value]);
  }

  // Groups the points by run: those of one run are in the order of the file.
  void find_runs() {
    for (const PointId& id : published_points(paper_)) {
      if (counted_elsewhere(paper_, id)) continue;
      runs_[naming(where(id), [&] { return run_of(paper_, id); })].push_back(id);
    }
    for (const auto& [run, points] : runs_) {
      for (const PointId& id : points) points_of_run_[id] = &points;
    }
  }

  ExperimentResult run_experiment(std::size_t e) {
    const PaperExperiment& experiment = paper_.experiments[e];
    ExperimentResult result;
    for (std::size_t s = 0; s < experiment.systems.size(); ++s) {
      const PaperSystem& system = experiment.systems[s];
      SystemResult one{system.name, system.policy, system.framework, {}, {}, overlap_of(system)};
      for (std::size_t i = 0; i < experiment.values.size(); ++i)
        one.points.push_back(run({e, s, i}));
      one.errors = errors_of(one.points);
      result.systems.push_back(std::move(one));
    }
    result.ordering = ordering_of(result.systems, experiment.quantity);
    return result;
  }

  PaperPoint run(const PointId& id) {
    const PaperExperiment& experiment = paper_.experiments[id.experiment];
    PaperPoint point;
    point.at = experiment.values[id.value];
    point.published = published_at(paper_, id);
    if (!point.published.given) return point;
    announce(where(id));
    if (experiment.of_pipelines) {
      naming(where(id), [&] { run_pipelines(id, point); });
      return point;
    }
    naming(where(id), [&] {
      const PointProblem asked = problem_at(paper_, id);
      const Evaluation one = evaluate(asked.problem, asked.policy);
      point.fits = one.result.has_value();
      point.margin = fit_margin(tier_uses(one.schedule));
      if (!one.result) return;
      point.simulated = quantity_of(*one.result, asked.problem, experiment);
      point.closed_form = closed_form(one.schedule, overlap_of(system_of(paper_, id)), experiment);
    });
    naming(where(id), [&] { find_what_it_hangs_on(id, point); });
    point.counts = spillway::counts(paper_, id);
    point.chosen = is_chosen(paper_, id);
    if (const auto other = counted_elsewhere(paper_, id))
      point.same_run_as = point_name(paper_, *other);
    else if (const PointId& first = points_of_run_.at(id)->front(); first != id)
      point.verdict_as = point_name(paper_, first);
    if (point.error()) point.fitted_share = fitted_share(id);
    return point;
  }

  void run_pipelines(const PointId& id, PaperPoint& point) {
    point.of_pipelines = point.fits = true;
    const PipelineValue value = pipeline_value_at(paper_, id);
    point.simulated = value.value;
    point.closed_form = value.closed_form;
    point.counts = spillway::counts(paper_, id);
    point.chosen = is_chosen(paper_, id);
    constexpr double little = 0.01;
    for (const std::size_t c : constants_fitted_on(paper_, system_of(paper_, id), true)) {
      const double more = pipeline_value_at(paper_, id, {{c, 1 + little}}).value;
      const double less = pipeline_value_at(paper_, id, {{c, 1 - little}}).value;
      point.fitted_share += std::abs(std::log(more / less) / std::log((1 + little) / (1 - little)));
    }
  }

  void find_what_it_hangs_on(const PointId& id, PaperPoint& point) {
    // No range reaches further.
    constexpr double largest_margin = 0.5;
    for (std::size_t c = 0; c < paper_.constants_chosen.size(); ++c) {
      const PaperConstant& constant = paper_.constants_chosen[c];
      if (!is_of_memory(constant)) continue;
      const std::vector<PointId> seen = points_seen(paper_, constant);
      const auto is_seen = [&](const PointId& one) {
        return std::find(seen.begin(), seen.end(), one) != seen.end();
      };
      const auto found = points_of_run_.find(id);
      if (found != points_of_run_.end() &&
          std::any_of(found->second->begin(), found->second->end(), is_seen))
        point.verdict_seen_by.push_back(c);
      if (constant.range_least.empty() || !point.margin.share ||
          std::abs(*point.margin.share) > largest_margin)
        continue;
      const std::string value = constant_value(paper_, constant);
      for (const std::string& end : {constant.range_least, constant.range_most}) {
        const PointProblem there = problem_at(paper_, id, {{c, quantity_ratio(end, value)}});
        if (build_schedule(there.problem, there.policy, 2).fits() == point.fits) continue;
        point.hangs_on.push_back(c);
        break;
      }
    }
  }

  double fitted_share(const PointId& id) {
    double share = 0;
    for (const std::size_t c : constants_fitted_on(paper_, system_of(paper_, id)))
      share += std::abs(elasticity(simulator_, id, c));
    return share;
  }

  std::vector<RatioRow> run(const PaperRatio& ratio) {
    std::vector<RatioRow> rows;
    PaperAssumption stated;
    stated.label = "as stated";
    stated.gradient = ratio.gradient;
    std::vector<PaperAssumption> all = {stated};
    all.insert(all.end(), ratio.assumptions.begin(), ratio.assumptions.end());
    for (const PaperAssumption& assumption : all) {
      const std::string where =
          fmt::format("{}, {}, {}", paper_.name, ratio.name, assumption.label);
      announce(where);
      rows.push_back(naming(where, [&] { return ratio_row(paper_, ratio, assumption); }));
    }
    return rows;
  }

  void announce(const std::string& what) {
    if (progress_) progress_(done_, total_, what);
    ++done_;
  }

  const Paper& paper_;
  const PaperProgress& progress_;
  PointSimulator simulator_{paper_};
  std::size_t done_ = 0, total_ = 0;
  std::map<std::string, std::vector<PointId>> runs_;
  std::map<PointId, const std::vector<PointId>*> points_of_run_;
};

}  // namespace

std::optional<double> PaperPoint::closed_form_error() const {
  if (!closed_form || !published.number) return std::nullopt;
  return *closed_form / *published.number - 1;
}

std::string RatioRow::out_of_range() const {
  if (!ratio) return "it does not fit";
  if (!uses_drives) return "drives unused";
  if (faster.ended_by_memory || slower.ended_by_memory) return "memory ends it before it saturates";
  return "";
}

std::optional<RatioRange> ratio_range(const std::vector<RatioRow>& rows) {
  std::optional<RatioRange> range;
  for (const RatioRow& row : rows) {
    if (!row.out_of_range().empty()) continue;
    if (!range) range = RatioRange{*row.ratio, *row.ratio, 0};
    range->least = std::min(range->least, *row.ratio);
    range->most = std::max(range->most, *row.ratio);
    ++range->rows;
  }
  return range;
}

void ErrorSums::add(const SystemErrors& errors) {
  const double before = predictions, more = errors.predictions;
  if (errors.predictions == 0) return;
  mean = (mean * before + errors.mean * more) / (before + more);
  closed_form_mean = (closed_form_mean * before + errors.closed_form_mean * more) / (before + more);
  predictions += errors.predictions;
  nearer += errors.nearer;
}

ErrorSums errors_of(const PaperResult& result) {
  ErrorSums sums;
  for (const ExperimentResult& experiment : result.experiments) {
    for (const SystemResult& system : experiment.systems) sums.add(system.errors);
  }
  return sums;
}

std::optional<double> PaperPoint::error() const {
  if (!simulated || !published.number) return std::nullopt;
  return *simulated / *published.number - 1;
}

SystemErrors errors_of(const std::vector<PaperPoint>& points) {
  SystemErrors errors;
  for (const PaperPoint& point : points) {
    if (point.verdict_counts()) {
      const bool right = point.fits == point.published.fits, unseen = point.verdict_seen_by.empty();
      ++errors.fits_known;
      errors.fits_as_published += right ? 1 : 0;
      errors.unseen_known += unseen ? 1 : 0;
      errors.unseen_as_published += right && unseen ? 1 : 0;
    }
    if (const auto error = point.error(); error && point.counts && point.is_fitted()) {
      ++errors.fitted;
      errors.fitted_mean += std::abs(*error);
    }
    if (!point.is_prediction()) continue;
    const double error = *point.error();
    const double closed_form = std::abs(point.closed_form_error().value_or(0));
    errors.mean += std::abs(error);
    errors.closed_form_mean += closed_form;
    if (std::abs(error) < closed_form) ++errors.nearer;
    ++errors.predictions;
    if (errors.worst_at.empty() || std::abs(error) > std::abs(errors.worst)) {
      errors.worst = error;
      errors.worst_at = point.at;
    }
  }
  if (errors.predictions > 0) {
    errors.mean /= errors.predictions;
    errors.closed_form_mean /= errors.predictions;
  }
  if (errors.fitted > 0) errors.fitted_mean /= errors.fitted;
  return errors;
}

Ordering ordering_of(const std::vector<SystemResult>& systems, Quantity quantity) {
  const bool less_is_better =
      quantity != Quantity::tokens_per_second && quantity != Quantity::tokens_per_gpu_second &&
      quantity != Quantity::tflops && quantity != Quantity::mfu &&
      quantity != Quantity::wan_speed_up && quantity != Quantity::prefill_utilization;
  constexpr double worst = std::numeric_limits<double>::infinity();
  const auto cost = [&](bool fits, const std::optional<double>& number) {
    if (!fits) return worst;
    return less_is_better ? *number : -*number;
  };
  const auto known = [](const PaperPoint& point) {
    return point.published.given && (point.published.number || !point.published.fits);
  };
  Ordering ordering;
  for (std::size_t a = 0; a < systems.size(); ++a) {
    for (std::size_t b = a + 1; b < systems.size(); ++b) {
      for (std::size_t i = 0; i < systems[a].points.size(); ++i) {
        const PaperPoint &p = systems[a].points[i], &q = systems[b].points[i];
        if (!known(p) || !known(q)) continue;
        const double published_p = cost(p.published.fits, p.published.number);
        const double published_q = cost(q.published.fits, q.published.number);
        if (published_p == published_q) continue;  // both did not fit
        const double simulated_p = cost(p.fits, p.simulated);
        const double simulated_q = cost(q.fits, q.simulated);
        ++ordering.pairs;
        if (simulated_p == simulated_q) continue;
        if ((published_p < published_q) == (simulated_p < simulated_q))
          ++ordering.concordant;
        else
          ++ordering.discordant;
      }
    }
  }
  return ordering;
}

PaperResult run_paper(const Paper& paper, const PaperProgress& progress) {
  return Run(paper, progress).run();
}

}  // namespace spillway
