#include "exec/cuda/attention/attention_order.hpp"

#include <algorithm>
#include <vector>

#include "exec/cuda/device/launch.hpp"

namespace spillway::cuda {

namespace {

// Adds `cost` to the pieces [begin, end) of the list, which lie in one round. Costs are kept as
// differences between neighbours: many pieces that follow each other cost the same.
void add_cost(std::vector<double>& steps, const WorkOrder& order, int round, int begin, int end,
              double cost) {
  const int grid = static_cast<int>(steps.size()) - 1;
  int first = begin - round * grid, last = end - round * grid;
  if (order.there_and_back && round % 2 == 1) {
    std::swap(first, last);
    first = grid - first;
    last = grid - last;
  }
  steps[static_cast<std::size_t>(first)] += cost;
  steps[static_cast<std::size_t>(last)] -= cost;
}

}  // namespace

double work_balance(const WorkOrder& order, std::int64_t tokens, int rows, int multiprocessors) {
  constexpr double start = 64;
  const int grid = std::min(order.size(), multiprocessors);
  std::vector<double> steps(static_cast<std::size_t>(grid) + 1, 0.0);
  double sum = 0;
  int index = 0;
  for (int first = 0; first < order.heads; first += order.heads_at_once) {
    const int heads = std::min(order.heads_at_once, order.heads - first);
    for (int turn = 0; turn < order.blocks; ++turn) {
      const double cost = start + static_cast<double>(tokens - std::int64_t{turn} * rows);
      sum += cost * heads;
      for (const int end = index + heads; index < end;) {
        const int round = index / grid, until = std::min(end, (round + 1) * grid);
        add_cost(steps, order, round, index, until, cost);
        index = until;
      }
    }
  }
  double busy = 0, most = 0;
  for (int block = 0; block < grid; ++block) {
    busy += steps[static_cast<std::size_t>(block)];
    most = std::max(most, busy);
  }
  return sum / (multiprocessors * most);
}

WorkOrder work_order(std::int64_t heads, std::int64_t tokens, int rows, std::int64_t bytes_per_head,
                     int multiprocessors) {
  constexpr std::int64_t cache_bytes = 16 << 20;  // of the 50 MB of a Hopper, in two halves
  const auto most =
      static_cast<int>(std::clamp<std::int64_t>(cache_bytes / bytes_per_head, 1, heads));
  WorkOrder order{static_cast<int>(heads), static_cast<int>((tokens + rows - 1) / rows), most,
                  false};
  WorkOrder best = order;
  double best_balance = 0;
  // Half of the heads that the cache holds, or more, in steps of a sixteenth.
  constexpr int steps = 16;
  for (int step = steps; step >= steps / 2; --step) {
    order.heads_at_once = std::max(1, most * step / steps);
    for (const bool there_and_back : {false, true}) {
      order.there_and_back = there_and_back;
      const double balance = work_balance(order, tokens, rows, multiprocessors);
      if (balance <= best_balance) continue;
      best_balance = balance;
      best = order;
    }
  }
  return best;
}

int multiprocessor_count() {
  int device = 0, count = 0;
  SPILLWAY_CUDA(cudaGetDevice(&device));
  SPILLWAY_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace spillway::cuda
