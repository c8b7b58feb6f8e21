#include "experiments/papers/paper_points.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "experiments/plan/rank_problem.hpp"
#include "policies/common/policy.hpp"
#include "policies/pipeline/orders.hpp"

namespace spillway {

namespace {

constexpr const char* nothing = "-";

std::int64_t parse_count(const std::string& text, const std::string& axis) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used != text.size() || value < 1)
    throw InputError(fmt::format("{} '{}' is not a whole number above zero", axis, text));
  return value;
}

// "policy" or "policy:a=b" with one option more.
std::string with_option(const std::string& policy, const std::string& option) {
  return policy + (policy.find(':') == std::string::npos ? ":" : ",") + option;
}

bool is_ratio(const Paper& paper, const std::string& name) {
  return std::any_of(paper.ratios.begin(), paper.ratios.end(),
                     [&](const PaperRatio& ratio) { return ratio.name == name; });
}

// Where the axis puts one of its values.
struct AtAxis {
  std::string model, policy, framework;
  std::vector<std::string> settings;
  std::int64_t micro_batch = 0;
  Workload workload;
};

std::int64_t whole_batch(const PaperExperiment& experiment, const Workload& workload) {
  return experiment.rank_batch > 0 ? experiment.rank_batch * workload.ranks : workload.batch;
}

void place_on_axis(const std::string& axis, const std::string& at, AtAxis& all) {
  static const std::string option = "option.", framework = "framework.";
  if (axis == "batch")
    all.workload.batch = parse_count(at, "batch");
  else if (axis == "sequence")
    all.workload.sequence = parse_count(at, "sequence");
  else if (axis == "ranks")
    all.workload.ranks = parse_count(at, "ranks");
  else if (axis == "micro_batch")
    all.micro_batch = parse_count(at, "micro_batch");
  else if (axis == "model")
    all.model = at;
  else if (axis.rfind(option, 0) == 0)
    all.policy = with_option(all.policy, axis.substr(option.size()) + "=" + at);
  else if (axis.rfind(framework, 0) == 0)
    all.framework = with_option(all.framework, axis.substr(framework.size()) + "=" + at);
  else
    all.settings.push_back(axis + "=" + at);
}

}  // namespace

std::vector<PointId> published_points(const Paper& paper) {
  std::vector<PointId> all;
  for (std::size_t e = 0; e < paper.experiments.size(); ++e) {
    for (std::size_t s = 0; s < paper.experiments[e].systems.size(); ++s) {
      for (std::size_t v = 0; v < paper.experiments[e].values.size(); ++v) {
        if (published_at(paper, {e, s, v}).given) all.push_back({e, s, v});
      }
    }
  }
  return all;
}

const PaperSystem& system_of(const Paper& paper, const PointId& point) {
  return paper.experiments[point.experiment].systems[point.system];
}

const PublishedValue& published_at(const Paper& paper, const PointId& point) {
  return system_of(paper, point).published[point.value];
}

std::string framework_at(const PaperSystem& system, std::size_t value) {
  const bool more =
      !system.framework_settings.empty() && system.framework_settings[value] != nothing;
  return more ? with_option(system.framework, system.framework_settings[value]) : system.framework;
}

std::string point_name(const Paper& paper, const PointId& point) {
  const PaperExperiment& experiment = paper.experiments[point.experiment];
  return fmt::format("{}/{}/{}", experiment.name, experiment.systems[point.system].name,
                     experiment.values[point.value]);
}

std::vector<PointId> points_named(const Paper& paper, const std::string& name) {
  std::vector<PointId> found;
  std::vector<std::string> known;
  const auto is_below = [&](const std::string& point) {
    return point == name || point.rfind(name + "/", 0) == 0;
  };
  for (const PointId& point : published_points(paper)) {
    known.push_back(point_name(paper, point));
    if (is_below(known.back())) found.push_back(point);
  }
  if (!found.empty()) return found;
  for (const PaperExperiment& experiment : paper.experiments) known.push_back(experiment.name);
  throw InputError(fmt::format("paper {} has no point '{}'", paper.name, name),
                   "write EXPERIMENT, EXPERIMENT/SYSTEM or EXPERIMENT/SYSTEM/VALUE; " +
                       unknown_name_hint(name, known));
}

std::optional<PointId> counted_elsewhere(const Paper& paper, const PointId& point) {
  const PaperSystem& system = system_of(paper, point);
  if (system.same_run_as.empty()) return {};
  const std::string& name = system.same_run_as[point.value];
  if (name == nothing) return {};
  const std::vector<PointId> found = points_named(paper, name);
  if (found.size() != 1)
    throw InputError(fmt::format("paper {}: same_run_as '{}' is not one point", paper.name, name),
                     "write EXPERIMENT/SYSTEM/VALUE");
  return found.front();
}

bool counts(const Paper& paper, const PointId& point) {
  return paper.experiments[point.experiment].apart.empty() && !counted_elsewhere(paper, point);
}

void check_points(const Paper& paper) {
  for (const PointId& point : published_points(paper)) {
    const std::optional<PointId> other = counted_elsewhere(paper, point);
    if (other && counted_elsewhere(paper, *other))
      throw InputError(fmt::format("paper {}: {} is the same run as {}, which another point counts "
                                   "in place of",
                                   paper.name, point_name(paper, point), point_name(paper, *other)),
                       "name the point that counts");
  }
}

std::vector<PointId> points_seen(const Paper& paper, const PaperConstant& constant) {
  std::vector<PointId> points;
  for (const std::string& name : constant.seen) {
    if (is_ratio(paper, name)) continue;
    for (const PointId& point : points_named(paper, name)) {
      const PointId counted = counted_elsewhere(paper, point).value_or(point);
      if (std::find(points.begin(), points.end(), counted) == points.end())
        points.push_back(counted);
    }
  }
  return points;
}

std::size_t seen_count(const Paper& paper, const PaperConstant& constant) {
  const auto ratios = std::count_if(constant.seen.begin(), constant.seen.end(),
                                    [&](const std::string& name) { return is_ratio(paper, name); });
  return points_seen(paper, constant).size() + static_cast<std::size_t>(ratios);
}

bool is_chosen(const Paper& paper, const PointId& point) {
  const auto moves = [&](const std::string& name) {
    const std::vector<PointId> points = points_named(paper, name);
    return std::find(points.begin(), points.end(), point) != points.end();
  };
  return std::any_of(paper.constants_chosen.begin(), paper.constants_chosen.end(),
                     [&](const PaperConstant& constant) {
                       return std::any_of(constant.moves.begin(), constant.moves.end(), moves);
                     });
}

SettingLists split_settings(const std::vector<std::string>& settings) {
  static const std::string prefix = "model.";
  SettingLists all;
  for (const std::string& setting : settings) {
    if (setting.rfind(prefix, 0) == 0)
      all.model.push_back(setting.substr(prefix.size()));
    else
      all.machine.push_back(setting);
  }
  return all;
}

PointProblem problem_at(const Paper& paper, const PointId& point, const Tuning& tuning) {
  const PaperExperiment& experiment = paper.experiments[point.experiment];
  const PaperSystem& system = experiment.systems[point.system];
  AtAxis at;
  at.model = experiment.model;
  at.policy = system.policy;
  at.framework = framework_at(system, point.value);
  at.settings = experiment.settings;
  at.settings.insert(at.settings.end(), system.settings.begin(), system.settings.end());
  at.micro_batch = experiment.micro_batch;
  at.workload.batch = experiment.batch;
  at.workload.sequence = experiment.sequence;
  at.workload.ranks = experiment.ranks;
  at.workload.gradient = system.gradient;
  place_on_axis(experiment.axis, experiment.values[point.value], at);
  PointProblem one;
  one.policy = at.policy;
  one.problem.workload = at.workload;
  one.problem.workload.batch = whole_batch(experiment, at.workload);
  one.problem.workload.micro_batch =
      at.micro_batch > 0 ? at.micro_batch : one.problem.workload.rank_batch();
  one.problem.framework = tuned_framework(paper, tuning, at.framework);
  const SettingLists settings =
      split_settings(tuned_settings(paper, tuning, experiment.name, at.settings));
  one.problem.model = paper_model(paper, at.model, settings.model);
  one.problem.machine = tuned_machine(paper, tuning, settings.machine);
  take_rank_share(one.problem);
  return one;
}

namespace {

std::vector<std::string> pipeline_settings_at(const Paper& paper, const PointId& point,
                                              const Tuning& tuning = {}) {
  const PaperExperiment& experiment = paper.experiments[point.experiment];
  std::vector<std::string> settings = experiment.settings;
  const std::vector<std::string>& own = system_of(paper, point).settings;
  settings.insert(settings.end(), own.begin(), own.end());
  settings.push_back(experiment.axis + "=" + experiment.values[point.value]);
  return tuned_stage_settings(paper, tuning, settings);
}

}  // namespace

PipelineValue pipeline_value_at(const Paper& paper, const PointId& point, const Tuning& tuning) {
  return pipeline_value(paper.experiments[point.experiment].quantity,
                        system_of(paper, point).policy, pipeline_settings_at(paper, point, tuning));
}

std::string run_of(const Paper& paper, const PointId& point) {
  if (paper.experiments[point.experiment].of_pipelines)
    return fmt::format("{}\n{}\n{}", to_string(paper.experiments[point.experiment].quantity),
                       PipelineOrder(system_of(paper, point).policy).text(),
                       fmt::join(pipeline_settings_at(paper, point), "\n"));
  PointProblem one = problem_at(paper, point);
  one.problem.machine.sources.clear();
  const Workload& workload = one.problem.workload;
  return fmt::format("{}\n{}\n{} {} {} {} {}\n{}\n{}", canonical_policy(one.policy),
                     without_defaults(one.problem.framework), workload.batch, workload.micro_batch,
                     workload.sequence, workload.ranks, static_cast<int>(workload.gradient),
                     model_to_toml(one.problem.model), machine_to_toml(one.problem.machine));
}

double throughput_of(double tokens_per_second, const Problem& problem,
                     const PaperExperiment& experiment) {
  const auto ranks = static_cast<double>(problem.workload.ranks);
  const double tflops = tokens_per_second * experiment.flops_per_token * 1e-12;
  switch (experiment.quantity) {
    case Quantity::tokens_per_gpu_second:
      return tokens_per_second / ranks;
    case Quantity::tflops:
      return tflops;
    case Quantity::mfu:
      return tflops / ranks / experiment.peak_tflops;
    default:
      return tokens_per_second;
  }
}

double quantity_of(const SimulationResult& result, const Problem& problem,
                   const PaperExperiment& experiment) {
  switch (experiment.quantity) {
    case Quantity::step_seconds:
      return result.step_seconds;
    case Quantity::forward_seconds:
      return result.phases.forward;
    case Quantity::backward_seconds:
      return result.phases.backward;
    case Quantity::optimizer_seconds:
      return result.phases.optimizer;
    case Quantity::backward_optimizer_seconds:
      return result.phases.backward + result.phases.optimizer;
    case Quantity::tokens_per_second:
    case Quantity::tokens_per_gpu_second:
    case Quantity::tflops:
    case Quantity::mfu:
      return throughput_of(result.tokens_per_second, problem, experiment);
    case Quantity::seconds_per_micro_batch:
    case Quantity::wan_speed_up:
    case Quantity::prefill_utilization:
      break;  // pipeline_value_at()
  }
  SPILLWAY_ASSERT(false);
}

}  // namespace spillway
