#include "experiments/tune/search.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "experiments/plan/evaluate.hpp"
#include "experiments/tune/seeds.hpp"

namespace spillway {

namespace {

constexpr std::size_t jobs_of_round = 8;
constexpr double prune_margin = 1e-6;
// A climb goes on while a move gains so much of the step time.
constexpr double least_gain = 2e-5;

}  // namespace

PlanSearch::PlanSearch(Pricer& pricer, SearchLimits limits, std::vector<BoundCase> cases)
    : pricer_(pricer), limits_(std::move(limits)), cases_(std::move(cases)), random_(limits_.seed) {
  for (const std::int64_t micro_batch : micro_batches())
    spaces_.try_emplace(micro_batch, pricer_.problem_with(micro_batch));
}

std::vector<std::int64_t> PlanSearch::micro_batches() const {
  const Workload& workload = pricer_.problem().workload;
  if (!limits_.choose_micro_batch) return {workload.micro_batch};
  std::vector<std::int64_t> sizes = micro_batch_candidates(workload.rank_batch());
  for (const BoundCase& one : cases_) {
    if (std::find(sizes.begin(), sizes.end(), one.micro_batch) == sizes.end())
      sizes.push_back(one.micro_batch);
  }
  return sizes;
}

const PlanSpace& PlanSearch::space_of(std::int64_t micro_batch) const {
  return spaces_.at(micro_batch);
}

bool PlanSearch::may_go_on() { return has_effort() && !is_proven(); }

bool PlanSearch::has_effort() {
  if (prices_published_) return !pricer_.is_stopped() && pricer_.tasks() < limits_.published_tasks;
  return !pricer_.is_stopped() && pricer_.explored() < limits_.effort + published_ &&
         pricer_.tasks() - tasks_of_published_ < limits_.tasks;
}

void PlanSearch::round(const Jobs& jobs) {
  pricer_.run(jobs);
  if (!limits_.progress) return;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began_;
  limits_.progress(
      {pricer_.explored(), limits_.effort + published_, seconds.count(), best_seconds_});
}

void PlanSearch::note(const TrialPrice& price) {
  if (price.fits && (!best_seconds_ || price.step_seconds < *best_seconds_))
    best_seconds_ = price.step_seconds;
}

void PlanSearch::price_all(const std::vector<Trial>& trials) {
  for (std::size_t first = 0; first < trials.size() && has_effort(); first += jobs_of_round) {
    const std::size_t end = std::min(trials.size(), first + jobs_of_round);
    std::vector<TrialPrice> prices(end - first);
    Jobs jobs;
    for (std::size_t k = first; k < end; ++k)
      jobs.push_back([&, k, first] { prices[k - first] = pricer_.price(trials[k]); });
    round(jobs);
    for (std::size_t k = first; k < end; ++k) note(prices[k - first]);
  }
}

bool PlanSearch::is_proven() const { return !cases_.empty() && is_pruned(cases_.front().seconds); }

bool PlanSearch::is_pruned(double bound) const {
  return best_seconds_ && bound >= *best_seconds_ * (1 - prune_margin);
}

double PlanSearch::bound_of(std::int64_t micro_batch) const {
  for (const BoundCase& one : cases_) {
    if (one.micro_batch == micro_batch) return one.seconds;  // least first
  }
  return 0;
}

void PlanSearch::run() {
  price_published();
  tasks_of_published_ = pricer_.tasks();
  try_cases();
  try_other_seeds();
  price_variants();
  if (!best_seconds_) make_room();
  std::vector<Settled> climbed = starts();
  const auto climb_all = [&](std::size_t count, const Climb& how, std::uint64_t parts) {
    const std::uint64_t effort = left() / parts;
    if (climbed.size() > count) climbed.resize(count);
    for (Settled& start : climbed) start = climb(std::move(start), how, effort);
    std::stable_sort(climbed.begin(), climbed.end(),
                     [](const Settled& a, const Settled& b) { return a.better_than(b); });
  };
  // A tenth of what is left for each start, by the moves that matter most; then a third for the
  // best two, and all for the best of all.
  climb_all(4, {.first_step = 0.25, .last_step = 0.12, .main_moves = true}, 10);
  climb_all(2, {.first_step = 0.25, .last_step = 0.06}, 3);
  try_micro_batches(climbed);
  climb_all(2, {.first_step = 0.12, .last_step = 0.03}, 3);
  climb_all(1, {.first_step = 0.06, .last_step = 0.01}, 1);
  try_micro_batches(climbed);
  if (pricer_.problem().model.has_frozen()) try_writing_less();
}

// Each plan at the other micro-batches; the better ones come before it. Whatever effort is left:
// they are few, and no answer is to be beaten by another micro-batch alone.
void PlanSearch::try_micro_batches(std::vector<Settled>& plans) {
  std::vector<Settled> others;
  for (const Settled& plan : plans) {
    for (const std::int64_t micro_batch : micro_batches()) {
      if (micro_batch != plan.micro_batch && !is_pruned(bound_of(micro_batch)))
        others.push_back({micro_batch, plan.plan, {}});
    }
  }
  for (std::size_t first = 0; first < others.size() && !pricer_.is_stopped();
       first += jobs_of_round) {
    const std::size_t end = std::min(others.size(), first + jobs_of_round);
    Jobs jobs;
    for (std::size_t k = first; k < end; ++k) {
      jobs.push_back([&one = others[k], this] {
        one = settle(pricer_, space_of(one.micro_batch), one.micro_batch, one.plan, 4, true);
      });
    }
    round(jobs);
    for (std::size_t k = first; k < end; ++k) note(others[k].price);
  }
  for (Settled& one : others) {
    if (one.price.fits) plans.push_back(std::move(one));
  }
  std::stable_sort(plans.begin(), plans.end(),
                   [](const Settled& a, const Settled& b) { return a.better_than(b); });
}

// The best plan with its optimizer state in host memory, and more of the parameters on the SSD.
void PlanSearch::try_writing_less() {
  const auto at = best();
  // Beyond the effort: it is no search, but the other answer.
  if (!at || at->second.bytes_written == 0) return;
  const std::int64_t micro_batch = at->first.micro_batch;
  const Plan plan = plan_of(pricer_.problem_with(micro_batch), at->second.settled);
  const PlanSpace& space = space_of(micro_batch);
  Jobs jobs;
  for (const double room : {1.0, 1.5, 3.0}) {
    Plan other = plan;
    other.optimizer_state.rest = Share{.host = 1};
    const double on_ssd = fraction_on_ssd(plan.parameters.rest, space.layers);
    set_fraction_on_ssd(other.parameters.rest, space.layers,
                        std::min(1.0, on_ssd + room * space.optimizer_state / space.parameters));
    jobs.push_back([this, &space, micro_batch, other] {
      settle(pricer_, space, micro_batch, other, 10, true);
    });
  }
  if (!pricer_.is_stopped()) round(jobs);
}

std::uint64_t PlanSearch::left() const {
  return limits_.effort + published_ - std::min(limits_.effort + published_, pricer_.explored());
}

void PlanSearch::run_near(const Trial& plan) {
  const Problem problem = pricer_.problem_with(plan.micro_batch);
  std::vector<Settled> near;
  near.push_back({plan.micro_batch, plan_of(problem, plan.policy), {}});
  if (!cases_.empty()) {
    const BoundCase& least = cases_.front();
    for (Plan& seed : seeds_of(pricer_.problem_with(least.micro_batch), least))
      near.push_back({least.micro_batch, std::move(seed), {}});
  }
  settle_all(near);
  const auto best =
      std::min_element(near.begin(), near.end(),
                       [](const Settled& a, const Settled& b) { return a.better_than(b); });
  if (best->price.fits) climb(*best, {.first_step = 0.12, .last_step = 0.01}, limits_.effort);
  if (problem.model.has_frozen()) try_writing_less();
}

// At micro-batches that are spread out, then beside the one that is best for the policy.
void PlanSearch::price_published() {
  std::vector<std::string> policies = published_policies();
  policies.emplace_back("fuyou:swap=auto");  // a row of compare, too
  std::vector<std::int64_t> candidates = micro_batches();
  std::sort(candidates.rbegin(), candidates.rend());
  std::vector<Trial> all;
  for (const std::int64_t micro_batch : spread_out(candidates)) {
    for (const std::string& policy : policies) all.push_back({micro_batch, policy});
  }
  // What any answer is compared with is priced whatever the effort.
  prices_published_ = true;
  published_ = all.size();
  price_all(all);
  std::vector<Trial> beside;
  for (const std::string& policy : policies) {
    const Trial* best = nullptr;
    double least = 0;
    for (const Trial& trial : all) {
      if (trial.policy != policy || !pricer_.known().contains(trial)) continue;
      const TrialPrice& price = pricer_.known().at(trial);
      if (!price.fits || (best && price.step_seconds >= least)) continue;
      best = &trial;
      least = price.step_seconds;
    }
    if (!best) continue;
    for (const std::int64_t micro_batch : candidates_beside(best->micro_batch, candidates))
      beside.push_back({micro_batch, policy});
  }
  price_all(beside);
  prices_published_ = false;
  published_ = pricer_.explored();
}

// With retention at every micro-batch, with other options at the two that are best for the policy.
void PlanSearch::price_variants() {
  if (is_proven()) return;
  std::vector<Trial> all;
  for (const std::string& policy : published_policies()) {
    for (const std::int64_t micro_batch : micro_batches()) {
      if (!is_pruned(bound_of(micro_batch)) && pricer_.known().contains({micro_batch, policy}))
        all.push_back({micro_batch, policy + ":retention=nearest"});
    }
  }
  for (const std::string& policy : policy_variants()) {
    const std::string published = policy.substr(0, policy.find(':'));
    std::vector<std::pair<double, std::int64_t>> best;
    for (const std::int64_t micro_batch : micro_batches()) {
      const auto known = pricer_.known().find({micro_batch, published});
      if (known == pricer_.known().end()) continue;
      const TrialPrice& price = known->second;
      if (price.fits && !is_pruned(bound_of(micro_batch)))
        best.emplace_back(price.step_seconds, micro_batch);
    }
    std::sort(best.begin(), best.end());
    if (best.empty()) best.emplace_back(0, micro_batches().back());  // other options may fit
    for (std::size_t k = 0; k < std::min<std::size_t>(2, best.size()); ++k)
      all.push_back({best[k].second, policy});
  }
  price_all(all);
}

void PlanSearch::settle_all(std::vector<Settled>& all, int most_prices) {
  for (std::size_t first = 0; first < all.size() && has_effort(); first += jobs_of_round) {
    const std::size_t end = std::min(all.size(), first + jobs_of_round);
    Jobs jobs;
    for (std::size_t k = first; k < end; ++k) {
      jobs.push_back([&one = all[k], most_prices, this] {
        one = settle(pricer_, space_of(one.micro_batch), one.micro_batch, one.plan, most_prices,
                     true);
      });
    }
    round(jobs);
    for (std::size_t k = first; k < end; ++k) note(all[k].price);
  }
}

// Rows of one, of all, and of powers of two: a climb tries those between.
void PlanSearch::try_cases() {
  std::vector<std::size_t> open;
  for (std::size_t k = 0; k < cases_.size(); ++k) {
    const auto row = static_cast<unsigned>(cases_[k].row);
    const int micro_batches = space_of(cases_[k].micro_batch).micro_batches;
    if (std::has_single_bit(row) || cases_[k].row >= micro_batches) open.push_back(k);
  }
  for (std::size_t first = 0; first < open.size() && may_go_on(); first += jobs_of_round) {
    std::vector<Settled> seeds;
    for (std::size_t k = first; k < std::min(open.size(), first + jobs_of_round); ++k) {
      const BoundCase& one = cases_[open[k]];
      if (is_pruned(one.seconds)) continue;
      const Problem problem = pricer_.problem_with(one.micro_batch);
      seeds.push_back({one.micro_batch, seeds_of(problem, one).front(), {}});
    }
    settle_all(seeds);
    for (std::size_t k = 0; k < seeds.size(); ++k) {
      if (seeds[k].price.fits) found_.push_back(std::move(seeds[k]));
    }
  }
}

// The other seeds of the best few cases.
void PlanSearch::try_other_seeds() {
  std::vector<Settled> seeds;
  for (const Settled& start : starts()) {
    for (const BoundCase& one : cases_) {
      const int micro_batches = space_of(one.micro_batch).micro_batches;
      const int row = start.plan.order.row == 0 ? micro_batches : start.plan.order.row;
      if (one.micro_batch != start.micro_batch || one.row != row) continue;
      std::vector<Plan> plans = seeds_of(pricer_.problem_with(one.micro_batch), one);
      for (std::size_t k = 1; k < plans.size(); ++k)
        seeds.push_back({one.micro_batch, std::move(plans[k]), {}});
    }
  }
  settle_all(seeds);
  for (Settled& one : seeds) {
    if (one.price.fits) found_.push_back(std::move(one));
  }
}

// At each micro-batch, the largest first, whose plans are priced soonest: the policy's own plan,
// and the two that lack least memory with whatever makes room, whatever it costs of time. A seed
// settles in few changes.
void PlanSearch::make_room() {
  std::vector<std::int64_t> sizes = micro_batches();
  std::sort(sizes.rbegin(), sizes.rend());
  for (const std::int64_t micro_batch : sizes) {
    price_all({{micro_batch, "spillway"}});
    std::vector<PricedTrial> nearest;
    for (const auto& one : pricer_.known()) {
      if (one.first.micro_batch == micro_batch && one.second.runs) nearest.push_back(one);
    }
    std::stable_sort(nearest.begin(), nearest.end(), [&](const auto& a, const auto& b) {
      return pricer_.overshoot(a.second) < pricer_.overshoot(b.second);
    });
    if (nearest.size() > 2) nearest.resize(2);
    std::vector<Settled> plans;
    for (const auto& [trial, price] : nearest)
      plans.push_back({micro_batch, plan_of(pricer_.problem_with(micro_batch), price.settled), {}});
    settle_all(plans, 40);
    for (Settled& one : plans) {
      if (one.price.fits) found_.push_back(std::move(one));
    }
  }
}

// The best of every case, built-in policies among them, the best first.
std::vector<Settled> PlanSearch::starts() const {
  std::vector<Settled> all = found_;
  for (const auto& [trial, price] : pricer_.known()) {
    if (!price.fits || trial.policy.starts_with("spillway")) continue;
    all.push_back({trial.micro_batch,
                   plan_of(pricer_.problem_with(trial.micro_batch), price.settled), price});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Settled& a, const Settled& b) { return a.better_than(b); });
  constexpr std::size_t most_starts = 4;
  std::vector<Settled> best;
  for (const Settled& one : all) {
    const bool is_known = std::any_of(best.begin(), best.end(), [&](const Settled& other) {
      return other.micro_batch == one.micro_batch && other.plan.order.row == one.plan.order.row;
    });
    if (!is_known && best.size() < most_starts) best.push_back(one);
  }
  return best;
}

Settled PlanSearch::climb(Settled at, const Climb& how, std::uint64_t effort) {
  const std::uint64_t last = pricer_.explored() + effort;
  for (double step = how.first_step; step >= how.last_step && may_go_on(); step /= 2) {
    std::vector<Move> all = moves(step);
    std::shuffle(all.begin(), all.end(), random_);
    const auto others = std::stable_partition(all.begin(), all.end(),
                                              [](const Move& move) { return move.is_main; });
    if (how.main_moves) all.erase(others, all.end());
    // Moves to try, the next one last. One that gained is tried again first.
    std::vector<std::size_t> open(all.size());
    std::iota(open.rbegin(), open.rend(), 0);
    while (!open.empty() && may_go_on() && pricer_.explored() < last) {
      const std::vector<std::size_t> gained = try_moves(at, all, open);
      if (gained.empty()) continue;
      open.resize(all.size());
      std::iota(open.rbegin(), open.rend(), 0);
      for (const std::size_t move : gained) std::erase(open, move);
      open.insert(open.end(), gained.rbegin(), gained.rend());
    }
  }
  return at;
}

// Takes a round of moves from the end of `open`; `at` becomes the best. Returns those that gained.
std::vector<std::size_t> PlanSearch::try_moves(Settled& at, const std::vector<Move>& all,
                                               std::vector<std::size_t>& open) {
  const PlanSpace& space = space_of(at.micro_batch);
  std::vector<std::pair<std::size_t, Settled>> tried;
  while (tried.size() < jobs_of_round && !open.empty()) {
    Plan plan = at.plan;
    const std::size_t move = open.back();
    open.pop_back();
    if (all[move].apply(space, plan))
      tried.push_back({move, {at.micro_batch, std::move(plan), {}}});
  }
  Jobs jobs;
  for (auto& [move, one] : tried) {
    jobs.push_back([&settled = one, &space, this] {
      settled = settle(pricer_, space, settled.micro_batch, settled.plan, 4, false);
    });
  }
  round(jobs);
  const double before = at.price.step_seconds;
  std::vector<std::size_t> gained;
  for (auto& [move, one] : tried) {
    note(one.price);
    if (one.price.fits && one.price.step_seconds < before * (1 - least_gain))
      gained.push_back(move);
  }
  for (auto& [move, one] : tried) {
    if (one.better_than(at)) at = std::move(one);
  }
  return gained;
}

std::optional<std::pair<Trial, TrialPrice>> PlanSearch::best() const {
  const std::pair<const Trial, TrialPrice>* best = nullptr;
  const Ranking ranking(pricer_.known(), pricer_.problem().model);
  for (const auto& one : pricer_.known()) {
    if (!one.second.fits) continue;
    if (!best || ranking.of(one.second) < ranking.of(best->second)) best = &one;
  }
  if (!best) return {};
  return *best;
}

}  // namespace spillway
