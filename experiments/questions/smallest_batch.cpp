#include "experiments/questions/smallest_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace spillway {

namespace {

// Bounds, so that an answer takes a minute or two: tasks emitted and simulated for the curve and
// for what is evaluated between its points, and how many of these are.
constexpr std::uint64_t most_tasks_of_curve = 60'000'000, most_tasks_between = 12'000'000;
constexpr int most_points_between = 40;
constexpr std::int64_t largest_batch_tried = 1 << 16;

class CurveSearch {
 public:
  CurveSearch(const Problem& problem, const Planner& planner, double share,
              const std::function<void(const std::string&)>& say)
      : problem_(problem),
        planner_(planner),
        say_(say),
        unit_(planner.choose_micro_batch ? 1 : problem.workload.micro_batch) {
    answer_.share = share;
  }

  SmallestBatch search() {
    find_peak();
    if (answer_.peak.batch > 0) {
      find_smallest();
      answer_.plan =
          best_plan(planner_, sized(answer_.smallest.batch / unit_), planner_.choose_micro_batch);
    }
    for (const auto& [count, point] : points_) {
      if (point) answer_.curve.push_back(*point);
    }
    return std::move(answer_);
  }

 private:
  // Batches are counted in units: micro-batches where these are set, else sequences.
  const std::optional<BatchPoint>& at(std::int64_t count) {
    const auto [found, is_new] = points_.try_emplace(count);
    if (is_new) {
      found->second = evaluate(count);
      take_peak(found->second);
    }
    return found->second;
  }

  Problem sized(std::int64_t count) const {
    Problem problem = problem_;
    problem.workload.batch = count * unit_ * problem.workload.ranks;
    if (planner_.choose_micro_batch) problem.workload.micro_batch = problem.workload.rank_batch();
    return problem;
  }

  std::optional<BatchPoint> evaluate(std::int64_t count) {
    ++evaluated_;
    if (say_) say_(fmt::format("evaluating {} sequences a step", count * unit_));
    const std::optional<Candidate> plan =
        best_plan(planner_, sized(count), planner_.choose_micro_batch);
    if (!plan) return {};
    last_tasks_ = plan->evaluation.tasks;
    tasks_ += last_tasks_;
    const Schedule& schedule = plan->evaluation.schedule;
    const Workload& workload = schedule.problem().workload;
    const SimulationResult& result = *plan->evaluation.result;
    return BatchPoint{workload.batch,      workload.micro_batch,     schedule.policy(),
                      result.step_seconds, result.tokens_per_second, result.bound_by};
  }

  void take_peak(const std::optional<BatchPoint>& point) {
    if (point && point->tokens_per_second > answer_.peak.tokens_per_second) answer_.peak = *point;
  }

  void find_peak() {
    int flat = 0;
    std::int64_t count = 1;
    for (; count * unit_ <= largest_batch_tried && flat < 2; count *= 2) {
      if (tasks_ + 2 * last_tasks_ > most_tasks_of_curve) return;
      const double before = answer_.peak.tokens_per_second;
      const std::optional<BatchPoint>& point = at(count);
      if (!point) break;
      flat = answer_.peak.tokens_per_second < before * (1 + saturated_gain) ? flat + 1 : 0;
    }
    answer_.saturated = flat == 2;
    if (answer_.saturated || count == 1) return;
    // Memory is full somewhere between the last two.
    std::int64_t low = count / 2, step = low / 2;
    for (int tried = 0; tried < 4 && step > 0; ++tried, step /= 2) {
      if (!at(low + step)) continue;
      low += step;
    }
  }

  bool reaches(std::int64_t count) {
    const std::optional<BatchPoint>& point = at(count);
    return point && point->tokens_per_second >= wanted_;
  }

  // Whether a batch may reach the share, by the times of powers of two that take no longer.
  bool may_reach(std::int64_t count) {
    const double tokens = static_cast<double>(count * unit_ * problem_.workload.sequence);
    for (std::int64_t parts = 1; parts <= count; ++parts) {
      if (count % parts != 0) continue;
      const std::optional<BatchPoint>& below =
          at(power_of_two(parts) * power_of_two(count / parts));
      if (!below || below->step_seconds <= 1.02 * tokens / wanted_) return true;
    }
    return false;
  }
  // The largest up to `most`.
  static std::int64_t power_of_two(std::int64_t most) {
    return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)));
  }

  // What is seen on the way may be faster than the peak so far: then more is wanted.
  void find_smallest() {
    tasks_ = 0;
    evaluated_ = 0;
    do {
      wanted_ = answer_.share * answer_.peak.tokens_per_second;
      find_first_that_reaches();
    } while (wanted_ < answer_.share * answer_.peak.tokens_per_second);
  }

  // By bisection; then each smaller one that may reach it, downwards.
  void find_first_that_reaches() {
    std::int64_t high = answer_.peak.batch / unit_;
    for (const auto& [count, point] : points_) {
      if (point && point->tokens_per_second >= wanted_) high = std::min(high, count);
    }
    std::vector<std::int64_t> counts;
    for (std::int64_t count = 1; count < high; ++count) {
      if (may_reach(count)) counts.push_back(count);
    }
    counts.push_back(high);
    std::size_t low = 0, first = counts.size() - 1;
    while (low < first && !out_of_tasks()) {
      const std::size_t middle = low + (first - low) / 2;
      if (reaches(counts[middle]))
        first = middle;
      else
        low = middle + 1;
    }
    answer_.exact = true;
    for (std::size_t i = first; i-- > 0;) {
      if (!points_.contains(counts[i]) && out_of_tasks())
        answer_.exact = false;
      else if (reaches(counts[i]))
        first = i;
    }
    answer_.smallest = *at(counts[first]);
  }

  bool out_of_tasks() const {
    return tasks_ >= most_tasks_between || evaluated_ >= most_points_between;
  }

  const Problem& problem_;
  const Planner& planner_;
  const std::function<void(const std::string&)>& say_;
  const std::int64_t unit_;
  SmallestBatch answer_;
  double wanted_ = 0;  // tokens per second; 0: the peak is not known yet
  std::map<std::int64_t, std::optional<BatchPoint>> points_;
  std::uint64_t tasks_ = 0, last_tasks_ = 0;
  int evaluated_ = 0;  // since the peak was found
};

}  // namespace

SmallestBatch smallest_batch(const Problem& problem, const Planner& planner, double share,
                             const std::function<void(const std::string&)>& say) {
  return CurveSearch(problem, planner, share, say).search();
}

}  // namespace spillway
