#include "experiments/why/differences.hpp"

#include <algorithm>
#include <cmath>

namespace spillway {

namespace {

class Table {
 public:
  void add(const TaskClass& of, std::optional<Wait> wait, double TimeDifference::*side,
           double seconds) {
    const auto same = [&](const TimeDifference& row) { return row.of == of && row.wait == wait; };
    const auto row = std::find_if(rows_.begin(), rows_.end(), same);
    TimeDifference& sum = row == rows_.end() ? rows_.emplace_back(TimeDifference{of, wait}) : *row;
    sum.*side += seconds;
  }
  std::vector<TimeDifference> sorted() && {
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const TimeDifference& x, const TimeDifference& y) {
                       return std::abs(x.gain()) > std::abs(y.gain());
                     });
    return std::move(rows_);
  }

 private:
  std::vector<TimeDifference> rows_;
};

double per_step(const SteadyWindow& window, std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9 / window.steps;
}

}  // namespace

std::vector<TimeDifference> critical_differences(const Explanation& a, const Explanation& b) {
  Table table;
  for (const CriticalPart& part : a.critical_path.parts)
    table.add(part.of, {}, &TimeDifference::a, per_step(a.window, part.ns));
  for (const CriticalPart& part : b.critical_path.parts)
    table.add(part.of, {}, &TimeDifference::b, per_step(b.window, part.ns));
  return std::move(table).sorted();
}

std::vector<TimeDifference> stall_differences(const Explanation& a, const Explanation& b) {
  Table table;
  for (const Stall& stall : a.stalls.stalls)
    table.add(stall.running, stall.wait, &TimeDifference::a, per_step(a.window, stall.ns));
  for (const Stall& stall : b.stalls.stalls)
    table.add(stall.running, stall.wait, &TimeDifference::b, per_step(b.window, stall.ns));
  return std::move(table).sorted();
}

}  // namespace spillway
