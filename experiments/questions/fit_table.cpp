#include "experiments/questions/fit_table.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <utility>

#include "base/errors.hpp"
#include "experiments/plan/all_ranks.hpp"
#include "experiments/plan/in_parallel.hpp"

namespace spillway {

namespace {

constexpr std::array tiers = {Tier::gpu, Tier::host, Tier::ssd};

// Tells how far the table is, one answer at a time.
class Teller {
 public:
  Teller(std::size_t all, const std::function<void(const FitProgress&)>& tell)
      : all_(all), tell_(tell) {}

  void say(const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (tell_) tell_({done_, all_, seconds(), what});
  }
  void finish_one() {
    const std::lock_guard lock(mutex_);
    ++done_;
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }

  const std::size_t all_;
  const std::function<void(const FitProgress&)>& tell_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::mutex mutex_;  // of what follows, and of telling
  std::size_t done_ = 0;
};

PlansAsked with_policy(PlansAsked asked, const std::string& policy) {
  asked.policies = {policy};
  return asked;
}

// Throws InputError where the policy cannot run the problem at any batch.
void require_able(const Problem& problem, const PlansAsked& asked, const std::string& policy) {
  Problem one = problem;
  Workload& workload = one.workload;
  if (asked.choose_micro_batch) workload.micro_batch = 1;
  workload.batch = workload.micro_batch * workload.ranks;
  if (asked.settle) asked.settle(one);
  build_schedule(one, policy, 1);
}

}  // namespace

FitColumns fit_columns(const std::vector<std::string>& largest,
                       const std::vector<std::string>& least) {
  const bool all = largest.empty() && least.empty();
  FitColumns columns;
  columns.model = columns.batch = all;
  columns.least.fill(all);
  for (const std::string& name : largest) {
    if (name != "model" && name != "batch")
      throw InputError(Setting{"largest", name} + ": nothing to ask for", "model or batch");
    (name == "model" ? columns.model : columns.batch) = true;
  }
  for (const std::string& name : least) {
    const auto* const tier =
        std::find_if(tiers.begin(), tiers.end(), [&](Tier one) { return to_string(one) == name; });
    if (tier == tiers.end())
      throw InputError(Setting{"least", name} + ": no memory", "gpu, host or ssd");
    columns.least[static_cast<std::size_t>(*tier)] = true;
  }
  return columns;
}

ProblemRequest with_batch(ProblemRequest request, const FitColumns& columns) {
  WorkloadTexts& workload = request.workload;
  const bool is_answer = columns.batch && columns.count() == 1;
  if (is_answer && workload.contains("batch"))
    throw InputError(Setting{"batch", workload["batch"]} + ": the batch is the answer here",
                     "leave it out; the largest model and the least memory are asked at a batch");
  if (workload.contains("batch") || request.chooses_micro_batch()) return request;
  // A micro-batch for each rank, of which there are as many as the machine says: of a batch that
  // any number of them shares.
  ProblemRequest shared = request;
  shared.workload.erase("micro_batch");
  shared.workload["batch"] = "322560";
  Workload one;
  find_workload_field("micro_batch")->read(one, workload["micro_batch"]);
  workload["batch"] = std::to_string(one.micro_batch * shared.problem().workload.ranks);
  return request;
}

std::vector<std::string> policies_to_fit(const std::vector<std::string>& named,
                                         const Workload& workload) {
  if (!named.empty()) {
    const std::vector<std::string> all = policies_named(named);
    for (const std::string& policy : all) canonical_policy(policy);  // no typing errors
    return all;
  }
  std::vector<std::string> candidates = policies_named("auto");
  std::erase_if(candidates,
                [&](const std::string& policy) { return !is_candidate(policy, workload); });
  return candidates;
}

std::size_t FitColumns::count() const {
  return static_cast<std::size_t>(model) + static_cast<std::size_t>(batch) +
         static_cast<std::size_t>(std::count(least.begin(), least.end(), true));
}

bool FitRow::fits() const {
  const auto has_bytes = [](const std::optional<LeastMemory>& one) { return one && one->bytes; };
  return (model && (model->plan || model->of_family)) || (batch && batch->plan) ||
         std::any_of(least.begin(), least.end(), has_bytes);
}

bool FitTable::fits() const {
  return std::any_of(rows.begin(), rows.end(), [](const FitRow& row) { return row.fits(); });
}

FitTable fit_table(const ProblemRequest& request, const PlansAsked& asked,
                   const FitColumns& columns, unsigned threads,
                   const std::function<void(const FitProgress&)>& tell) {
  FitTable table{request.problem(), columns, {}};
  const Problem& problem = table.problem;
  require_no_stages(problem);
  std::exception_ptr refused;
  std::size_t able = 0;
  for (const std::string& policy : asked.policies) {
    FitRow row;
    row.policy = policy;
    try {
      require_able(problem, asked, policy);
      ++able;
    } catch (const InputError& error) {
      if (!refused) refused = std::current_exception();
      row.refused = error.what();
    }
    table.rows.push_back(std::move(row));
  }
  if (able == 0 && refused) std::rethrow_exception(refused);
  Teller teller(able * columns.count(), tell);
  // A planner remembers what it tried: each answer has one of its own, so that none depends on
  // which thread was faster.
  std::vector<std::function<void()>> answers;
  const auto answer = [&](const FitRow& row, auto find) {
    answers.push_back([&asked, &teller, &row, find = std::move(find)] {
      const Planner planner = planner_of(with_policy(asked, row.policy));
      find(planner, [&](const std::string& what) { teller.say(row.policy + ": " + what); });
      teller.finish_one();
    });
  };
  using Say = std::function<void(const std::string&)>;
  std::vector<FitRow*> rows;
  for (FitRow& row : table.rows) {
    if (row.refused.empty()) rows.push_back(&row);
  }
  // What takes longest comes first: then no thread is left alone with it, and less is left than the
  // first answers let expect.
  for (FitRow* row : rows) {
    if (columns.model)
      answer(*row, [row, &problem](const Planner& planner, const Say& say) {
        row->model = largest_model(problem, planner, say);
      });
  }
  for (FitRow* row : rows) {
    if (columns.batch)
      answer(*row, [row, &problem](const Planner& planner, const Say& say) {
        say("looking for the largest batch");
        row->batch = largest_batch(problem, planner);
      });
  }
  for (FitRow* row : rows) {
    for (const Tier tier : tiers) {
      const auto t = static_cast<std::size_t>(tier);
      if (!columns.least[t]) continue;
      answer(*row, [row, &request, tier, t](const Planner& planner, const Say& say) {
        row->least[t] = least_memory(request, tier, planner, say);
      });
    }
  }
  constexpr unsigned most_threads = 8;  // each holds a schedule or two
  in_parallel(answers.size(), std::min(threads, most_threads),
              [&](std::size_t k) { answers[k](); });
  return table;
}

}  // namespace spillway
