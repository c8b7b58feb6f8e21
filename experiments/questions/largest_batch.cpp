#include "experiments/questions/largest_batch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "experiments/questions/largest_that_holds.hpp"
#include "policies/machine/gpu_workspaces.hpp"

namespace spillway {

namespace {

class BatchSearch {
 public:
  BatchSearch(const Problem& problem, const Planner& planner)
      : problem_(problem),
        planner_(planner),
        most_(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(
            std::max<std::int64_t>(1, most_tokens_tried / problem.workload.sequence))))) {}

  LargestBatch search() {
    find();
    answer_.batch *= problem_.workload.ranks;
    return std::move(answer_);
  }

 private:
  // All batches in here are of one rank.
  void find() {
    begin();
    find_micro_batches();
    if (single_ == 0) {
      const auto least = known_.begin();  // the one that was tried first
      if (least->second) answer_.full = full_tiers(least->second->need);
      if (is_cut_short()) answer_.end = LargestBatch::End::most_tasks;
      return;
    }
    answer_.largest_micro_batch = single_;
    take(single_, 1);
    if (several_ > 0) {
      take(several_, parts_that_fit(several_, 1));
      if (!unlimited()) take_most_of_halves();
      // Smaller micro-batches may leave room for more sequences.
      if (!unlimited()) begin();
      while (!unlimited() && take_smaller()) {
      }
      if (unlimited() && answer_.batch < most_) take_most();
    }
    keep_what_runs();
    say_what_ends_it();
  }

  // What was left out before stays unknown.
  void begin() {
    was_cut_short_ = is_cut_short();
    planner_.begin();
  }
  bool is_cut_short() const { return was_cut_short_ || planner_.cut_short(); }

  // Whether `parts` micro-batches of so many sequences fit.
  bool fits(std::int64_t micro_batch, std::int64_t parts) {
    const auto [at, is_new] = known_.try_emplace({micro_batch, parts});
    if (is_new) at->second = planner_.fit(sized(micro_batch, parts));
    return at->second && at->second->need.fits();
  }

  Problem sized(std::int64_t micro_batch, std::int64_t parts) const {
    Problem problem = problem_;
    problem.workload.micro_batch = micro_batch;
    problem.workload.batch = micro_batch * parts * problem.workload.ranks;
    // Those of the largest micro-batch that the batch may be computed in.
    if (problem.machine.gpu.workspaces > 0) leave_room_for_workspaces(problem);
    return problem;
  }

  // The largest micro-batch alone, and with others.
  void find_micro_batches() {
    const auto largest = [&](std::int64_t parts) -> std::int64_t {
      if (!planner_.choose_micro_batch) {
        const std::int64_t given = problem_.workload.micro_batch;
        return fits(given, parts) ? given : 0;
      }
      const auto holds = [&](std::int64_t size) { return fits(size, parts); };
      return holds(1) ? largest_that_holds(1, std::max<std::int64_t>(1, most_ / parts), holds) : 0;
    };
    single_ = largest(1);
    several_ = single_ == 0 ? 0 : fits(single_, 2) ? single_ : largest(2);
  }

  std::int64_t most_parts(std::int64_t micro_batch) const {
    return std::min(most_micro_batches, std::max<std::int64_t>(1, most_ / micro_batch));
  }
  std::int64_t parts_that_fit(std::int64_t micro_batch, std::int64_t from) {
    return largest_that_holds(from, most_parts(micro_batch),
                              [&](std::int64_t parts) { return fits(micro_batch, parts); });
  }

  void take(std::int64_t micro_batch, std::int64_t parts) {
    if (micro_batch * parts <= answer_.batch) return;
    answer_.batch = micro_batch * parts;
    answer_.micro_batch = micro_batch;
  }

  // Much smaller micro-batches may leave memory without a limit. Each power of two is tried with
  // the most of them.
  void take_most_of_halves() {
    if (!planner_.choose_micro_batch) return;
    begin();
    for (auto size =
             static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(several_)));
         size > 0 && size * most_parts(size) > answer_.batch; size /= 2) {
      if (fits(size, most_parts(size))) return take(size, most_parts(size));
    }
  }

  // The largest batch that is tried, where some micro-batch makes it up.
  void take_most() {
    if (!planner_.choose_micro_batch) return;
    begin();
    for (std::int64_t size = several_; size * most_micro_batches >= most_; --size) {
      if (most_ % size == 0 && fits(size, most_ / size)) return take(size, most_ / size);
    }
  }

  // Whether it is the largest multiple that is tried of the largest micro-batch.
  bool unlimited() const {
    return several_ > 0 && answer_.batch >= several_ * most_parts(several_);
  }

  bool take_smaller() {
    if (!planner_.choose_micro_batch) return false;
    for (std::int64_t size = several_; size * most_micro_batches > answer_.batch; --size) {
      const std::int64_t parts = answer_.batch / size + 1;
      if (parts > most_parts(size) || !fits(size, parts)) continue;
      take(size, parts_that_fit(size, parts));
      return true;
    }
    return false;
  }

  // What fits by memory has a plan, unless the search for plans finds another one that does not.
  void keep_what_runs() {
    constexpr int close_tries = 8;  // sequence by sequence; then in strides
    for (int tried = 0; answer_.batch > 0; ++tried) {
      const std::int64_t parts = answer_.batch / answer_.micro_batch;
      if (fits(answer_.micro_batch, parts))
        answer_.plan = planner_.fitted(sized(answer_.micro_batch, parts),
                                       *known_.at({answer_.micro_batch, parts}));
      if (answer_.plan) return;
      known_[{answer_.micro_batch, parts}].reset();
      is_least_ = true;
      step_down(tried < close_tries ? 1 : std::max<std::int64_t>(1, answer_.batch / 8));
    }
  }

  // To the largest batch that seems to fit among those at least so much smaller.
  void step_down(std::int64_t by) {
    for (std::int64_t batch = answer_.batch - by; batch > 0; --batch) {
      for (std::int64_t size = std::max(several_, single_); size > 0; --size) {
        if (batch % size != 0 || batch / size > most_parts(size)) continue;
        if (!planner_.choose_micro_batch && size != problem_.workload.micro_batch) continue;
        if (!fits(size, batch / size)) continue;
        answer_.batch = batch;
        answer_.micro_batch = size;
        return;
      }
    }
    answer_.batch = 0;
  }

  void say_what_ends_it() {
    using End = LargestBatch::End;
    if (answer_.batch == 0) return;
    const std::int64_t parts = answer_.batch / answer_.micro_batch + 1;
    const auto more = known_.find({answer_.micro_batch, parts});
    if (more != known_.end() && more->second) answer_.full = full_tiers(more->second->need);
    const bool has_most_parts =
        answer_.batch / answer_.micro_batch >= most_parts(answer_.micro_batch);
    const bool is_most = !is_least_ && (unlimited() || (has_most_parts && !is_cut_short()));
    if (answer_.batch == most_ || is_most) {
      answer_.end = End::most_tried;
    } else if (is_least_ || is_cut_short()) {
      answer_.end = End::most_tasks;
    }
  }

  const Problem& problem_;
  const Planner& planner_;
  const std::int64_t most_;  // sequences
  LargestBatch answer_;
  std::int64_t single_ = 0, several_ = 0;
  bool was_cut_short_ = false;
  bool is_least_ = false;  // larger ones that fit by memory have no plan
  std::map<std::pair<std::int64_t, std::int64_t>, std::optional<Fit>> known_;
};

}  // namespace

LargestBatch largest_batch(const Problem& problem, const Planner& planner) {
  LargestBatch answer = BatchSearch(problem, planner).search();
  answer.policy = answer.plan ? answer.plan->evaluation.schedule.policy() : planner.name;
  return answer;
}

}  // namespace spillway
