#include "experiments/plan/hints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "base/units.hpp"
#include "experiments/plan/price.hpp"
#include "experiments/plan/tuned.hpp"
#include "policies/machine/memory_beside.hpp"

namespace spillway {

namespace {

constexpr std::size_t most_remedies = 5;

class Search {
 public:
  explicit Search(const FitQuestion& question) : question_(question), trials_(question) {}

  Remedies all() {
    const bool one_policy = question_.policies.size() == 1;
    stage(&Search::scan);
    stage(&Search::try_micro_batches);
    if (one_policy) stage(&Search::try_options);
    stage(&Search::try_without_durability);
    stage(&Search::try_sizes);
    if (remedies_.empty() && one_policy) stage(&Search::try_options_and_sizes);
    // Whatever the others took: another policy is the remedy most often.
    remedies_.cut_short = trials_.cut_short();
    trials_.begin();
    if (one_policy && question_.other_policies) stage(&Search::try_other_policies);
    remedies_.cut_short = remedies_.cut_short || trials_.cut_short();
    return std::move(remedies_);
  }

 private:
  void stage(void (Search::*look)()) {
    trials_.begin_remedy();
    (this->*look)();
  }

  bool durable() const { return question_.durability.on(); }
  std::optional<Need> trial(const Way& way) {
    return trials_.trial(question_.problem, way, durable());
  }
  bool fits(const Way& way) { return trials_.fits(question_.problem, way, durable()); }

  void add(std::vector<Setting> changes, std::string note = "") {
    if (!changes.empty()) remedies_.push_back({std::move(changes), std::move(note)});
  }
  // A micro-batch that was chosen is not named: it will be chosen again.
  void add_way(const Way& way, std::vector<Setting> changes, std::string note = "") {
    if (!question_.choose_micro_batch && way.micro_batch != question_.problem.workload.micro_batch)
      changes.push_back({"micro_batch", std::to_string(way.micro_batch)});
    add(std::move(changes), std::move(note));
  }

  std::vector<std::int64_t> micro_batches() const {
    const Workload& workload = question_.problem.workload;
    if (!question_.choose_micro_batch) return {workload.micro_batch};
    return divisors(workload.rank_batch());
  }
  static std::vector<std::int64_t> divisors(std::int64_t batch) {
    std::vector<std::int64_t> sizes = micro_batch_candidates(batch);
    if (sizes.back() != 1) sizes.push_back(1);
    return sizes;
  }

  // Every way the question allows, those first whose lack is least hard to mend.
  void scan() {
    for (const std::string& policy : question_.policies) {
      for (const std::int64_t micro_batch : micro_batches()) {
        const Way way{canonical_policy(policy), micro_batch};
        const std::optional<Need> found = trial(way);
        if (found) ways_.push_back({*found, way});
      }
    }
    if (const std::optional<Way>& searched = question_.searched) {
      if (const std::optional<Need> found = trial(*searched)) ways_.push_back({*found, *searched});
    }
    std::stable_sort(ways_.begin(), ways_.end(), [](const auto& a, const auto& b) {
      return a.first.difficulty() < b.first.difficulty();
    });
    // Of the others the one that is planned soonest, which can be verified where those cannot.
    constexpr std::size_t most = 3;
    if (ways_.size() <= most) return;
    const auto soonest = std::max_element(
        ways_.begin() + most, ways_.end(),
        [](const auto& a, const auto& b) { return a.second.micro_batch < b.second.micro_batch; });
    std::iter_swap(ways_.begin() + most, soonest);
    ways_.resize(most + 1);
  }

  void try_micro_batches() {
    if (question_.choose_micro_batch) return;
    const Workload& workload = question_.problem.workload;
    std::vector<std::int64_t> sizes = divisors(workload.rank_batch());
    // The largest of the smaller ones, then the smallest of the larger ones.
    const auto larger = std::stable_partition(
        sizes.begin(), sizes.end(), [&](std::int64_t size) { return size < workload.micro_batch; });
    std::reverse(larger, sizes.end());
    for (const std::string& policy : question_.policies) {
      for (const std::int64_t size : sizes) {
        if (size == workload.micro_batch || !fits({policy, size})) continue;
        return add({{"micro_batch", std::to_string(size)}});
      }
    }
  }

  // The policy's own options: one that is enough, else as many as it takes.
  void try_options() {
    for (const auto& [need, way] : ways_) {
      const std::vector<OptionValue> helpful = helpful_options(need, way);
      if (helpful.empty()) continue;
      // Options left at auto are settled anew, unless that does not do.
      for (const std::string& base : {way.policy, need.settled}) {
        std::string changed = base;
        for (const auto& [option, value] : helpful)
          changed = with_policy_option(changed, option, value);
        if (fits({changed, way.micro_batch})) return add_way(way, {{"policy", changed}});
      }
    }
  }

  using OptionValue = std::pair<std::string, std::string>;

  // Frugal values of the options of a settled policy: one that makes it fit by itself, where there
  // is one, of several the one that is fastest; else those that each leave less lacking than the
  // ones before.
  std::vector<OptionValue> helpful_options(const Need& need, const Way& way) {
    std::vector<std::pair<double, OptionValue>> single;
    std::vector<OptionValue> enough;
    for (const PolicyOption& option : make_policy(need.settled)->info().options) {
      for (const std::string& value : option.frugal) {
        const std::optional<double> lacks = lacking_with(need.settled, {option.name, value}, way);
        if (!lacks || *lacks >= need.overshoot()) continue;
        if (*lacks == 0) {
          enough.push_back({option.name, value});
          break;  // further values of an option take less memory, and more time
        }
        single.push_back({*lacks, {option.name, value}});
      }
      if (!enough.empty() && takes_long(way)) break;
    }
    if (!enough.empty()) return {fastest(enough, need.settled, way)};
    std::stable_sort(single.begin(), single.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<OptionValue> all;
    std::string policy = need.settled;
    double least = need.overshoot();
    for (const auto& [ignored, change] : single) {
      const std::optional<double> lacks = lacking_with(policy, change, way);
      if (least == 0 || !lacks || *lacks >= least) continue;
      least = *lacks;
      policy = with_policy_option(policy, change.first, change.second);
      all.push_back(change);
    }
    return all;
  }

  // Whether it is not to be simulated for a hint.
  bool takes_long(const Way& way) const {
    constexpr std::int64_t most_visits = 10'000;
    const Problem& problem = question_.problem;
    return problem.model.layers * (problem.workload.rank_batch() / way.micro_batch) > most_visits;
  }
  OptionValue fastest(const std::vector<OptionValue>& values, const std::string& policy,
                      const Way& way) const {
    if (values.size() == 1) return values.front();
    Problem problem = question_.problem;
    problem.workload.micro_batch = way.micro_batch;
    if (question_.settle) question_.settle(problem);
    const OptionValue* best = &values.front();
    std::optional<double> least;
    for (const OptionValue& one : values) {
      try {
        const Price of = price(problem, with_policy_option(policy, one.first, one.second));
        if (!of.fits || (least && of.step_seconds >= *least)) continue;
        least = of.step_seconds;
        best = &one;
      } catch (const InputError&) {  // it was a trial of a few steps that fits
      }
    }
    return *best;
  }

  // What is still lacking with an option changed; nothing where that is no change, or not possible.
  std::optional<double> lacking_with(const std::string& policy, const OptionValue& change,
                                     const Way& way) {
    try {
      const std::string changed = with_policy_option(policy, change.first, change.second);
      if (changed == policy) return {};
      const std::optional<Need> found = trial({changed, way.micro_batch});
      return found ? std::optional(found->overshoot()) : std::nullopt;
    } catch (const InputError&) {
      return {};  // a value that does not go with another option
    }
  }

  void try_without_durability() {
    if (!durable()) return;
    for (const auto& [need, way] : ways_) {
      if (!trials_.fits(question_.problem, way, false)) continue;
      return add_way(way, {{"durability", "off"}}, "nothing can be resumed then");
    }
  }

  void try_other_policies() {
    const std::string base = question_.policies[0];
    const std::string name = base.substr(0, base.find(':'));
    for (const std::string& other : candidate_policies()) {
      if (other.substr(0, other.find(':')) == name) continue;
      for (const std::int64_t micro_batch : micro_batches()) {
        if (fits({other, micro_batch})) return add({{"policy", other}});
      }
    }
  }

  std::vector<Setting> size_changes(const Sizes& sizes) const {
    const Machine& machine = question_.problem.machine;
    const Sizes before = sizes_of(machine);
    std::vector<Setting> changes;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      if (sizes[t] == before[t]) continue;
      const std::uint64_t beside = t == 0   ? machine.gpu.workspaces
                                   : t == 1 ? memory_beside(question_.problem)
                                            : 0;
      const std::uint64_t needed = (sizes[t] + beside) * (t == 0 ? 1 : sharing());
      const bool is_exact = beside == 0 && needed == sizes[t];
      const Tier tier = static_cast<Tier>(t);
      const std::string key = is_drives(tier)     ? drive_set_key(drive_set(tier), "capacity")
                              : tier == Tier::gpu ? "gpu.memory"
                                                  : "host.memory";
      changes.push_back({key, size_setting(is_exact ? needed : round_size(needed, true))});
    }
    if (sizes[2] != before[2] && machine.ssd.count == 0) {
      changes.push_back({"ssd.count", "1"});
      changes.push_back({"ssd.read", "2GB/s"});
      changes.push_back({"ssd.write", "2GB/s"});
    }
    return changes;
  }

  // Of several ranks of a computer each has an equal part of host memory and drives, which is what
  // the question's machine says; settings are of the computer.
  std::uint64_t sharing() const {
    return static_cast<std::uint64_t>(question_.problem.machine.cluster.sharing);
  }

  void try_sizes() {
    std::optional<Sizes> least;
    const Way* with = nullptr;
    const Sizes before = sizes_of(question_.problem.machine);
    const auto growth = [&](const Sizes& sizes) {
      double sum = 0;
      for (std::size_t t = 0; t < sizes.size(); ++t)
        sum += (sizes[t] == before[t] ? 0 : one_more_memory) +
               static_cast<double>(sizes[t]) / std::max(1.0, static_cast<double>(before[t]));
      return sum;
    };
    // Of each way by itself: one that is planned slowly is not to keep others from being looked at.
    for (const auto& [need, way] : ways_) {
      trials_.begin_remedy(4);
      const std::optional<Sizes> sizes = trials_.least_sizes(way);
      if (!sizes || (least && growth(*least) <= growth(*sizes))) continue;
      least = sizes;
      with = &way;
    }
    if (!least) return;
    // A search that finds no such plan with these sizes is told it.
    const bool is_told = is_searched(*with) && !finds(*least);
    add_sizes(*least, *with,
              is_told ? std::vector<Setting>{{"policy", with->policy}} : std::vector<Setting>{});
  }

  bool is_searched(const Way& way) const {
    return question_.searched && question_.searched->policy == way.policy;
  }

  // Whether the search that the question is of finds a plan with these sizes.
  bool finds(const Sizes& sizes) const {
    Problem there = question_.problem;
    set_sizes(there.machine, sizes);
    const EvaluateOne evaluate_one = [this](const Problem& problem, const std::string& policy,
                                            int steps) {
      Problem settled = problem;
      if (question_.settle) question_.settle(settled);
      return evaluate(settled, policy, steps);
    };
    return evaluate_candidates(there, question_.choose_micro_batch, {"spillway"},
                               {question_.durability, {}}, question_.steps, evaluate_one,
                               question_.settle)
        .chosen.has_value();
  }

  // Both, where neither is enough by itself.
  void try_options_and_sizes() {
    for (const auto& [need, way] : ways_) {
      Way changed = way;
      for (const auto& [option, value] : helpful_options(need, way))
        changed.policy = with_policy_option(changed.policy, option, value);
      const std::optional<Sizes> sizes = trials_.least_sizes(changed);
      if (sizes) return add_sizes(*sizes, changed, {{"policy", changed.policy}});
    }
  }

  void add_sizes(const Sizes& sizes, const Way& way, std::vector<Setting> changes) {
    const Machine::Host& host = question_.problem.machine.host;
    const bool more_host = sizes[1] > host.memory;
    std::string note;
    if (more_host && host.reserved > 0) {
      const double share = host.reserved_share;
      const std::uint64_t reserved =
          share > 0
              ? round_size(
                    static_cast<std::uint64_t>(static_cast<double>(sizes[1]) * share / (1 - share)),
                    true)
              : host.reserved;
      note = fmt::format("{} installed, of which host.reserved keeps {}",
                         size_setting(round_size((sizes[1] + reserved) * sharing(), true)),
                         size_setting(round_size(reserved * sharing(), true)));
    }
    const std::vector<Setting> more = size_changes(sizes);
    std::vector<Setting> with = changes;
    with.insert(with.end(), more.begin(), more.end());
    add_way(way, with, note);
    // Perhaps the reserve alone stands in the way.
    if (more.size() != 1 || !more_host || sizes[1] > host.memory + host.reserved) return;
    changes.push_back(
        {"host.reserved",
         size_setting(round_size((host.memory + host.reserved - sizes[1]) * sharing(), false))});
    add_way(way, changes, "if the system can do with so little");
  }

  const FitQuestion& question_;
  FitTrials trials_;
  std::vector<std::pair<Need, Way>> ways_;  // with what each needs
  Remedies remedies_;
};

}  // namespace

Remedies find_remedies(const FitQuestion& question) {
  Remedies remedies = Search(question).all();
  remedies.other_policies = question.other_policies;
  if (remedies.size() > most_remedies) remedies.resize(most_remedies);
  return remedies;
}

Message advice_of(const Remedies& remedies) {
  if (remedies.empty() && remedies.cut_short)
    return "nothing that was tried makes it fit, and what takes long to plan was not tried; "
           "`spillway fit` looks longer, for the least memory among others";
  if (remedies.empty())
    return remedies.other_policies
               ? "no other micro-batch, policy option, policy or size that was tried makes it fit"
               : "no other micro-batch, policy option or size that was tried makes it fit";
  Message text;
  for (const Remedy& remedy : remedies) {
    const bool is_first = text.empty();
    if (!is_first) text += "; or ";
    for (std::size_t i = 0; i < remedy.changes.size(); ++i)
      text += (i > 0 ? " " : "") + Message(remedy.changes[i]);
    if (is_first) text += " would make it fit";
    if (!remedy.note.empty()) text += fmt::format(" ({})", remedy.note);
  }
  return text;
}

const Candidate& nearest(const Candidates& candidates, const Durability& durability) {
  const Candidate* nearest = nullptr;
  double least = 0;
  for (const Candidate& candidate : candidates.all) {
    const Need need = need_of(candidate.evaluation.schedule, durability.on());
    if (nearest && need.difficulty() >= least) continue;
    nearest = &candidate;
    least = need.difficulty();
  }
  SPILLWAY_ASSERT(nearest != nullptr);
  return *nearest;
}

void fail_to_fit(const Candidates& candidates, const FitQuestion& question) {
  const Candidate& lacking = nearest(candidates, question.durability);
  try {
    require_fit(lacking);
  } catch (const FitError& error) {
    FitQuestion asked = question;
    const Schedule& schedule = lacking.evaluation.schedule;
    if (is_tuned(lacking.asked))
      asked.searched = {schedule.policy(), schedule.problem().workload.micro_batch};
    throw FitError(error.message() + untried_text(lacking.evaluation),
                   advice_of(find_remedies(asked)));
  }
  bug("a plan without a result fits", __FILE__, __LINE__);
}

}  // namespace spillway
