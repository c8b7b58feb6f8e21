#include "experiments/questions/micro_batch_fit.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace spillway {

MicroBatchFit fit_in_some_micro_batch(const Planner& planner, const Problem& problem,
                                      std::int64_t first) {
  std::vector<std::int64_t> sizes = {problem.workload.micro_batch};
  if (planner.choose_micro_batch) sizes = micro_batch_candidates(problem.workload.rank_batch());
  std::stable_partition(sizes.begin(), sizes.end(),
                        [&](std::int64_t size) { return size == first; });
  planner.begin();
  MicroBatchFit nearest;
  for (const std::int64_t size : sizes) {
    Problem sized = problem;
    sized.workload.micro_batch = size;
    std::optional<Fit> one = planner.fit(sized);
    if (!one) continue;
    if (nearest.fit && one->need.overshoot() >= nearest.fit->need.overshoot()) continue;
    nearest.micro_batch = size;
    nearest.fit = std::move(one);
    if (nearest.fits()) return nearest;
  }
  nearest.cut_short = planner.cut_short();
  return nearest;
}

}  // namespace spillway
