#include "experiments/validate/time_pieces.hpp"

#include <algorithm>
#include <queue>
#include <tuple>

namespace spillway {

std::vector<Interval> foremost(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return std::tuple(a.start, a.rank, a.id) < std::tuple(b.start, b.rank, b.id);
  });
  const auto behind = [](const Interval& a, const Interval& b) {
    return std::tuple(a.rank, a.id) > std::tuple(b.rank, b.id);
  };
  std::priority_queue<Interval, std::vector<Interval>, decltype(behind)> open(behind);
  std::vector<Interval> pieces;
  const auto add = [&](std::int64_t start, std::int64_t end, const Interval& of) {
    if (start >= end) return;
    const bool goes_on = !pieces.empty() && pieces.back().id == of.id && pieces.back().end == start;
    if (goes_on) {
      pieces.back().end = end;
    } else {
      pieces.push_back({start, end, of.rank, of.id});
    }
  };
  std::int64_t now = 0;
  std::size_t next = 0;
  while (next < intervals.size() || !open.empty()) {
    while (!open.empty() && open.top().end <= now) open.pop();  // over, or covered to its end
    if (open.empty()) {
      if (next == intervals.size()) break;
      now = intervals[next].start;
    }
    while (next < intervals.size() && intervals[next].start <= now) open.push(intervals[next++]);
    while (!open.empty() && open.top().end <= now) open.pop();
    if (open.empty()) continue;
    const std::int64_t until =
        next < intervals.size() ? std::min(open.top().end, intervals[next].start) : open.top().end;
    add(now, until, open.top());
    now = until;
  }
  return pieces;
}

}  // namespace spillway
