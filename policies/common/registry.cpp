// The built-in policies, and the schedules that they make.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "base/errors.hpp"
#include "base/units.hpp"
#include "policies/common/miniature.hpp"
#include "policies/common/policy.hpp"
#include "policies/common/spare_memory.hpp"
#include "policies/cost/costs.hpp"
#include "policies/cost/least_time.hpp"
#include "policies/framework/lay_over.hpp"
#include "policies/movement/residency.hpp"
#include "policies/movement/spare.hpp"

namespace spillway {

using Factory = std::unique_ptr<Policy> (*)();

#define SPILLWAY_POLICY(make)              \
  [] {                                     \
    extern std::unique_ptr<Policy> make(); \
    return make();                         \
  }

// One line for each policy: the function that its file defines.
constexpr Factory factories[] = {
    SPILLWAY_POLICY(make_resident),               // common/resident.cpp
    SPILLWAY_POLICY(make_zero_offload),           // zero/zero_offload.cpp
    SPILLWAY_POLICY(make_zero_infinity),          // zero/zero_infinity.cpp
    SPILLWAY_POLICY(make_deep_optimizer_states),  // deep_optimizer_states/deep_optimizer_states.cpp
    SPILLWAY_POLICY(make_fuyou),                  // fuyou/fuyou.cpp
    SPILLWAY_POLICY(make_greedysnake),            // greedysnake/greedysnake.cpp
    SPILLWAY_POLICY(make_spillway),               // spillway/spillway.cpp
};

namespace {

struct Parsed {
  Factory factory = nullptr;
  PolicyInfo info;
  PolicyOptions options;
};

// Every policy's.
const PolicyOption retention_option = {
    "retention",
    "never",
    "what memory that is left over keeps beyond its use, on the GPU and in host memory. never: "
    "nothing, as in the papers' programs | nearest: what is used soonest | slots(N): that, at most "
    "N tensors of a kind",
    {"never"},
    of_texts(RetentionByKindDomain{})};

PolicyInfo info_of(const Policy& policy) {
  PolicyInfo info = policy.info();
  info.options.push_back(retention_option);
  return info;
}

std::string names_of(const std::vector<PolicyOption>& options) {
  std::string names;
  for (const PolicyOption& option : options)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", option.name);
  return names.empty() ? "it has none" : names;
}

// What the option says of retention; nothing where it is not given: the policy's plan says it.
std::optional<RetentionByKind> retention_of(const Parsed& parsed) {
  const auto given = parsed.options.find(retention_option.name);
  if (given == parsed.options.end()) return std::nullopt;
  return parse_retention_by_kind(given->second);
}

void require_value(const PolicyInfo& info, const PolicyOption& option, const std::string& value) {
  if (option.domain.holds(value)) return;
  throw InputError(fmt::format("policy {}: option {}={} is not {}", info.name, option.name, value,
                               option.domain.values),
                   fmt::format("{}: {}", option.name, option.help));
}

Parsed parse(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  Parsed parsed;
  std::string known;
  for (const Factory factory : factories) {
    PolicyInfo info = info_of(*factory());
    known += fmt::format("{}{}", known.empty() ? "" : ", ", info.name);
    if (info.name == name) {
      parsed.factory = factory;
      parsed.info = std::move(info);
    }
  }
  if (!parsed.factory)
    throw InputError(fmt::format("unknown policy '{}'", name), "policies: " + known);
  if (colon == std::string::npos) return parsed;
  std::istringstream list(text.substr(colon + 1));
  for (std::string item; std::getline(list, item, ',');) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw InputError(fmt::format("policy {}: '{}' is not OPTION=VALUE", name, item),
                       "example: greedysnake:alpha=0.2,snake=off");
    }
    const std::string key = item.substr(0, equals);
    const auto is_key = [&](const PolicyOption& option) { return option.name == key; };
    const auto option =
        std::find_if(parsed.info.options.begin(), parsed.info.options.end(), is_key);
    if (option == parsed.info.options.end()) {
      throw InputError(fmt::format("policy {} has no option '{}'", name, key),
                       "its options: " + names_of(parsed.info.options));
    }
    const std::string value = item.substr(equals + 1);
    require_value(parsed.info, *option, value);
    if (!parsed.options.emplace(key, value).second) {
      throw InputError(fmt::format("policy {}: option '{}' is given twice", name, key),
                       "give it once");
    }
  }
  return parsed;
}

// Not `retention`, which is the registry's.
std::unique_ptr<Policy> policy_of(const Parsed& parsed) {
  std::unique_ptr<Policy> policy = parsed.factory();
  for (const auto& [option, value] : parsed.options) policy->set(option, value);
  return policy;
}

std::string to_text(const PolicyInfo& info, const PolicyOptions& options) {
  std::string text;
  for (const PolicyOption& option : info.options) {
    const auto it = options.find(option.name);
    if (it == options.end() || it->second == option.default_value) continue;
    text += fmt::format("{}{}={}", text.empty() ? ":" : ",", option.name, it->second);
  }
  return info.name + text;
}

}  // namespace

void Policy::step(Step& step) const { step.in_order_of_plan(); }

void Policy::declare(PolicyOption about, std::function<bool(const std::string&)> read) {
  info_.options.push_back(std::move(about));
  read_.push_back(std::move(read));
}

void Policy::set(const std::string& option, const std::string& value) {
  for (std::size_t k = 0; k < info_.options.size(); ++k) {
    if (info_.options[k].name != option) continue;
    require_value(info_, info_.options[k], value);
    read_[k](value);
  }
}

namespace {

// What a program is emitted with, besides its problem and policy.
struct EmitOptions {
  int steps = 1;
  std::optional<RetentionByKind> retention = {};  // instead of the plan's
  Recording recording = Recording::all;
  TierBytes spare{};  // for what retention keeps
  // Of a miniature: the problem whose plan it is, and the memory that its other layers take.
  const Problem* plan_of = nullptr;
  TierBytes others{};
};

OrderOfWork order_of_work(const Problem& problem, const Policy& policy, const Plan& plan,
                          int steps) {
  Step step(problem, plan);
  for (int s = 0; s < steps; ++s) {
    step.begin(s);
    policy.step(step);
    step.end();
  }
  return step.finish();
}

Program emit_bare(const Problem& problem, const Policy& policy, const EmitOptions& with) {
  policy.check(problem);
  const Problem& plan_of = with.plan_of ? *with.plan_of : problem;
  Plan plan = policy.plan(plan_of, Costs(plan_of));
  if (with.retention) plan.retention = *with.retention;
  check_plan(problem, plan);
  const OrderOfWork work = order_of_work(problem, policy, plan, with.steps);
  TierBytes kept{};
  if (with.spare != TierBytes{}) {
    PlanWithSpare more = with_spare(problem, plan, work, with.spare);
    plan = std::move(more.plan);
    kept[1] = more.kept_in_host;
  } else if (plan.spare_gpu_bytes == 0 && plan.spare_host_bytes == 0) {
    plan.retention = {};
  }
  Program program(problem, with.recording);
  for (const Tier tier : {Tier::gpu, Tier::host, Tier::ssd}) {
    const std::uint64_t others = with.others[static_cast<std::size_t>(tier)];
    if (others > 0) program.persistent(tier, others, BufferKind::parameters);
  }
  kept[0] = emit_work(program, plan, work);
  program.set_kept(kept);
  return program;
}

// With what the problem's framework adds, which takes a whole program to know.
Program emit(const Problem& problem, const Policy& policy, EmitOptions with) {
  if (problem.framework == own_framework) return emit_bare(problem, policy, with);
  const Framework framework = load_framework(problem.framework);
  const Recording recording = with.recording;
  with.recording = Recording::all;
  Program program = emit_bare(problem, policy, with);
  lay_over(program, framework, recording);
  return program;
}

Program emit(const Problem& problem, const Parsed& parsed, EmitOptions with) {
  with.retention = retention_of(parsed);
  return emit(problem, *policy_of(parsed), with);
}

// A schedule lists every task of every micro-batch: longer ones are refused before they are built.
// Building and simulating takes 240 to 320 bytes a task at its peak, and as much as 700 where
// retention=nearest has two whole programs at a time: 5 to 14 GB for the longest
// (policies/README.md).
constexpr double most_tasks_built = 20e6;

// The least divisor of `whole` that is at least `least`.
std::int64_t divisor_from(std::int64_t whole, std::int64_t least) {
  while (whole % least != 0) ++least;
  return least;
}

void require_length(const Problem& problem, int steps, double tasks) {
  if (steps < 1)
    throw InputError(fmt::format("a schedule of {} steps", steps), "it takes one step at least");
  if (tasks <= most_tasks_built) return;
  constexpr double bytes_per_task = 320;
  const Workload& workload = problem.workload;
  const double per_micro_batch = tasks / static_cast<double>(workload.micro_batches());
  const auto fewer = static_cast<std::int64_t>(most_tasks_built / per_micro_batch);
  throw InputError(
      fmt::format("{} micro-batches of {} through {} layers in {} steps make too long a schedule: "
                  "some {:.0f} million tasks, more than the {:.0f} million that are built; it and "
                  "its simulation would take about {} of memory",
                  workload.micro_batches(), workload.micro_batch, problem.model.layers, steps,
                  std::ceil(tasks / 1e6), most_tasks_built / 1e6,
                  format_bytes(tasks * bytes_per_task)),
      fewer < 1
          ? Message("fewer steps at a time, or fewer layers")
          : Message("a larger ") + Setting{"micro_batch"} +
                fmt::format(": {} or more",
                            divisor_from(workload.batch, (workload.batch + fewer - 1) / fewer)));
}

// A visit is one unit on one micro-batch; most policies make about 12 tasks of it.
double tasks_at_first_sight(const Problem& problem, int steps) {
  return 12.0 * static_cast<double>(problem.model.layers + 2) * steps *
         static_cast<double>(problem.workload.micro_batches());
}

// The tasks of the policy's schedule, from those of a few layers and micro-batches: they grow with
// both, and with the product.
double expected_tasks(const Problem& problem, const Parsed& parsed, int steps) {
  const std::int64_t micro_batches = problem.workload.micro_batches();
  const std::int64_t few = micro_batches > 1 ? 2 : 1;  // one alone may have narrower gradients
  const auto tasks = [&](std::int64_t layers, std::int64_t parts) {
    Problem small = problem;
    small.model.layers = layers;
    small.workload.batch = parts * problem.workload.micro_batch;
    return static_cast<double>(
        emit(small, parsed, {.steps = 1, .recording = Recording::lifetimes}).task_count());
  };
  const auto with_layers = [&](std::int64_t parts) {
    const double two = tasks(2, parts);
    return two + (tasks(4, parts) - two) / 2 * static_cast<double>(problem.model.layers - 2);
  };
  const double least = with_layers(few);
  if (micro_batches <= few) return steps * least;
  const double more = with_layers(few + 1) - least;
  return steps * (least + more * static_cast<double>(micro_batches - few));
}

bool fits(const Machine& machine, const TierBytes& bytes, Tier tier) {
  switch (tier) {
    case Tier::gpu:
      return bytes[0] <= machine.gpu.memory;
    case Tier::host:
      return bytes[1] <= machine.host.memory;
    case Tier::ssd:
      return bytes[2] <= machine.ssd.capacity;
  }
  SPILLWAY_ASSERT(false);
}

// What is kept may hold up what is not: `keeps` only where its least time is shorter than that of
// `plain`, by more than tasks that share a memory or a drive mostly slow each other. A heuristic:
// bounds are compared, not times.
Schedule sooner(Schedule plain, Schedule keeps) {
  constexpr double at_most = 0.9998;
  try {
    return least_seconds(keeps) < at_most * least_seconds(plain) ? std::move(keeps)
                                                                 : std::move(plain);
  } catch (const InputError&) {  // the machine file has no rates
    return keeps;
  }
}

// Settles the options that are left at auto.
class Settler {
 public:
  virtual ~Settler() = default;
  Settler(const Problem& problem, const Parsed& parsed, int steps)
      : problem_(problem),
        parsed_(parsed),
        steps_(steps),
        alternatives_(policy_of(parsed)->placements(problem)),
        last_(alternatives_.size() - 1) {}

  Schedule build() {
    // Ordinary schedules are far from too long.
    if (problem_.model.layers > 4 && tasks_at_first_sight(problem_, steps_) > most_tasks_built / 20)
      require_length(problem_, steps_,
                     std::max(expected_tasks(problem_, with(0), steps_),
                              expected_tasks(problem_, with(last_), steps_)));
    const std::size_t chosen = choose();
    Program program = std::move(*program_);
    std::optional<Program> more;
    if (keeps_any(chosen))
      more = use_spare_memory(program, problem_.machine,
                              [&](const TierBytes& spare) { return full(chosen, spare); });
    const std::string policy = to_text(parsed_.info, with(chosen).options);
    const std::uint64_t trials = tasks_tried_ - program.task_count();
    Schedule plain = std::move(program).finish(policy, steps_, trials);
    if (!more) return plain;
    const std::uint64_t more_trials = tasks_tried_ - more->task_count();
    return sooner(std::move(plain), std::move(*more).finish(policy, steps_, more_trials));
  }

  // The alternative that is taken.
  std::size_t choose() {
    // Most often the gaps between buffers do not matter; trials go on only where they do.
    std::size_t chosen = first_that_may_fit({Tier::gpu, Tier::host});
    TierBytes extent = whole_extent(chosen);
    while (chosen < last_ && !fit(extent, {Tier::gpu, Tier::host})) {
      chosen = first_that_fits(after(chosen), {Tier::gpu, Tier::host});
      extent = whole_extent(chosen);
    }
    if (last_ == 0 || fit(extent, {Tier::gpu})) return chosen;
    // No alternative fits the GPU: no reason to use more of the ssd than host memory asks for.
    const std::size_t instead = first_that_fits(first_that_may_fit({Tier::host}), {Tier::host});
    std::optional<Program> first = std::move(program_);
    if (whole_extent(instead)[0] <= extent[0]) return instead;
    program_ = std::move(first);
    return chosen;
  }
  std::size_t alternatives() const { return alternatives_.size(); }
  Parsed with(std::size_t k) const {
    Parsed one = parsed_;
    for (const auto& [key, value] : alternatives_[k]) one.options[key] = value;
    return one;
  }

 protected:
  using Tiers = std::initializer_list<Tier>;

  virtual bool fit(const TierBytes& bytes, Tiers tiers) {
    return std::all_of(tiers.begin(), tiers.end(),
                       [&](Tier tier) { return fits(problem_.machine, bytes, tier); });
  }
  // Most bytes live at once, in a trial.
  virtual TierBytes live_in_trial(std::size_t k) {
    return trial(k, Recording::lifetimes).live_peaks();
  }
  // With the gaps between buffers.
  virtual TierBytes trial_extent(std::size_t k) {
    return trial(k, Recording::all).plan_memory().extent;
  }
  virtual TierBytes whole_extent(std::size_t k) {
    program_ = full(k);
    return program_->plan_memory().extent;
  }

  const Problem& problem_;
  const Parsed& parsed_;
  int steps_;

 private:
  bool keeps_any(std::size_t k) const {
    const Parsed parsed = with(k);
    const auto given = retention_of(parsed);
    if (given) return given->keeps_any();
    return policy_of(parsed)->plan(problem_, Costs(problem_)).retention.keeps_any();
  }
  Program full(std::size_t k, const TierBytes& spare = {}) {
    Program program = emit(problem_, with(k), {.steps = steps_, .spare = spare});
    tasks_tried_ += program.task_count();
    return program;
  }
  // A trial of two steps and the epilogue is close to the peaks of longer schedules.
  Program trial(std::size_t k, Recording recording) {
    Program program =
        emit(problem_, with(k), {.steps = std::min(steps_, 2), .recording = recording});
    tasks_tried_ += program.task_count();
    return program;
  }
  const TierBytes& live(std::size_t k) {
    const auto [entry, is_new] = live_.try_emplace(k);
    if (is_new) entry->second = live_in_trial(k);
    return entry->second;
  }

  // The first alternative whose live bytes fit `tiers`; the last one if none does. From one to the
  // next fewer bytes are live in memory and more on the ssd, so that bisection finds it (if the ssd
  // is too small for it, it is for all that come after). Most often it is the very first.
  std::size_t first_that_may_fit(Tiers tiers) {
    if (last_ == 0 || fit(live(0), tiers)) return 0;
    std::size_t from = 1, to = last_;
    while (from < to) {
      const std::size_t middle = (from + to) / 2;
      if (fit(live(middle), tiers)) {
        to = middle;
      } else {
        from = middle + 1;
      }
    }
    return from;
  }
  // Gaps between buffers come on top, more of them in one alternative than in another: the first
  // one at or after `from` whose placed buffers fit in a trial. Of schedules so long that trying
  // one by one takes seconds, half of what is left is passed over at a time.
  std::size_t first_that_fits(std::size_t from, Tiers tiers) {
    while (from < last_ && !fit(trial_extent(from), tiers)) from = after(from);
    return from;
  }
  std::size_t after(std::size_t k) const {
    constexpr std::uint64_t most_tasks_tried = 4'000'000;
    return k + (tasks_tried_ < most_tasks_tried ? 1 : (last_ - k + 1) / 2);
  }

  std::vector<PolicyOptions> alternatives_;
  std::size_t last_;
  std::optional<Program> program_;         // of the last whole_extent()
  std::map<std::size_t, TierBytes> live_;  // of trials, by alternative
  std::uint64_t tasks_tried_ = 0;
};

Problem of_layers(Problem problem, std::int64_t layers) {
  problem.model.layers = layers;
  return problem;
}

// What the layers beyond the first `few` take of memory, where each takes as much as those between
// `one` and `two` layers, whose schedules have these live bytes.
struct LiveLine {
  std::int64_t one = 0, two = 0;
  TierBytes of_one{}, of_two{};
  TierBytes beyond(std::int64_t few, std::int64_t layers) const {
    TierBytes bytes{};
    for (std::size_t tier = 0; tier < bytes.size(); ++tier)
      bytes[tier] = (std::max(of_one[tier], of_two[tier]) - of_one[tier]) /
                    static_cast<std::uint64_t>(two - one) *
                    static_cast<std::uint64_t>(layers - few);
    return bytes;
  }
};

// By what miniatures say of the memory that an alternative takes.
class SettlerByMiniatures : public Settler {
 public:
  SettlerByMiniatures(const Problem& problem, const Parsed& parsed, int steps, int period)
      : Settler(problem, parsed, steps), period_(period) {}

  // Whether something was so close to a limit of memory that miniatures do not tell.
  bool is_close() const { return is_close_; }
  const LiveLine& line(std::size_t k) {
    const std::int64_t layers = problem_.model.layers;
    const auto [entry, is_new] = lines_.try_emplace(k);
    LiveLine& line = entry->second;
    if (!is_new) return line;
    line.one = miniature_layers(layers, period_, 0);
    line.two = miniature_layers(layers, period_, 1);
    line.of_one = live_of(k, line.one);
    line.of_two = live_of(k, line.two);
    return line;
  }

 protected:
  TierBytes live_in_trial(std::size_t k) override {
    const LiveLine& of = line(k);
    TierBytes bytes = of.beyond(of.two, problem_.model.layers);
    for (std::size_t tier = 0; tier < bytes.size(); ++tier) bytes[tier] += of.of_two[tier];
    note_close(bytes);
    return bytes;
  }
  TierBytes trial_extent(std::size_t k) override { return extent(k, std::min(steps_, 2)); }
  TierBytes whole_extent(std::size_t k) override { return extent(k, std::min(steps_, 3)); }

 private:
  TierBytes live_of(std::size_t k, std::int64_t few) {
    return emit(of_layers(problem_, few), with(k),
                {.steps = std::min(steps_, 2),
                 .recording = Recording::lifetimes,
                 .plan_of = &problem_})
        .live_peaks();
  }
  TierBytes extent(std::size_t k, int steps) {
    const LiveLine& of = line(k);
    Program program = emit(
        of_layers(problem_, of.two), with(k),
        {.steps = steps, .plan_of = &problem_, .others = of.beyond(of.two, problem_.model.layers)});
    note_close(program.plan_memory().extent);
    return program.plan_memory().extent;
  }
  void note_close(const TierBytes& bytes) {
    constexpr double close = 1e-3;
    const TierBytes capacity = capacities(problem_.machine);
    for (std::size_t tier = 0; tier < 2; ++tier) {
      const auto most = static_cast<double>(capacity[tier]);
      if (std::abs(static_cast<double>(bytes[tier]) - most) < close * most) is_close_ = true;
    }
  }
  int period_;
  std::map<std::size_t, LiveLine> lines_;  // by alternative
  bool is_close_ = false;
};

}  // namespace

std::optional<Miniatures> find_miniatures(const Problem& problem, const std::string& policy,
                                          int steps) {
  Parsed parsed = parse(policy);
  problem.validate();
  if (problem.framework != own_framework ||
      retention_of(parsed).value_or(RetentionByKind{}).keeps_any())
    return std::nullopt;
  Miniatures found;
  // Whether layers repeat; sets what is found of it.
  const auto repeats = [&](const Parsed& with) {
    const std::unique_ptr<Policy> object = policy_of(with);
    object->check(problem);
    const Plan plan = object->plan(problem, Costs(problem));
    check_plan(problem, plan);
    constexpr std::int64_t few = 4;
    const OrderOfWork work = order_of_work(of_layers(problem, few), *object, plan, 1);
    const std::optional<int> period = layer_period(problem, plan, work);
    found.period = period.value_or(1);
    found.in_rows = has_rows(work) || problem.workload.micro_batches() == 1;
    return period.has_value();
  };
  if (!repeats(parsed)) return std::nullopt;
  SettlerByMiniatures settler(problem, parsed, steps, found.period);
  const std::size_t chosen = settler.alternatives() > 1 ? settler.choose() : 0;
  const Parsed settled = settler.with(chosen);
  if (settler.is_close() || (settler.alternatives() > 1 && !repeats(settled))) return std::nullopt;
  found.policy = to_text(settled.info, settled.options);
  const std::int64_t layers = problem.model.layers;
  found.per_layer = settler.line(chosen).beyond(layers - 1, layers);
  return found;
}

Schedule build_miniature(const Problem& problem, const Miniatures& miniatures, std::int64_t layers,
                         int steps) {
  TierBytes others = miniatures.per_layer;
  for (std::uint64_t& bytes : others)
    bytes *= static_cast<std::uint64_t>(problem.model.layers - layers);
  return emit(of_layers(problem, layers), parse(miniatures.policy),
              {.steps = steps, .plan_of = &problem, .others = others})
      .finish(miniatures.policy, steps);
}

std::vector<PolicyInfo> builtin_policies() {
  std::vector<PolicyInfo> all;
  for (const Factory factory : factories) all.push_back(info_of(*factory()));
  return all;
}

std::unique_ptr<Policy> make_policy(const std::string& text) { return policy_of(parse(text)); }

std::string canonical_policy(const std::string& text) {
  const Parsed parsed = parse(text);
  return to_text(parsed.info, parsed.options);
}

std::string with_policy_option(const std::string& text, const std::string& option,
                               const std::string& value) {
  Parsed parsed = parse(text);
  parsed.options[option] = value;
  policy_of(parsed);  // rejects bad values
  return to_text(parsed.info, parsed.options);
}

Schedule build_schedule(const Problem& problem, const std::string& policy, int steps) {
  const Parsed parsed = parse(policy);
  problem.validate();
  require_length(problem, steps, tasks_at_first_sight(problem, steps));
  return Settler(problem, parsed, steps).build();
}

Schedule build_schedule(const Problem& problem, Policy& policy, int steps) {
  problem.validate();
  require_length(problem, steps, tasks_at_first_sight(problem, steps));
  return emit(problem, policy, {.steps = steps}).finish(policy.info().name, steps);
}

}  // namespace spillway
