#include "experiments/tune/pricer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/errors.hpp"
#include "experiments/plan/fit_trials.hpp"
#include "experiments/plan/in_parallel.hpp"
#include "experiments/plan/price.hpp"
#include "sim/result_json.hpp"

namespace spillway {

namespace {

// Equal for equal problems.
std::string text_of(const Problem& problem) {
  return fmt::format("{}\n{}\n{}\n{}{}", model_to_toml(problem.model),
                     machine_to_toml(problem.machine), to_json(problem.workload).dump(),
                     problem.framework, problem.frozen_in_place ? "\nfrozen in place" : "");
}

TrialPrice trial_price(const Price& one) {
  TrialPrice price;
  price.runs = true;
  price.fits = one.fits;
  for (std::size_t tier = 0; tier < tier_count; ++tier)
    price.peaks[tier] = one.memory[tier].peak_bytes;
  price.settled = one.policy;
  price.tasks = one.tasks;
  price.step_seconds = one.step_seconds;
  price.bytes_written = one.ssd_bytes_written_per_step;
  return price;
}

}  // namespace

Ranking::Ranking(const std::map<Trial, TrialPrice>& known, const ModelSpec& model) {
  if (!model.has_frozen()) return;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [trial, price] : known) {
    if (price.fits) least = std::min(least, price.step_seconds);
  }
  as_fast_ = 1.002 * least;
}

Ranking::Rank Ranking::of(const TrialPrice& price) const {
  return {std::max(price.step_seconds, as_fast_), price.bytes_written, price.step_seconds};
}

Pricer::Pricer(Problem problem, unsigned threads, std::function<void(Problem&)> settle,
               PriceJournal* journal, Allows allows)
    : problem_(std::move(problem)),
      threads_(std::max(1u, threads)),
      journal_(journal),
      settle_(std::move(settle)),
      allows_(std::move(allows)),
      problem_text_(journal ? text_of(problem_) : "") {}

Problem Pricer::problem_with(std::int64_t micro_batch) const {
  Problem problem = problem_;
  problem.workload.micro_batch = micro_batch;
  if (settle_) settle_(problem);
  return problem;
}

std::uint64_t Pricer::capacity(Tier tier) const {
  return capacities(problem_.machine)[static_cast<std::size_t>(tier)];
}

double Pricer::overshoot(const TrialPrice& price) const {
  Need need;
  need.bytes = price.peaks;
  for (const Tier tier : memories_of(problem_.machine))
    need.capacity[static_cast<std::size_t>(tier)] = capacity(tier);
  return need.overshoot();
}

std::optional<PricedTrial> Pricer::nearest() const {
  std::optional<PricedTrial> found;
  double least = 0;  // that it lacks
  for (const auto& [trial, price] : known_) {
    if (!price.runs) continue;
    const double lacks = overshoot(price);
    if (found && lacks >= least) continue;
    least = lacks;
    found = PricedTrial(trial, price);
  }
  return found;
}

TrialPrice Pricer::price_anew(const Trial& trial) const {
  try {
    const Problem problem = problem_with(trial.micro_batch);
    if (allows_ && !allows_(problem, trial.policy)) return {};
    return trial_price(spillway::price(problem, trial.policy));
  } catch (const InputError&) {
    return {};  // a plan that its own check or the problem's refuses
  }
}

TrialPrice Pricer::correct(const Trial& trial, const Price& exact) {
  return known_.at(trial) = trial_price(exact);
}

bool Pricer::is_stopped() {
  if (until_ && std::chrono::steady_clock::now() >= *until_) is_stopped_ = true;
  return is_stopped_;
}

TrialPrice Pricer::price(const Trial& trial) {
  {
    const std::lock_guard lock(mutex_);
    const auto known = known_.find(trial);
    if (known != known_.end()) return known->second;
  }
  TrialPrice price;
  const std::string key =
      journal_ ? fmt::format("{}\n{}\n{}", problem_text_, trial.micro_batch, trial.policy) : "";
  if (!journal_ || !journal_->find(key, price)) {
    if (is_stopped()) return {};
    price = price_anew(trial);
    if (journal_) journal_->add(key, price);
  }
  const std::lock_guard lock(mutex_);
  if (known_.emplace(trial, price).second) tasks_ += price.tasks;
  return price;
}

void Pricer::run(const std::vector<std::function<void()>>& jobs) {
  in_parallel(jobs.size(), threads_, [&](std::size_t k) { jobs[k](); });
}

}  // namespace spillway
