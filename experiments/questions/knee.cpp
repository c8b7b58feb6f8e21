#include "experiments/questions/knee.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <mutex>
#include <sstream>

#include "base/errors.hpp"
#include "base/suggest.hpp"
#include "base/units.hpp"
#include "experiments/plan/in_parallel.hpp"
#include "experiments/plan/machine_changes.hpp"
#include "experiments/plan/tuned.hpp"
#include "experiments/questions/robustness.hpp"

namespace spillway {

namespace {

// How values of a resource are written, and where they are set.
enum class Kind { drives, host_memory, gpu_memory, link, rate };

struct KneeResource {
  std::string name;
  Kind kind;
  int set = 0;  // of drives
};

std::vector<KneeResource> all_resources() {
  std::vector<KneeResource> all;
  for (int set = 0; set < most_drive_sets; ++set)
    all.push_back({drive_set_key(set, "count"), Kind::drives, set});
  all.insert(all.end(), {{"host.memory", Kind::host_memory},
                         {"gpu.memory", Kind::gpu_memory},
                         {"pcie", Kind::link},
                         {"gpu", Kind::rate},
                         {"cpu", Kind::rate},
                         {"dram", Kind::rate}});
  return all;
}
const std::vector<KneeResource> resources = all_resources();

const KneeResource& resource_named(const std::string& name) {
  for (const KneeResource& one : resources) {
    if (one.name == name) return one;
  }
  throw InputError(Setting{"resource", name} + ": there is no such resource",
                   unknown_name_hint(name, knee_resources()));
}

bool is_size(Kind kind) { return kind == Kind::host_memory || kind == Kind::gpu_memory; }

constexpr double gibi = 1024.0 * 1024 * 1024;

// A curve is known to be level only where so many times the value of its knee was tried.
constexpr double least_beyond = 1.25;

// In units of the resource: drives, bytes, times the rate that there is.
double parse_value(const KneeResource& resource, const std::string& text) {
  if (is_size(resource.kind)) return static_cast<double>(parse_bytes(text));
  const bool has_x = !text.empty() && text.back() == 'x' && resource.kind != Kind::drives;
  const char* const end = text.data() + text.size() - (has_x ? 1 : 0);
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const bool is_number = error == std::errc() && rest == end;
  if (resource.kind == Kind::drives) {
    if (is_number && value >= 1 && value <= 10'000 && value == static_cast<int>(value))
      return value;
    throw InputError(
        Setting{"resource", fmt::format("{}={}", resource.name, text)} + ": no number of drives",
        "whole numbers from 1 on: " + Setting{"resource", resource.name + "=1,2,4"});
  }
  if (is_number && value >= 0.01 && value <= 100) return value;
  throw InputError(Setting{"resource", fmt::format("{}={}", resource.name, text)} +
                       ": no multiple of the rate that the machine has, from 0.01 to 100",
                   "examples: " + Setting{"resource", fmt::format("{}=0.5,1,2", resource.name)});
}

std::string value_text(Kind kind, double value) {
  if (kind == Kind::drives) return fmt::format("{:.0f}", value);
  // Modules of memory are sold in powers of 1024.
  if (kind == Kind::host_memory && value >= gibi && std::fmod(value, gibi) == 0)
    return fmt::format("{:g} GiB", value / gibi);
  if (is_size(kind)) return fmt::format("{:g} GB", value / 1e9);
  return fmt::format("{:g}x", value);
}

double installed(const Machine::Host& host, std::int64_t sharing) {
  return static_cast<double>(host.memory + host.reserved + host.beside) *
         static_cast<double>(sharing);
}

double value_now(const ProblemRequest& request, const Machine& machine,
                 const KneeResource& resource) {
  switch (resource.kind) {
    case Kind::drives:
      return static_cast<double>(machine.drives(resource.set).count);
    case Kind::host_memory:
      return request.host_memory.empty() ? installed(machine.host, machine.cluster.sharing)
                                         : static_cast<double>(parse_bytes(request.host_memory));
    case Kind::gpu_memory:
      return request.gpu_memory.empty()
                 ? static_cast<double>(machine.gpu.memory + machine.gpu.context)
                 : static_cast<double>(parse_bytes(request.gpu_memory));
    case Kind::link:
    case Kind::rate:
      break;
  }
  return 1;
}

// Whether more drives mean more bandwidth in proportion: the machine has no table of them, or the
// bandwidths are set by hand.
bool in_proportion(const ProblemRequest& request, const Machine& machine, int set) {
  if (machine.drives(set).by_count.empty()) return true;
  return std::any_of(request.overrides.begin(), request.overrides.end(), [&](const auto& one) {
    const std::string key = one.substr(0, one.find('='));
    return key == drive_set_key(set, "read") || key == drive_set_key(set, "write") ||
           key == drive_set_key(set, "total");
  });
}

// Every number up to 32, then fewer; up to the last of the machine's table, or to what there is.
std::vector<double> usual_drives(const ProblemRequest& request, const Machine& machine, int set) {
  const Machine::Ssd& ssd = machine.drives(set);
  const std::int64_t now = ssd.count;
  const std::int64_t most = in_proportion(request, machine, set)
                                ? std::max<std::int64_t>(2 * now, 8)
                                : std::max(ssd.by_count.rbegin()->first, now);
  std::vector<double> values;
  for (std::int64_t count = 1; count <= most; count += count < 32 ? 1 : count / 4)
    values.push_back(static_cast<double>(count));
  values.push_back(static_cast<double>(most));
  return values;
}

// Sizes that are sold, from an eighth of what there is to four times as much: of hosts in GiB; of
// cards the GB that programs see, but for the size that is nearly what there is.
std::vector<double> usual_sizes(Kind kind, double now) {
  static const std::vector<double> of_hosts = {4,   8,   16,  32,  48,   64,   96,   128,  192,
                                               256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096};
  static const std::vector<double> of_gpus = {4,  6,  8,  12, 16, 24,  32,
                                              40, 48, 64, 80, 96, 141, 192};
  std::vector<double> values;
  for (const double size : kind == Kind::host_memory ? of_hosts : of_gpus) {
    const double bytes = size * (kind == Kind::host_memory ? gibi : 1e9);
    const bool is_nearly_now = std::abs(bytes / now - 1) < 0.05;
    if (bytes >= now / 8 && bytes <= now * 4 && !is_nearly_now) values.push_back(bytes);
  }
  // Machines for tests are smaller than any that is sold.
  if (values.size() < 3) {
    for (const double share : {0.25, 0.5, 0.75, 1.5, 2.0, 4.0})
      values.push_back(static_cast<double>(static_cast<std::uint64_t>(share * now)));
  }
  return values;
}

std::vector<double> values_of(const KneeRange& range, const KneeResource& resource,
                              const ProblemRequest& request, const Machine& machine, double now) {
  std::vector<double> values;
  for (const std::string& text : range.values) values.push_back(parse_value(resource, text));
  if (values.empty()) {
    if (resource.kind == Kind::drives) {
      values = usual_drives(request, machine, resource.set);
    } else if (is_size(resource.kind)) {
      values = usual_sizes(resource.kind, now);
    } else {
      values = {0.25, 0.5, 0.75, 1.25, 1.5, 2, 3, 4};
    }
  }
  values.push_back(now);
  std::sort(values.begin(), values.end());
  // Two sizes that are written alike are one.
  const auto alike = [&](double a, double b) {
    return value_text(resource.kind, a) == value_text(resource.kind, b);
  };
  std::vector<double> distinct;
  for (const double value : values) {
    if (distinct.empty() || !alike(distinct.back(), value)) {
      distinct.push_back(value);
    } else if (value == now) {
      distinct.back() = now;
    }
  }
  return distinct;
}

std::string why_not_there(const KneeResource& resource, const Machine& machine) {
  if (resource.kind == Kind::drives && machine.drives(resource.set).count == 0)
    return resource.set == 0 ? "the machine file describes no drives"
                             : fmt::format("the machine file describes no set of drives {}",
                                           drive_set_name(resource.set));
  if (resource.kind == Kind::rate && resource.name == "cpu" &&
      machine.host.adam_params_per_second == 0)
    return "the machine file does not say how fast its CPU updates parameters";
  return "";
}

// In few digits, where these are all of it.
std::string exact_size(double value) {
  const auto bytes = static_cast<std::uint64_t>(value);
  const std::string text = size_setting(bytes);
  return parse_bytes(text) == bytes ? text : fmt::format("{}B", bytes);
}

std::vector<Setting> changes_of(const KneeResource& resource, const ProblemRequest& request,
                                const Machine& machine, double value) {
  switch (resource.kind) {
    case Kind::drives:
      return drive_settings(machine, resource.set, static_cast<std::int64_t>(value),
                            in_proportion(request, machine, resource.set));
    case Kind::host_memory:
      return {{"host.memory", exact_size(value)}};
    case Kind::gpu_memory:
      return {{"gpu.memory", exact_size(value)}};
    case Kind::link:
      return link_settings(machine, value);
    case Kind::rate:
      break;
  }
  return {};
}

// The problem on the machine of a point. A limit that is set by hand is what is varied where there
// is one, not the size of the machine's memory.
Problem problem_at(const ProblemRequest& request, const KneeResource& resource,
                   const KneePoint& point) {
  ProblemRequest changed = request;
  const std::string size = fmt::format("{:.0f}B", point.value);
  if (resource.kind == Kind::host_memory && !request.host_memory.empty()) {
    changed.host_memory = size;
  } else if (resource.kind == Kind::gpu_memory && !request.gpu_memory.empty()) {
    changed.gpu_memory = size;
  } else {
    changed.overrides.insert(changed.overrides.end(), point.set.begin(), point.set.end());
  }
  Problem problem = changed.problem();
  if (resource.kind == Kind::rate) {
    problem.machine = with_scaled_rate(std::move(problem.machine), resource.name, point.value);
    problem.overrides.push_back(fmt::format("{} x {:g}", resource.name, point.value));
  }
  return problem;
}

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

std::vector<std::string> knee_resources() {
  std::vector<std::string> names;
  for (const KneeResource& one : resources) names.push_back(one.name);
  return names;
}

std::vector<std::string> usual_knee_resources() {
  return {"ssd.count", "host.memory", "gpu.memory", "pcie"};
}

KneeRange parse_knee_range(const std::string& text) {
  const std::size_t equals = text.find('=');
  KneeRange range{text.substr(0, equals), {}};
  const KneeResource& resource = resource_named(range.resource);
  if (equals == std::string::npos) return range;
  std::istringstream list(text.substr(equals + 1));
  for (std::string value; std::getline(list, value, ',');) {
    parse_value(resource, value);
    range.values.push_back(value);
  }
  if (range.values.empty())
    throw InputError(Setting{"resource", text} + ": it has no values",
                     "write values after the sign, with commas, or leave the sign out");
  return range;
}

std::vector<KneeRange> parse_knee_ranges(const std::vector<std::string>& texts) {
  std::vector<KneeRange> ranges;
  for (const std::string& text : texts.empty() ? usual_knee_resources() : texts) {
    KneeRange range = parse_knee_range(text);
    for (const KneeRange& other : ranges) {
      if (other.resource == range.resource)
        throw InputError(Setting{"resource", range.resource} + ": it is named twice",
                         "name it once, with all values");
    }
    ranges.push_back(std::move(range));
  }
  return ranges;
}

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
      if (resource.kind == Kind::drives) {
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
